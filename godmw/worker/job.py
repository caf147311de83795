"""`godmw.join` and the `Job` it returns: the whole of what a training script calls.

A thin face: arguments are checked here, the work is in the engine's modules. The environment is read here
and nowhere else in the engine: with an address the worker joins others, without one the job has one worker
and the same script runs to the same result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from godmw.client.pace import Pace
from godmw.client.rundir import RunDir
from godmw.config import JoinAddress, read_join_file
from godmw.data.loader import Source, start_fork_server, take_over
from godmw.errors import UsageError
from godmw.worker import endings, lifeline, operations, passes
from godmw.worker.alone import AloneControl
from godmw.worker.engine import OWN, Engine
from godmw.worker.interface import Control
from godmw.worker.loops import LoopOptions, StepLoop
from godmw.worker.passes import Epoch
from godmw.worker.steps import Step
from godmw.worker.surroundings import Surroundings

__all__ = ["Epoch", "Job", "Step", "device", "join"]

SEED_LIMIT = 2**63
_current: Job | None = None


def device() -> torch.device:
    """The device of this worker's slot: its CUDA device where it has one, else the CPU."""
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def join(*objects: Any, seed: int | None = None, **named: Any) -> Job:
    """Join the job, or be its one worker.

    `objects` and `named` are all that must stay equal on all workers: modules, optimizers, schedulers, and
    whatever else has `state_dict` and `load_state_dict`. `seed` orders the samples and seeds user code
    (default: the leader's `torch.initial_seed()`). Raises UsageError for objects that cannot be kept equal.
    """
    global _current
    endings.watch()
    everything = {f"argument {n + 1}": item for n, item in enumerate(objects)} | named
    for name, item in everything.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(
                f"godmw.join: {name} is a {type(item).__name__}, which has no state_dict",
                hint="give modules, optimizers, schedulers; plain values belong into job.state",
            )
    if not any(isinstance(item, nn.Module) for item in everything.values()):
        raise UsageError(
            "godmw.join: no module among the objects", hint="job = godmw.join(model, optimizer)"
        )
    if OWN in named:
        raise UsageError(f"godmw.join({OWN}=…): the name is taken", hint="choose another name")
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_LIMIT
    ):
        raise UsageError(f"seed={seed!r}: a whole number of 0 or more, below 2**63, was expected")
    if _current is not None:
        _current.close()
    address = _address(os.environ)
    if _current is None and (descriptor := os.environ.get("GODMW_LIFELINE", "")).isdigit():
        lifeline.hold(int(descriptor))
    server = start_fork_server() if address is not None else None  # before any socket exists
    engine = Engine(
        objects,
        named,
        _control(address, os.environ),
        seed=seed,
        own_seed=torch.initial_seed() % SEED_LIMIT,
        server=server,
        pace=Pace(os.environ["GODMW_PACE"]) if os.environ.get("GODMW_PACE") else None,
    )
    _current = Job(engine)
    endings.install(engine)
    return _current


def _control(address: JoinAddress | None, environment: Mapping[str, str]) -> Control:
    """The control plane that the environment asks for."""
    if address is not None:
        from godmw.worker.control import Control as JoinedControl  # one worker alone needs no sockets

        control = JoinedControl(Surroundings.read(environment, address))
        control.start()
        return control
    directory = environment.get("GODMW_RUN_DIR")
    return AloneControl(Path(directory) if directory else None)


def _address(environment: Mapping[str, str]) -> JoinAddress | None:
    """Where a master is, if one is named: the address itself, or the run directory it lives in."""
    text = environment.get("GODMW_JOIN")
    if text:
        address = read_join_file(text[1:]) if text.startswith("@") else JoinAddress.parse(text)
        if not address.token:
            raise UsageError(
                f"GODMW_JOIN={address.bare()} has no token",
                hint="paste the whole GODMW_JOIN line that `godmw master` printed",
            )
        return address
    directory = environment.get("GODMW_RUN_DIR")
    return RunDir(directory).living() if directory else None


