"""How a member cuts its shards into micro-batches: small ones together, a large one in pieces.

Pure arithmetic on the bounds of a step's shards.  A micro-batch never holds more than `micro_batch` samples
(batch statistics excepted, where a piece of one sample would be refused by batch-norm), and the cut is as
even as the shards allow, so that after deaths a survivor has more batches, never larger ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from godmw.data.indices import Bounds, Indices, cut


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: `spans[i]` = (low, high) of shard `shards[i]`'s part of it, in the step's slice.

    `complete` are the shards whose last sample it holds.
    """

    shards: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    complete: tuple[int, ...]

    @property
    def samples(self) -> int:
        return sum(high - low for low, high in self.spans)

    def take(self, step_indices: Indices) -> Indices:
        """The dataset indices of this batch, int64 [samples]."""
        return np.concatenate([step_indices[low:high] for low, high in self.spans])


def fuse(
    shards: Sequence[int], bounds: Bounds, micro_batch: int, *, batch_statistics: bool = False
) -> list[Batch]:
    """The micro-batches of `shards` (ascending numbers into `bounds`), in order, each shard in exactly
    one piece or, when it is larger than `micro_batch`, in several batches of its own.

    Raises ValueError when `micro_batch` < 1 or the shards do not ascend.
    """
    if micro_batch < 1:
        raise ValueError(f"micro_batch={micro_batch}: 1 or more was expected")
    if any(left >= right for left, right in pairwise(shards)):
        raise ValueError(f"shards must ascend: {list(shards)}")
    batches: list[Batch] = []
    run: list[int] = []
    for shard in shards:
        low, high = bounds[shard]
        if high - low <= micro_batch:
            run.append(shard)
            continue
        batches += _whole(run, bounds, micro_batch)
        run = []
        batches += _pieces(shard, low, high, micro_batch, batch_statistics)
    return batches + _whole(run, bounds, micro_batch)


def _pieces(shard: int, low: int, high: int, micro_batch: int, batch_statistics: bool) -> list[Batch]:
    """One large shard in even batches."""
    samples = high - low
    parts = -(-samples // micro_batch)
    if batch_statistics:
        parts = min(parts, max(1, samples // 2))
    spans = [(low + start, low + end) for start, end in cut(samples, parts)]
    return [Batch((shard,), (span,), (shard,) if span[1] == high else ()) for span in spans]


def _whole(run: Sequence[int], bounds: Bounds, micro_batch: int) -> list[Batch]:
    """Small shards together."""
    sizes = [bounds[shard][1] - bounds[shard][0] for shard in run]
    batches = []
    for start, end in group(sizes, micro_batch):
        part = tuple(run[start:end])
        batches.append(Batch(part, tuple(bounds[shard] for shard in part), part))
    return batches


def group(sizes: Sequence[int], limit: int) -> Bounds:
    """Consecutive sizes, each at most `limit`, in the fewest groups of at most `limit`, as even as they
    allow.

    >>> group([1] * 10, 4)
    [(0, 3), (3, 7), (7, 10)]
    """
    # starts[j]: the first start from which j groups reach the end, found from the right
    starts = [len(sizes)]
    while starts[-1] > 0:
        start, total = starts[-1], 0
        while start > 0 and total + sizes[start - 1] <= limit:
            start -= 1
            total += sizes[start]
        starts.append(start)
    groups: Bounds = []
    start, left = 0, sum(sizes)
    for still in range(len(starts) - 1, 0, -1):
        end, total = start, 0
        # what the groups after this one cannot hold must be in it; beyond that, to its fair part
        while end < len(sizes) and (
            end < starts[still - 1]
            or (total + sizes[end] <= limit and 2 * still * total + still * sizes[end] <= 2 * left)
        ):
            total += sizes[end]
            end += 1
        groups.append((start, end))
        start, left = end, left - total
    return groups
