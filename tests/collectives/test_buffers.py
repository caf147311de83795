"""Buffers: one batch keeps its values, several are averaged, whatever the members and their shards."""

import pytest
import torch
from torch import Tensor, nn

from godmw.collectives.buffers import MAX_INTEGERS, SMALL_FLOATS, BufferTracker
from godmw.errors import InternalError, UsageError


def summed(trackers: list[BufferTracker]) -> list[Tensor]:
    return [torch.stack(parts).sum(0) for parts in zip(*(t.parts() for t in trackers), strict=True)]


class Counting(nn.Module):
    """A float, a counter that jumps by the input, a flag, and a mask that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("mask", torch.full((3,), float("-inf")))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, x: float) -> None:
        self.mean += x
        self.seen += int(x)
        self.flag |= x > 2
        self.cache = torch.zeros(int(x))


def batch(tracker: BufferTracker, model: nn.Module, x: float, weight: float, shard: int) -> None:
    tracker.begin_batch()
    model(x)
    tracker.end_batch(weight, shard)


def test_changes_are_averaged_and_counters_take_the_maximum() -> None:
    models = [Counting(), Counting()]
    trackers = [BufferTracker([("", model)]) for model in models]
    for tracker in trackers:
        tracker.reset(3)
    batch(trackers[0], models[0], 1.0, 2.0, 0)
    batch(trackers[0], models[0], 4.0, 1.0, 1)
    batch(trackers[1], models[1], 2.0, 5.0, 2)
    results = summed(trackers)
    for tracker, model in zip(trackers, models, strict=True):
        assert not tracker.absorb(results)
        tracker.commit(results, 8.0)
        # (2 * 1 + 1 * 4 + 5 * 2) / 8 = 2
        assert model.mean.tolist() == [3.0, 4.0]
        assert model.seen.item() == 4
        assert model.flag.item() is True
        assert model.mask.tolist() == [float("-inf")] * 3


def test_a_member_without_shards_gets_the_same_values() -> None:
    models = [Counting(), Counting()]
    trackers = [BufferTracker([("", model)]) for model in models]
    for _ in range(2):
        for tracker in trackers:
            tracker.reset(1)
        batch(trackers[0], models[0], 1.0, 7.0, 0)
        results = summed(trackers)
        for tracker in trackers:
            tracker.commit(results, 7.0)
    for model in models:
        assert model.mean.tolist() == [3.0, 4.0]
        assert model.seen.item() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_batch_over_everything_keeps_its_values(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, plain = nn.BatchNorm1d(5).to(dtype), nn.BatchNorm1d(5).to(dtype)
    tracker = BufferTracker([("norm", ours)])
    for step in range(3):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step)).to(dtype) * 1e3
        tracker.reset(4)
        tracker.begin_batch()
        ours(x)
        tracker.end_batch(1.0, 0, whole=True)
        tracker.commit(tracker.parts(), 1.0, whole=True)
        plain(x)
        for a, b in zip(ours.buffers(), plain.buffers(), strict=True):
            assert torch.equal(a, b)


def test_batch_norm_over_shards_is_the_mean_of_its_shards() -> None:
    model = nn.BatchNorm1d(3)
    tracker = BufferTracker([("", model)])
    tracker.reset(2)
    halves = torch.randn(2, 6, 3).double()
    for shard in range(2):
        tracker.begin_batch()
        model(halves[shard].float())
        tracker.end_batch(6.0, shard)
    tracker.commit(tracker.parts(), 12.0)
    expected = 0.1 * halves.mean(1).mean(0)  # momentum 0.1, from zero
    torch.testing.assert_close(model.running_mean.double(), expected, rtol=1e-5, atol=1e-6)
    assert model.num_batches_tracked.item() == 1


def test_restore_shows_the_state_of_the_boundary() -> None:
    model = Counting()
    tracker = BufferTracker([("", model)])
    tracker.reset(2)
    batch(tracker, model, 5.0, 1.0, 0)
    tracker.restore()
    assert (model.mean.tolist(), model.seen.item(), model.flag.item()) == ([1.0, 2.0], 0, False)
    tracker.commit(tracker.parts(), 1.0)
    assert model.mean.tolist() == [6.0, 7.0]


class Replacing(nn.Module):
    """Assigns a new tensor where others write in place; the buffer may be large."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(size, dtype=dtype))

    def forward(self, x: float) -> None:
        self.table = self.table + int(x)


