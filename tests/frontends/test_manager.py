"""One call trains what the loop of godmw.join trains, on the batch that a DDP script would have had."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import godmw
from godmw import DistributedTrainingManager
from godmw.errors import UsageError
from godmw.frontends import pytorch
from godmw.frontends.pytorch import TrainingResult
from godmw.worker import endings

SAMPLES = 50
Make = Callable[..., DistributedTrainingManager]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def build(seed: int = 5) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes managers; what they opened is closed when the test ends."""
    monkeypatch.setenv("GODMW_BACKEND", "")  # train says it; to be as it was afterwards
    for name in ("GODMW_JOIN", "GODMW_RUN_DIR", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    made: list[DistributedTrainingManager] = []

    def call(*args: Any, **named: Any) -> DistributedTrainingManager:
        made.append(DistributedTrainingManager(*args, **named))
        return made[-1]

    yield call
    for manager in made:
        if manager._job is not None:
            engine = manager._job._engine
            engine.loop = engine.guard.step = engine.guard._fault = None
            manager.job.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def train(manager: DistributedTrainingManager, loader: DataLoader, epochs: int = 3) -> tuple[Any, nn.Module]:
    model, optimizer = build()
    return manager.train(model, loader, optimizer, nn.CrossEntropyLoss(), epochs), model


def same(left: nn.Module, right: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_it_is_the_loop_of_join_on_the_batch_times_the_world_size(make: Make) -> None:
    result, model = train(make("gloo", "env://", world_size=2, rank=0), DataLoader(data(), 8, shuffle=True))

    expected, optimizer = build()
    job = godmw.join(expected, optimizer)
    sums = [0.0, 0.0, 0.0]
    for step in job.steps(data(), batch_size=16, epochs=3):
        for x, y in step:
            step.backward(F.cross_entropy(expected(x), y))
        optimizer.step()
        sums[step.epoch] += step.loss * step.samples
    job.close()

    assert same(model, expected)
    assert result == TrainingResult([total / SAMPLES for total in sums], steps=3 * 4, samples=3 * SAMPLES)
    assert result.losses[0] > result.losses[2]


def test_without_shuffling_it_is_the_plain_loop_to_the_last_bit(make: Make) -> None:
    result, model = train(make(world_size=1, rank=0), DataLoader(data(), 10), epochs=2)

    expected, optimizer = build()
    losses = []
    for _ in range(2):
        seen = []
        for x, y in DataLoader(data(), 10):
            loss = F.cross_entropy(expected(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(math.fsum(seen) / 5)
    assert same(model, expected)
    assert result.losses == pytest.approx(losses, rel=1e-12)


def test_the_split_of_a_distributed_sampler_is_ignored_and_its_order_is_not(make: Make) -> None:
    manager = make("gloo", "tcp://127.0.0.1:23456", world_size=1, rank=0)
    shuffled, model = train(manager, DataLoader(data(), 8, sampler=DistributedSampler(data())))
    split = DistributedSampler(data(), num_replicas=2, rank=0)
    assert len(split) == SAMPLES // 2
    again, other = train(make(world_size=1), DataLoader(data(), 8, sampler=split))
    assert shuffled.samples == 3 * SAMPLES
    assert shuffled == again
    assert same(model, other)
    in_order = DistributedSampler(data(), shuffle=False)
    assert (
        train(make(), DataLoader(data(), 8, sampler=in_order))[0] == train(make(), DataLoader(data(), 8))[0]
    )


def test_the_constructor_opens_a_group_of_one_and_leaves_another_alone(make: Make) -> None:
    assert not dist.is_initialized()
    endings.watch()
    hook = sys.excepthook
    make("gloo", "env://", world_size=4, rank=0)
    assert sys.excepthook is hook  # torch's would say [rank0] before the errors of every worker
    assert (dist.get_world_size(), dist.get_rank(), dist.get_backend()) == (1, 0, "gloo")
    opened = dist.group.WORLD
    make("auto", None)
    assert dist.group.WORLD is opened


def test_world_size_left_out_is_the_environments(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "5")
    monkeypatch.setenv("RANK", "0")
    manager = make("gloo")
    assert (manager.world_size, manager.rank) == (5, 0)
    result, _ = train(manager, DataLoader(data(), 2), epochs=1)
    assert result.steps == SAMPLES // 10


def test_alone_with_a_world_size_it_says_so_once(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    manager, (model, optimizer) = make(world_size=2), build()
    loader = DataLoader(data(), 8)
    for _ in range(2):
        manager.train(model, loader, optimizer, nn.CrossEntropyLoss(), 1)
    said = capsys.readouterr().err
    assert said.count("godmw:") == 1
    assert "one worker trains alone, on batches of 16 samples (batch_size 8 × world_size 2)" in said
    assert "godmw run --workers 2" in said
    train(make(world_size=1), loader)
    assert capsys.readouterr().err == ""


def test_called_again_it_trains_on(make: Make) -> None:
    manager, (model, optimizer) = make(), build()
    loader, criterion = DataLoader(data(), 10), nn.CrossEntropyLoss()
    first = manager.train(model, loader, optimizer, criterion, 2)
    second = manager.train(model, loader, optimizer, criterion, 1)
    assert (first.steps, second.steps) == (10, 5)
    assert second.losses[0] < first.losses[1] < first.losses[0]
    through, expected = train(make(), loader, epochs=3)
    assert first.losses + second.losses == through.losses
    assert same(model, expected)


def test_another_model_is_another_job_alone_and_refused_in_company(make: Make) -> None:
    manager = make()
    first, _ = train(manager, DataLoader(data(), 10))
    alone = manager.job
    second, _ = train(manager, DataLoader(data(), 10))
    assert first == second
    assert manager.job is not alone
    manager._launcher = "godmw"
    with pytest.raises(UsageError, match="another model, optimizer or criterion: a job keeps one set equal"):
        train(manager, DataLoader(data(), 10))


class Scaled(nn.Module):
    """A criterion with something to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.scale * scores, target)


def test_a_criterion_that_learns_is_trained_and_kept(make: Make) -> None:
    model = nn.Linear(4, 2)
    criterion = Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    manager = make()
    manager.train(model, DataLoader(data(), 10), optimizer, criterion, 1)
    assert criterion.scale.item() != 0.5
    assert manager.job._engine.modules == [model, criterion]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Takes(nn.Module):
    """Counts what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.calls: list[str] = []

    def forward(self, *inputs: Any) -> torch.Tensor:
        self.calls.append(", ".join(type(item).__name__ for item in inputs))
        last = inputs[-1]
        return self.linear(
            last["x"] if isinstance(last, dict) else last.left if isinstance(last, Pair) else last
        )


@pytest.mark.parametrize(
    ("collate", "called"),
    [
        (lambda x, y: (x, y), "Tensor"),
        (lambda x, y: [x, x, y], "Tensor, Tensor"),
        (lambda x, y: ({"x": x, "names": ["a"]}, y), "dict"),
        (lambda x, y: (Pair(x, y), y), "Pair"),
    ],
)
def test_batches(make: Make, collate: Callable[..., Any], called: str) -> None:
    model = Takes()
    loader = DataLoader(data(), 25, collate_fn=lambda rows: collate(*torch.utils.data.default_collate(rows)))
    make().train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy, 1)
    assert model.calls == [called] * 2


@pytest.mark.parametrize(
    ("collate", "seen"),
    [
        (lambda x, y: x, "a Tensor"),
        (lambda x, y: (x,), "a tuple of 1"),
        (lambda x, y: {"x": x, "y": y}, "a dict of 2"),
    ],
)
def test_a_batch_without_inputs_and_target(make: Make, collate: Callable[..., Any], seen: str) -> None:
    loader = DataLoader(data(), 25, collate_fn=lambda rows: collate(*torch.utils.data.default_collate(rows)))
    with pytest.raises(UsageError, match=f"a batch is {seen}; \\(inputs, target\\) was expected") as caught:
        train(make(), loader)
    assert "godmw.join(model, optimizer)" in (caught.value.hint or "")


def test_a_loader_that_is_not_taken_over_is_refused_by_name(make: Make) -> None:
    with pytest.raises(UsageError, match="batch_size=None makes no batches"):
        train(make(), DataLoader(data(), batch_size=None))


def test_the_model_is_put_into_training_mode(make: Make) -> None:
    model, optimizer = build()
    make().train(model.eval(), DataLoader(data(), 10), optimizer, F.cross_entropy, 1)
    assert model.training


def test_a_wrapped_model_is_refused(make: Make) -> None:
    manager, (model, optimizer) = make(), build()
    with pytest.raises(UsageError, match="wrapped in DistributedDataParallel"):
        manager.train(DistributedDataParallel(model), DataLoader(data(), 5), optimizer, F.cross_entropy, 1)


def test_nccl_and_a_model_on_the_cpu(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch.door, "backend", lambda name: name)  # as if there were a GPU
    with pytest.raises(UsageError, match='backend="nccl", but the model is on the cpu') as caught:
        train(make("nccl"), DataLoader(data(), 10))
    assert 'backend="auto"' in (caught.value.hint or "")


def test_the_job_is_there_after_train(make: Make) -> None:
    manager = make()
    with pytest.raises(UsageError, match="there once train\\(\\) was called"):
        manager.job  # noqa: B018
    train(manager, DataLoader(data(), 10))
    assert manager.job.is_leader
    assert manager.job.world_size == 1


def test_losses_of_many_epochs_are_recorded_in_parts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch, "LOSSES_AT_ONCE", 2)
    result, _ = train(make(), DataLoader(data(), 25), epochs=5)
    assert (len(result.losses), result.steps, result.samples) == (5, 10, 5 * SAMPLES)
    assert result.losses == sorted(result.losses, reverse=True)