class Job:
    """What `join` returns. All its operations are done by all workers in the same order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # ---- training ----

    def steps(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        shards: int | None = None,
        micro_batch: int | None = None,
        reduction: str = "fast",
        codec: Any = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        sampler: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        non_finite: str = "stop",
    ) -> StepLoop:
        """Optimizer steps over `data`, a map-style dataset or a DataLoader, for `epochs` passes or `steps`.

        `batch_size` is global: the samples of one step over all workers, however many there are. `shards`
        is how finely a step can be divided (default min(batch_size, 64)), `micro_batch` how many samples a
        worker's batch has at most (default: its share at the start). `non_finite="skip"` leaves out a step
        whose loss or gradient is not finite, "stop" ends the job. Raises UsageError.
        """
        options = LoopOptions(
            epochs=epochs,
            steps=steps,
            shards=shards,
            micro_batch=micro_batch,
            reduction=reduction,
            codec=codec,
            non_finite=non_finite,
        )
        if sampler is not None:
            raise UsageError(
                "sampler= is not built yet", hint="shuffle=True or shuffle=False says the order"
            )
        source = self._source(
            data,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            collate_fn=collate_fn,
            num_workers=num_workers,
        )
        return StepLoop(self._engine, source, options)

    def epochs(self, count: int) -> Iterator[Epoch]:
        """`count` passes: `for epoch in job.epochs(3): for step in epoch.steps(data, batch_size=256): …`.

        The body is run once for each pass by every worker that was there; one that joins later skips the
        finished passes with their body. `job.stop` in a pass ends the passes after its body.
        """
        return passes.epochs(self._engine, count, self.steps)

    def stop(self, reason: str = "") -> None:
        """End the loop, and the `job.epochs` around it, for all workers after the same step.

        In the inner loop of a step it is that step, anywhere else in a loop the next one. Outside loops it
        is the next loop that ends before it begins. One worker's word is enough.
        """
        self._engine.guard.raise_fault()
        self._engine.stop_asked = str(reason) or "job.stop"

    @property
    def stopped(self) -> str | None:
        """Why the last loop was ended by `job.stop`, None when it was not."""
        return self._engine.stopped

    # ---- together ----

    def evaluate(self, fn: Callable[[Any], Any], data: Any, *, batch_size: int | None = None) -> Any:
        """The sums of `fn(batch)` over `data`, each sample once, shared out to all workers.

        `fn` returns a number, a tuple of numbers or a dict of them: sums over its batch; tensors are added
        too. The totals are the same bits on every worker and for every number of workers. Gradients are off
        and random numbers are as they were afterwards; `model.eval()` is the script's affair.
        """
        source = self._source(data, batch_size=batch_size, shuffle=False, drop_last=False)
        return operations.evaluate(self._engine, fn, source)

    def allreduce(self, value: Any, op: str = "sum") -> Any:
        """The sum (or `op="mean"`) over all workers of a tensor or number; each worker counts once."""
        return operations.allreduce(self._engine, value, op)

    def once(self, name: str, fn: Callable[[], Any]) -> Any:
        """Run `fn` on one worker, once in the job's life; everyone gets its value."""
        return operations.once(self._engine, name, fn)

    # ---- the job ----

    @property
    def state(self) -> dict[str, Any]:
        """Values (JSON and tensors) that are part of the state: a worker that joins has them."""
        return self._engine.progress.script

    @property
    def is_leader(self) -> bool:
        """Whether this worker has rank 0 at the moment."""
        return self._engine.control.rank == 0

    @property
    def world_size(self) -> int:
        """The number of members at the moment."""
        return self._engine.control.world_size

    @property
    def run_id(self) -> str:
        return self._engine.control.run_id

    def busy(self, label: str, limit_s: float) -> AbstractContextManager[None]:
        """`with job.busy("saving", 300):` lets the others wait that long for this worker."""
        if not limit_s > 0:
            raise UsageError(f"job.busy(limit_s={limit_s!r}): seconds, more than 0, were expected")
        return self._engine.control.busy(label, limit_s)

    def on_resize(self, fn: Callable[[int, int], Any]) -> None:
        """Call `fn(old, new)` at the boundary where the number of workers changes."""
        self._engine.resize.append(fn)

    def close(self) -> None:
        """End the job here instead of at the script's end; the objects are the script's again."""
        global _current
        if self._engine.closed:
            return
        endings.close(self._engine)
        self._engine.close()
        if _current is self:
            _current = None

    def _source(self, data: Any, **arguments: Any) -> Source:
        return self._engine.source(data, arguments, take_over, start_fork_server)