def test_a_replaced_buffer_stays_the_tensor_it_was() -> None:
    model = Replacing(2)
    kept = model.table
    tracker = BufferTracker([("", model)])
    tracker.reset(2)
    batch(tracker, model, 2.0, 1.0, 0)
    batch(tracker, model, 4.0, 3.0, 1)
    tracker.commit(tracker.parts(), 4.0)
    assert model.table is kept
    assert model.table.tolist() == [3.5, 3.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_large_buffer_is_sent_once_it_changes(dtype: torch.dtype) -> None:
    size = SMALL_FLOATS + 1 if dtype.is_floating_point else 100
    models = [Replacing(size, dtype), Replacing(size, dtype)]
    trackers = [BufferTracker([("model", model)]) for model in models]
    for tracker in trackers:
        tracker.reset(2)
    quiet = sum(part.numel() for part in trackers[0].parts())
    assert quiet <= 3
    batch(trackers[1], models[1], 4.0, 1.0, 1)  # one member alone sees it change
    results = summed(trackers)
    with pytest.raises(InternalError, match=r"model\.table changed and was not sent"):
        trackers[0].commit(results, 1.0)
    assert [tracker.absorb(results) for tracker in trackers] == [True, True]
    results = summed(trackers)
    for tracker, model in zip(trackers, models, strict=True):
        assert not tracker.absorb(results)
        tracker.commit(results, 1.0)
        assert torch.equal(model.table, torch.full((size,), 4, dtype=dtype))
    late = BufferTracker([("model", models[0])])
    late.load_state_dict(trackers[0].state_dict())
    late.reset(2)
    trackers[0].reset(2)
    assert [p.shape for p in late.parts()] == [p.shape for p in trackers[0].parts()]


def test_too_many_integers_are_refused_by_name() -> None:
    model = Replacing(MAX_INTEGERS + 1, torch.int64)
    tracker = BufferTracker([("model", model)])
    tracker.reset(1)
    batch(tracker, model, 1.0, 1.0, 0)
    with pytest.raises(UsageError, match=r"model\.table with 4097"):
        tracker.absorb(tracker.parts())


def test_a_buffer_that_changes_shape_is_refused_by_name() -> None:
    model = nn.Module()
    model.register_buffer("grows", torch.zeros(2))
    tracker = BufferTracker([("", model)])
    tracker.reset(1)
    tracker.begin_batch()
    model.grows = torch.zeros(3)
    with pytest.raises(UsageError, match=r"buffer grows was .* \(2,\), a batch left it .* \(3,\)"):
        tracker.end_batch(1.0, 0)


def test_a_shard_contributed_twice_is_an_error() -> None:
    models = [Counting(), Counting()]
    trackers = [BufferTracker([("", model)]) for model in models]
    for tracker, model in zip(trackers, models, strict=True):
        tracker.reset(1)
        batch(tracker, model, 1.0, 1.0, 0)
    with pytest.raises(InternalError, match="shard 0 were contributed 2 times"):
        trackers[0].commit(summed(trackers), 2.0)


def test_no_buffers_cost_nothing() -> None:
    tracker = BufferTracker([("", nn.Linear(2, 2))])
    tracker.reset(8)
    tracker.begin_batch()
    tracker.end_batch(1.0, 0)
    assert tracker.parts() == []
    assert not tracker.absorb([])
    tracker.commit([], 1.0)


def test_a_change_between_steps_is_the_next_steps_value() -> None:
    model = Counting()
    tracker = BufferTracker([("", model)])
    tracker.reset(1)
    tracker.commit(tracker.parts(), 0.0)
    model.mean.fill_(10.0)
    model.seen = torch.tensor(7)
    tracker.reset(1)
    batch(tracker, model, 1.0, 1.0, 0)
    tracker.commit(tracker.parts(), 1.0)
    assert model.mean.tolist() == [11.0, 11.0]
    assert model.seen.item() == 8
