"""Who sends which bytes to whom, and when: a pure function of rank, world size and length.

`ring` cuts a buffer in one chunk per rank and each chunk in equal numbers of segments, and lists the
exchanges of one rank: to the right neighbour, from the left, reduce-scatter first, all-gather after.
Every rank's list has the same length, and exchange k of one rank meets exchange k of its neighbours. Per
rank exactly 2(N-1)/N of the bytes are sent, up to one unit of alignment per chunk. `dissemination` is the
pattern of the ready word: after ceil(log2 N) rounds everybody has heard of everybody. No torch, no
sockets.
"""

from dataclasses import dataclass

PIPELINED_BYTES = 1 << 20  # chunks from here on have two segments at least: one is added as the other comes
UNIT_BYTES = 64  # every cut lies on a multiple: no element of any dtype is divided

Range = tuple[int, int]  # [low, high) in bytes of the buffer


@dataclass(frozen=True, slots=True)
class Exchange:
    """One exchange of one rank: `send` goes to the right neighbour, `receive` comes from the left.

    Both are byte ranges of the one buffer; an empty range means no message. `own`: what is sent is this
    rank's contribution itself, not the buffer. `reduce`: this rank's contribution is added to what was
    received, in place. `after`: the exchange whose received range is sent here, or -1. What is received may
    land whenever it comes: a partial sum that lay there has been read, for the sum that comes holds it.
    """

    send: Range
    receive: Range
    own: bool
    reduce: bool
    after: int


def cut(length: int, parts: int, unit: int = UNIT_BYTES) -> list[Range]:
    """[0, length) in `parts` ranges that differ by at most one unit, longer first, the last cut short."""
    units = -(-length // unit)
    base, longer = divmod(units, parts)
    ranges, low = [], 0
    for index in range(parts):
        high = low + (base + (index < longer)) * unit
        ranges.append((min(low, length), min(high, length)))
        low = high
    return ranges


def segments_per_chunk(length: int, world_size: int, segment_bytes: int, least_bytes: int = 0) -> int:
    """How many segments each chunk is cut into, none longer than `segment_bytes` by more than a unit.

    Chunks are not cut in two for the pipeline's sake where that makes segments of less than `least_bytes`.
    """
    low, high = cut(length, world_size)[0]
    pipelined = high - low >= max(PIPELINED_BYTES, 2 * least_bytes)
    return max(1 + pipelined, -(-(high - low) // segment_bytes))


def ring(
    rank: int, world_size: int, length: int, segment_bytes: int, least_bytes: int = 0
) -> list[Exchange]:
    """The exchanges of `rank` for an allreduce of `length` bytes, in order.

    In reduce-scatter stage s, rank r sends chunk r-s and adds its own to chunk r-s-1; after N-1 stages chunk
    r+1 is complete at rank r, and travels on in N-1 stages of all-gather. With two ranks each sends half,
    adds, and sends the sum of the other half back.
    """
    if world_size < 2:
        return []
    count = segments_per_chunk(length, world_size, segment_bytes, least_bytes)
    chunks = [
        [(low + a, low + b) for a, b in cut(high - low, count)] for low, high in cut(length, world_size)
    ]
    exchanges = []
    for stage in range(2 * (world_size - 1)):
        sent, received = chunks[(rank - stage) % world_size], chunks[(rank - stage - 1) % world_size]
        for index in range(count):
            exchanges.append(
                Exchange(
                    send=sent[index],
                    receive=received[index],
                    own=stage == 0,
                    reduce=stage < world_size - 1,
                    after=(stage - 1) * count + index if stage else -1,
                )
            )
    return exchanges


def bytes_sent(rank: int, world_size: int, length: int) -> int:
    """What `rank` sends in an allreduce of `length` bytes: every chunk twice, less the two it keeps."""
    sizes = [high - low for low, high in cut(length, world_size)]
    if world_size < 2:
        return 0
    return 2 * sum(sizes) - sizes[(rank + 1) % world_size] - sizes[(rank + 2) % world_size]


def dissemination(rank: int, world_size: int) -> list[tuple[int, int]]:
    """(send to, receive from) of each round; distances double. After the last all have heard of all."""
    rounds, distance = [], 1
    while distance < world_size:
        rounds.append(((rank + distance) % world_size, (rank - distance) % world_size))
        distance *= 2
    return rounds
