"""`DistributedTrainingManager`: the engine behind one call, for scripts written for DistributedDataParallel.

Takes what such a script has at hand (`door.py`) and makes one `job.steps` loop of it. The same file runs
under `godmw run`, under torchrun (`torchrun.py`) and as plain `python train.py`. Which worker computes what
is the engine's affair: a DistributedSampler's split is ignored, ranks are checked and not used. The
environment is read here, and changed only for the `godmw.join` that follows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from godmw.data.indices import default_shards
from godmw.errors import UsageError
from godmw.frontends import door, torchrun
from godmw.frontends.companion import see_off_at_exit
from godmw.worker import endings
from godmw.worker.job import Job, join

if TYPE_CHECKING:
    from godmw.worker.loops import StepLoop
    from godmw.worker.steps import Step

__all__ = ["DistributedTrainingManager", "TrainingResult"]

LOSSES_AT_ONCE = 4096  # of as many epochs in one recorded result
NAME = "DistributedTrainingManager"  # of what is recorded in the job


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a `train` did, the same on every worker, however late it joined.

    `losses`: of each epoch the mean loss over all its samples, as they were seen in training; `steps`:
    optimizer steps; `samples`: over all epochs and workers, each counted once an epoch.
    """

    losses: list[float]
    steps: int
    samples: int


class DistributedTrainingManager:
    """Trains a model on all workers of a job, and keeps it equal on them to the last bit.

        manager = godmw.DistributedTrainingManager("gloo", "env://", world_size=2, rank=0)
        result = manager.train(model, DataLoader(dataset, batch_size=32), optimizer, criterion, epochs=5)

    `backend`: "gloo", "nccl" or "auto" (NCCL where the model is on a GPU, else gloo). `init_method`, `rank`:
    what DistributedDataParallel scripts pass; checked, and of no other effect: workers find each other
    through godmw's master. `world_size`: the batch of one step is the loader's batch size times this,
    however many workers there are; left out (None or -1) it is WORLD_SIZE of the environment, or 1.

    The constructor opens a default process group of this process alone (gloo) if there is none, so that a
    `DistributedSampler(dataset)` can be built. Raises UsageError for what cannot be meant.
    """

    def __init__(
        self,
        backend: str = "auto",
        init_method: str | None = "env://",
        world_size: int | None = -1,
        rank: int | None = -1,
    ) -> None:
        self._launcher = door.launcher(os.environ)
        if self._launcher == "torchrun":
            see_off_at_exit()
        endings.watch()
        self.backend = door.backend(backend)
        door.init_method(init_method)
        self.world_size = door.whole("world_size", world_size, os.environ, 1)
        self.rank = door.whole("rank", rank, os.environ, 0)
        door.place(self.world_size, self.rank, self._launcher)
        self._job: Job | None = None
        self._objects: list[Any] = []
        self._trained = 0  # calls of train in this job
        if not dist.is_initialized():
            _open_group_of_one()

    @property
    def job(self) -> Job:
        """The job that `train` joined, with `is_leader`, `evaluate`, `once`, …. UsageError before that."""
        if self._job is None:
            raise UsageError("manager.job is there once train() was called", hint="manager.train(model, …)")
        return self._job

    def train(
        self,
        model: nn.Module,
        data_loader: DataLoader[Any],
        optimizer: Optimizer,
        criterion: Callable[..., Tensor],
        epochs: int,
    ) -> TrainingResult:
        """Train `model` for `epochs` passes over the data of `data_loader`.

        A batch is `(inputs, target)`, or `(input, …, target)`: tensors [n, …] or containers of them. It is
        moved to the device of the model's first parameter; `criterion(model(*inputs), target)` is a scalar,
        the mean over the n samples. (A criterion that averages over anything else, such as tokens or class
        weights, wants a `job.steps` loop and `step.backward(loss, weight=…)`.) The split into batches and
        their order are the job's: from the loader come the dataset, the batch size, whether it or its
        sampler shuffles, `drop_last`, `collate_fn` and `num_workers`. The model is put into training mode.

        Called again with the same model and optimizer it trains on. Raises UsageError for what cannot be
        meant, what `godmw.join` raises, and what the model, the criterion and the data raise.
        """
        door.objects(model, data_loader, optimizer, criterion, epochs)
        device = self._settle(model)
        job = self._joined([model, optimizer, *([criterion] if door.has_state(criterion) else [])])
        call = f"train {self._trained}"
        loop = self._loop(job, data_loader, epochs)
        self._trained += 1
        model.train()
        for step in loop:
            for batch in step:
                *inputs, target = _parts(batch, device)
                step.backward(criterion(model(*inputs), target))
            optimizer.step()
            _note(job, call, loop, step)
        return _result(job, call, epochs)

    def _settle(self, model: nn.Module) -> torch.device:
        """The model's device; the backend that goes with it is said to `godmw.join`."""
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"
        if self.backend == "nccl" and not on_gpu:
            raise UsageError(
                f'backend="nccl", but the model is on the {device.type}',
                hint='model.to(godmw.device()) before the optimizer is made, or backend="auto"',
            )
        if on_gpu:
            torch.cuda.set_device(device)
        fitting = "nccl" if on_gpu and dist.is_nccl_available() else "gloo"
        os.environ["GODMW_BACKEND"] = fitting if self.backend == "auto" else self.backend
        return device

    def _joined(self, objects: list[Any]) -> Job:
        """This process's place in a job that keeps `objects` equal."""
        if self._job is not None:
            if [id(item) for item in objects] == [id(item) for item in self._objects]:
                return self._job
            if self._launcher != "none":
                raise UsageError(
                    "train() again, with another model, optimizer or criterion: a job keeps one set equal",
                    hint="godmw.join(model, optimizer, other, …) takes them all: a job.steps loop for each",
                )
        if self._launcher == "torchrun":
            meeting = torchrun.meet(os.environ)
            os.environ.update(GODMW_JOIN=meeting.join.format(), GODMW_RUN_DIR=meeting.run_dir)
            self._launcher = "godmw"
        self._job, self._objects, self._trained = join(*objects), objects, 0
        return self._job

    def _loop(self, job: Job, loader: DataLoader[Any], epochs: int) -> StepLoop:
        """The loop over the job's batches: `world_size` is that of the workers who began.

        One that is started later may find another WORLD_SIZE in its environment. What it says to be let in
        does not depend on it.
        """
        size, own = loader.batch_size, self.world_size

        def loop(world_size: int) -> StepLoop:
            return job.steps(loader, batch_size=size and size * world_size, epochs=epochs)

        mine = loop(own)
        source = mine.source
        what = {
            "batch_size": size,
            "samples": source.length,
            "epochs": epochs,
            "shuffle": source.shuffle,
            "drop_last": source.drop_last,
        }
        shards = default_shards(source.batch_size)
        job._engine.stand(json.dumps(what), data=source.fingerprint(), shards=shards)
        agreed = int(job.once(f"{NAME} world_size", lambda: own))
        if self._launcher == "none" and agreed > 1 and not self._trained:
            sys.stderr.write(
                f"godmw: one worker trains alone, on batches of {source.batch_size} samples "
                f"(batch_size {size} × world_size {own}); "
                f"`godmw run --workers {own} {door.script()}` shares them out\n"
            )
        return mine if agreed == own else loop(agreed)


