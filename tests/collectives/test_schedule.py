"""The schedule alone: many ranks in one process, their turns in random order."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godmw.collectives.schedule import UNIT_BYTES, bytes_sent, cut, dissemination, ring, segments_per_chunk


@given(length=st.integers(0, 5000), parts=st.integers(1, 12), unit=st.sampled_from([1, 8, 64]))
def test_cut_covers_everything_once_and_evenly(length: int, parts: int, unit: int) -> None:
    ranges = cut(length, parts, unit)
    assert len(ranges) == parts
    assert ranges[0][0] == 0
    assert ranges[-1][1] == length
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(low % unit == 0 or low == length for low, _ in ranges)
    sizes = [-(-(high - low) // unit) for low, high in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def simulate(contributions: list[list[int]], segment_bytes: int, rng: random.Random) -> list[list[int]]:
    """Runs every rank's list against each other; one number stands for one byte. Returns the buffers.

    A rank posts a send when what it depends on is done; what is sent is read when it lands, as late as a
    socket may, and it may land at any time from then on.
    """
    world_size, length = len(contributions), len(contributions[0])
    buffers = [[0] * length for _ in contributions]
    plans = [ring(rank, world_size, length, segment_bytes) for rank in range(world_size)]
    posted, landed, done = [0] * world_size, [0] * world_size, [0] * world_size
    while any(done[rank] < len(plans[rank]) for rank in range(world_size)):
        rank = rng.randrange(world_size)
        plan, left = plans[rank], (rank - 1) % world_size
        move = rng.choice(["post", "land", "add"])
        if move == "post" and posted[rank] < len(plan) and plan[posted[rank]].after < done[rank]:
            posted[rank] += 1
        elif move == "land" and landed[rank] < posted[left]:
            exchange, sent = plan[landed[rank]], plans[left][landed[rank]]
            assert sent.send == exchange.receive, "both ends of an exchange mean the same bytes"
            low, high = sent.send
            buffers[rank][low:high] = (contributions if sent.own else buffers)[left][low:high]
            landed[rank] += 1
        elif move == "add" and done[rank] < landed[rank]:
            exchange = plan[done[rank]]
            if exchange.reduce:
                for index in range(*exchange.receive):
                    buffers[rank][index] += contributions[rank][index]
            done[rank] += 1
    return buffers


@pytest.mark.parametrize("world_size", range(2, 10))
def test_every_rank_ends_with_the_sum(world_size: int) -> None:
    rng = random.Random(world_size)
    for _ in range(12):
        length = rng.choice([1, 63, 64, 65, 640, 1500, 4097])
        segment_bytes = rng.choice([64, 128, 1000, 10_000])
        contributions = [[rng.randrange(1000) for _ in range(length)] for _ in range(world_size)]
        expected = [sum(column) for column in zip(*contributions, strict=True)]
        for buffer in simulate(contributions, segment_bytes, rng):
            assert buffer == expected, (world_size, length, segment_bytes)


@given(
    world_size=st.integers(1, 9),
    length=st.integers(0, 20_000),
    segment_bytes=st.sampled_from([64, 500, 4096, 1 << 20]),
)
def test_the_bytes_are_those_of_the_formula(world_size: int, length: int, segment_bytes: int) -> None:
    """2(N-1)/N of the bytes each; where the chunks are not equal, by less than two units a chunk."""
    total = 0
    for rank in range(world_size):
        sent = sum(e.send[1] - e.send[0] for e in ring(rank, world_size, length, segment_bytes))
        assert sent == bytes_sent(rank, world_size, length)
        assert abs(sent - 2 * (world_size - 1) / world_size * length) < 4 * UNIT_BYTES
        total += sent
    assert total == 2 * (world_size - 1) * length


def test_segments_keep_to_their_size() -> None:
    for length, world_size, segment_bytes in [(1 << 20, 2, 1 << 16), (1 << 20, 3, 1 << 16), (100, 4, 64)]:
        count = segments_per_chunk(length, world_size, segment_bytes)
        for rank in range(world_size):
            exchanges = ring(rank, world_size, length, segment_bytes)
            assert len(exchanges) == 2 * (world_size - 1) * count
            assert max(e.send[1] - e.send[0] for e in exchanges) <= segment_bytes + UNIT_BYTES


def test_a_chunk_is_halved_for_the_pipeline_where_halves_are_worth_a_message() -> None:
    mib = 1 << 20
    assert segments_per_chunk(2 * mib, 2, 4 * mib) == 2
    assert segments_per_chunk(2 * mib - 128, 2, 4 * mib) == 1
    assert segments_per_chunk(2 * mib, 2, 4 * mib, least_bytes=4 * mib) == 1
    assert segments_per_chunk(16 * mib, 2, 8 * mib, least_bytes=4 * mib) == 2


@pytest.mark.parametrize("world_size", range(1, 18))
def test_after_dissemination_everybody_has_heard_of_all(world_size: int) -> None:
    rounds = [dissemination(rank, world_size) for rank in range(world_size)]
    assert {len(each) for each in rounds} == {(world_size - 1).bit_length()}
    known = [{rank} for rank in range(world_size)]
    for number in range(len(rounds[0])):
        before = [set(each) for each in known]
        for rank in range(world_size):
            to, source = rounds[rank][number]
            assert rounds[source][number][0] == rank
            assert rounds[to][number][1] == rank
            known[rank] |= before[source]
    assert all(each == set(range(world_size)) for each in known)
