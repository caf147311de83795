"""One worker is plain torch: the same bits as a loop that anybody would write over the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import godmw
from godmw.data.audit import audit
from godmw.data.batches import fuse
from godmw.data.indices import LoopSpec
from godmw.errors import UsageError
from godmw.monitor.metrics import read_metrics

SAMPLES, BATCH, EPOCHS = 70, 16, 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(SAMPLES, 3, 8, 8, generator=generator), torch.randint(
        0, 5, (SAMPLES,), generator=generator
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.GELU(), nn.Linear(32, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


def build(make: Callable[[], nn.Module], kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(11)
    model = make()
    return model, MAKERS[kind](model.parameters())


def spec(**more: Any) -> LoopSpec:
    return LoopSpec(length=SAMPLES, batch_size=BATCH, epochs=EPOCHS, seed=3, **more)


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, loop: LoopSpec, micro_batch: int
) -> list[float]:
    """The loop without godmw: weight x gradient summed over the micro-batches in order, then divided."""
    x, y = data()
    losses = []
    for step in range(loop.total_steps):
        indices, bounds = loop.step_indices(step), loop.shard_bounds(step)
        parts = [
            torch.from_numpy(batch.take(indices))
            for batch in fuse(
                range(len(bounds)), bounds, micro_batch, batch_statistics=loop.batch_statistics
            )
        ]
        sums: list[torch.Tensor] = []
        total = 0.0
        for part in parts:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[part]), y[part])
            loss.backward()
            weight = 1.0 if len(parts) == 1 else float(len(part))
            weighted = [p.grad * weight for p in model.parameters() if p.grad is not None]
            sums = [a + b for a, b in zip(sums, weighted, strict=True)] if sums else weighted
            total += len(part) * float(loss.detach())
        for p, summed in zip(model.parameters(), sums, strict=True):
            p.grad = summed if len(parts) == 1 else summed / len(indices)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total / len(indices))
    return losses


def ours(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> list[float]:
    job = godmw.join(model, optimizer, seed=3)
    losses = []
    for step in job.steps(TensorDataset(*data()), batch_size=BATCH, epochs=EPOCHS, **options):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(step.loss)
    job.close()
    return losses


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("make", "micro_batch", "more"),
    [
        (mlp, BATCH, {}),
        (mlp, 4, {}),
        (mlp, 5, {}),
        (mlp, 1, {}),
        (mlp, BATCH, {"shuffle": False, "drop_last": True}),
        (mlp, 7, {"shards": 3}),
        (cnn, BATCH, {}),
    ],
)
def test_one_worker_has_the_bits_of_plain_torch(
    kind: str, make: Callable[[], nn.Module], micro_batch: int, more: dict[str, Any]
) -> None:
    theirs, their_optimizer = build(make, kind)
    loop = spec(batch_statistics=make is cnn, **more)
    expected = plain(theirs, their_optimizer, loop, micro_batch)
    mine, my_optimizer = build(make, kind)
    losses = ours(mine, my_optimizer, micro_batch=micro_batch, **more)
    assert losses == expected
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], tensor), name


def test_what_is_written_and_that_it_proves_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    monkeypatch.setenv("GODMW_RUN_DIR", str(run_dir))
    model, optimizer = build(mlp, "sgd")
    losses = ours(model, optimizer)
    report = audit(run_dir / "ledger")
    assert (report.epochs, report.samples, report.missing, report.repeated) == (3, 210, 0, 0)
    assert report.clean
    metrics = read_metrics(run_dir / "metrics.jsonl")
    assert metrics["loss"] == losses
    assert metrics["step"] == list(range(15))
    assert metrics["epoch"] == [n // 5 for n in range(15)]
    assert metrics["samples"] == [16, 16, 16, 16, 6] * 3
    assert set(metrics["world_size"]) == {1}


def test_with_no_address_and_no_directory_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GODMW_RUN_DIR", raising=False)
    monkeypatch.delenv("GODMW_JOIN", raising=False)
    ours(*build(mlp, "sgd"))
    assert list(tmp_path.iterdir()) == []


def test_a_used_directory_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GODMW_RUN_DIR", str(tmp_path))
    ours(*build(mlp, "sgd"))
    with pytest.raises(UsageError, match="holds a run already"):
        ours(*build(mlp, "sgd"))
