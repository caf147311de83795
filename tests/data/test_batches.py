"""Micro-batches: what fits together, what is cut, and every index once over a grid of sizes."""

import numpy as np
import pytest

from godmw.data.batches import Batch, fuse, group
from godmw.data.indices import LoopSpec, cut
from godmw.membership.assignment import default_share


def sizes(batches: list[Batch]) -> list[int]:
    return [batch.samples for batch in batches]


def test_whole_shards_are_fused_while_they_fit() -> None:
    bounds = cut(16, 8)  # eight shards of two
    assert fuse(range(8), bounds, 16) == [Batch(tuple(range(8)), tuple(bounds), tuple(range(8)))]
    assert sizes(fuse(range(8), bounds, 6)) == [6, 6, 4]
    assert fuse([1, 4, 7], bounds, 4) == [
        Batch((1, 4), ((2, 4), (8, 10)), (1, 4)),
        Batch((7,), ((14, 16),), (7,)),
    ]
    assert fuse([], bounds, 4) == []


def test_a_large_shard_is_cut_evenly_and_complete_with_its_last_piece() -> None:
    bounds = cut(14, 2)  # two shards of seven
    assert fuse([1], bounds, 3) == [
        Batch((1,), ((7, 10),), ()),
        Batch((1,), ((10, 12),), ()),
        Batch((1,), ((12, 14),), (1,)),
    ]


def test_large_and_small_shards_side_by_side() -> None:
    bounds = cut(11, 4)  # 3, 3, 3, 2
    batches = fuse(range(4), bounds, 2)
    assert [(batch.shards, batch.samples) for batch in batches] == [
        *[((shard,), size) for shard in range(3) for size in (2, 1)],
        ((3,), 2),
    ]


def test_batch_statistics_never_leave_one_sample_alone() -> None:
    bounds = cut(6, 2)  # 3, 3
    assert sizes(fuse(range(2), bounds, 2, batch_statistics=True)) == [3, 3]
    assert sizes(fuse([0], [(0, 5)], 2, batch_statistics=True)) == [3, 2]
    assert sizes(fuse([0], [(0, 1)], 1, batch_statistics=True)) == [1]
    assert sizes(fuse([0], [(0, 5)], 2)) == [2, 2, 1]


@pytest.mark.parametrize(
    ("sizes", "limit", "groups"),
    [
        ([1] * 10, 4, [3, 4, 3]),
        ([3, 3, 3, 2, 2, 2, 2], 9, [9, 8]),
        ([2, 2, 1, 1, 1, 1, 1, 1], 5, [5, 5]),
        ([4, 4, 4], 4, [4, 4, 4]),
        ([2, 2, 2], 100, [6]),
    ],
)
def test_groups_are_few_and_even(sizes: list[int], limit: int, groups: list[int]) -> None:
    found = group(sizes, limit)
    assert [sum(sizes[start:end]) for start, end in found] == groups


def test_groups_are_as_few_as_can_be() -> None:
    """Against taking as much as fits from the left, which is known to need the fewest."""
    for samples in range(1, 40):
        for parts in range(1, samples + 1):
            lengths = [high - low for low, high in cut(samples, parts)]
            for limit in range(max(lengths), 12):
                greedy, room = 0, 0
                for length in lengths:
                    if length > room:
                        greedy, room = greedy + 1, limit
                    room -= length
                found = group(lengths, limit)
                assert len(found) == greedy
                assert [start for start, _ in found] == [0, *[end for _, end in found[:-1]]]
                assert all(sum(lengths[start:end]) <= limit for start, end in found)
                assert found[-1][1] == len(lengths)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="micro_batch=0"):
        fuse([0], [(0, 1)], 0)
    with pytest.raises(ValueError, match="ascend"):
        fuse([1, 1], cut(4, 2), 2)


@pytest.mark.parametrize("length", [1, 5, 7, 17, 63, 65])
@pytest.mark.parametrize("shards", [1, 3, 64])
def test_every_index_once_an_epoch_for_any_batch_and_any_number_of_workers(length: int, shards: int) -> None:
    for batch_size in range(1, 65):
        spec = LoopSpec(length=length, batch_size=batch_size, epochs=1, shards=shards, seed=batch_size)
        for world_size in range(1, 5):
            handed_out = []
            for step in range(spec.total_steps):
                indices, bounds = spec.step_indices(step), spec.shard_bounds(step)
                micro_batch = max(1, batch_size // world_size)
                for rank in range(world_size):
                    for batch in fuse(default_share(len(bounds), world_size, rank), bounds, micro_batch):
                        assert batch.samples <= micro_batch
                        handed_out.append(batch.take(indices))
            assert np.array_equal(np.sort(np.concatenate(handed_out)), np.arange(length))
