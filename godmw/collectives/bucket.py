"""Which parameter lies in which bucket, and where: pure arithmetic over sizes.

Gradients become ready from the last layer to the first, so buckets follow the reverse parameter order until
an observed order is known. The first bucket is small so that the first send starts early, the last one is
small so that little is left to wait for when backward ends, those between are cut evenly under a cap. The
same sizes and order give the same layout on every member. Nothing here knows of tensors or of who sends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BUCKET_BYTES = 25 << 20
EDGE_BYTES = 1 << 20
ALIGN_BYTES = 64  # every parameter and every part starts on a cache line


@dataclass(frozen=True)
class Item:
    """What a parameter needs: `numel` elements of `itemsize` bytes in the flat buffer called `kind`."""

    numel: int
    itemsize: int
    kind: str

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


@dataclass(frozen=True)
class Piece:
    """The place of parameter `index`: elements [start, start + numel) of part `part` of its bucket."""

    index: int
    part: int
    start: int
    numel: int


@dataclass(frozen=True)
class Part:
    """Elements [start, stop) of the flat buffer `kind`; gaps between pieces are padding, always zero."""

    kind: str
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    pieces: tuple[Piece, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class BucketLayout:
    """Buckets in the order they are sent; `lengths` are the elements of each flat buffer."""

    buckets: tuple[Bucket, ...]
    lengths: dict[str, int]
    order: tuple[int, ...]

    def bucket_of(self) -> dict[int, int]:
        """Parameter index -> bucket number."""
        return {piece.index: n for n, bucket in enumerate(self.buckets) for piece in bucket.pieces}


def lay_out(
    items: Mapping[int, Item],
    order: Sequence[int] | None = None,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    edge_bytes: int = EDGE_BYTES,
) -> BucketLayout:
    """The layout of `items` {index: item} in `order`, a permutation of its keys (default: falling).

    No bucket exceeds `bucket_bytes` unless one parameter alone does. Raises ValueError for anything that is
    not a permutation.
    """
    chosen = tuple(sorted(items, reverse=True)) if order is None else tuple(order)
    if sorted(chosen) != sorted(items):
        raise ValueError(f"the order is not a permutation of the {len(items)} parameters")
    if bucket_bytes < 1 or edge_bytes < 0:
        raise ValueError(f"bucket_bytes {bucket_bytes} and edge_bytes {edge_bytes} are not sizes")
    groups = _groups(items, chosen, bucket_bytes, min(edge_bytes, bucket_bytes))
    lengths: dict[str, int] = {}
    buckets = tuple(_place(items, group, lengths) for group in groups)
    return BucketLayout(buckets, lengths, chosen)


def _groups(items: Mapping[int, Item], order: Sequence[int], cap: int, edge: int) -> list[list[int]]:
    """Indices by bucket: a head of at least `edge` bytes, the middle under `cap`, a tail like the head."""
    head, rest = _take(items, order, edge)
    backwards, middle = _take(items, rest[::-1], edge)
    middle, tail = middle[::-1], backwards[::-1]
    if sum(items[i].nbytes for i in middle) < edge:
        joined = middle + tail
        if sum(items[i].nbytes for i in joined) <= cap:
            middle, tail = [], joined
    cut = [_even(items, head, cap), _even(items, middle, cap), _even(items, tail, cap)]
    return [group for groups in cut for group in groups]


def _take(items: Mapping[int, Item], order: Sequence[int], least: int) -> tuple[list[int], list[int]]:
    """The shortest prefix of at least `least` bytes (at least one parameter), and what follows it."""
    total = 0
    for position, index in enumerate(order):
        total += items[index].nbytes
        if total >= least:
            return list(order[: position + 1]), list(order[position + 1 :])
    return list(order), []


def _even(items: Mapping[int, Item], indices: Sequence[int], cap: int) -> list[list[int]]:
    """`indices` in runs of at most `cap` bytes, of about equal size; a parameter over `cap` is alone."""
    total = sum(items[i].nbytes for i in indices)
    count = max(1, -(-total // cap))
    target = -(-total // count)
    runs: list[list[int]] = []
    size = 0
    for index in indices:
        nbytes = items[index].nbytes
        if not runs or size >= target or (size and size + nbytes > cap):
            runs.append([])
            size = 0
        runs[-1].append(index)
        size += nbytes
    return runs


def _place(items: Mapping[int, Item], group: Sequence[int], lengths: dict[str, int]) -> Bucket:
    """One bucket, appended to the flat buffers whose `lengths` are kept; one part for each kind in it."""
    kinds = list(dict.fromkeys(items[i].kind for i in group))
    begin = {kind: lengths.get(kind, 0) for kind in kinds}
    used = dict.fromkeys(kinds, 0)
    pieces = []
    for index in group:
        item = items[index]
        pieces.append(Piece(index, kinds.index(item.kind), used[item.kind], item.numel))
        align = max(1, ALIGN_BYTES // item.itemsize)
        used[item.kind] += -(-item.numel // align) * align
    for kind in kinds:
        lengths[kind] = begin[kind] + used[kind]
    return Bucket(tuple(pieces), tuple(Part(kind, begin[kind], lengths[kind]) for kind in kinds))