def _open_group_of_one() -> None:
    """The default process group, of this process alone. It would put [rank0] before errors everywhere."""
    hook = sys.excepthook
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    sys.excepthook = hook


# ---- a batch, and what it came to ----


def _parts(batch: Any, device: torch.device) -> list[Any]:
    if not isinstance(batch, (list, tuple)) or len(batch) < 2:
        parts = f" of {len(batch)}" if isinstance(batch, (list, tuple, dict)) else ""
        raise UsageError(
            f"a batch is a {type(batch).__name__}{parts}; (inputs, target) was expected",
            hint="take a loop of your own: job = godmw.join(model, optimizer); job.steps(loader, …)",
        )
    return [_moved(part, device) for part in batch]


def _moved(value: Any, device: torch.device) -> Any:
    """`value` with all its tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value


def _note(job: Job, call: str, loop: StepLoop, step: Step) -> None:
    """Add a committed step to its epoch's [sum of losses, samples, steps]: a part of the state."""
    rows = job.state.setdefault(NAME, {}).setdefault(call, [])
    if step.epoch - loop.first_epoch == len(rows):
        rows.append([0.0, 0, 0])
    row = rows[step.epoch - loop.first_epoch]
    row[0], row[1], row[2] = row[0] + step.loss * step.samples, row[1] + step.samples, row[2] + 1


def _result(job: Job, call: str, epochs: int) -> TrainingResult:
    """What the members know, recorded for those whose script comes by when the loop is finished."""
    names = range(0, epochs, LOSSES_AT_ONCE)
    parts = [job.once(f"{NAME} {call} from {first}", partial(_told, job, call, first)) for first in names]
    return TrainingResult(
        losses=[loss for part in parts for loss in part["losses"]],
        steps=sum(part["steps"] for part in parts),
        samples=sum(part["samples"] for part in parts),
    )


def _told(job: Job, call: str, first: int) -> dict[str, Any]:
    rows = job.state[NAME][call][first : first + LOSSES_AT_ONCE]
    return {
        "losses": [total / samples for total, samples, _ in rows],
        "samples": sum(samples for _, samples, _ in rows),
        "steps": sum(steps for _, _, steps in rows),
    }
