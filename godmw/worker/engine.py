"""The engine behind a `Job`: what must stay equal, where the script stands, one operation at a time.

Everything public (`job.py`, `steps.py`, `operations.py`, `passes.py`) goes through here to reach the other
members: `stand` before the first operation, `begin` to open one, `run` to carry it to its commit. It serves
and takes snapshots for the control, and keeps the stage that says what the script may do now. It knows
nothing of shards' contents, sockets or environment variables.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from godmw.checkpoint.snapshot import Snapshot
from godmw.checkpoint.state import StateRegistry, weights_sha256
from godmw.client.pace import REASON, Pace
from godmw.collectives.reducer import Reducer
from godmw.data.table import digest_word
from godmw.errors import GradientMisuse, Refused, UsageError
from godmw.worker.buffers import Buffers
from godmw.worker.guard import Guard
from godmw.worker.interface import Contribution, Control, Kind, Offer, Operation
from godmw.worker.progress import Progress
from godmw.worker.story import Story

if TYPE_CHECKING:
    from godmw.data.loader import Source

SOURCES_KEPT = 8
OWN = "godmw"  # the engine's part of the state


class Retrying(Contribution, Protocol):
    """A contribution of this package: it knows its operation, and how to be sent once more."""

    operation: Operation

    def retry(self, *, same_generation: bool) -> None: ...


class Engine:
    """`seed` is the one given to `join`, or None: then the first leader's generator decides."""

    def __init__(
        self,
        objects: Sequence[Any],
        named: dict[str, Any],
        control: Control,
        *,
        seed: int | None,
        own_seed: int,
        server: Any = None,
        pace: Pace | None = None,
    ) -> None:
        self.control = control
        self.progress = Progress(seed=own_seed if seed is None else seed)
        self._asked_seed = seed
        everything = [*objects, *named.values()]
        self.modules: list[nn.Module] = [item for item in everything if isinstance(item, nn.Module)]
        self.registry = StateRegistry(objects, named, {OWN: self.progress})
        self.reducer = Reducer(_parameters(self.modules))
        self.buffers = Buffers(self.modules)
        self.guard = Guard(everything, self.modules)
        self.closed = self.released = False
        self._sources: dict[tuple[int, str], tuple[Any, Source]] = {}
        self._server = server  # forks loader processes; None: made when it is needed
        self._pace = pace
        self.resize: list[Callable[[int, int], Any]] = []
        self.loop: Any = None  # the open loop, if there is one
        self.passes = 0  # how many job.epochs are open
        self.stop_asked: str | None = None
        self.stopped: str | None = None  # why the last loop ended early
        self.pass_stopped = False
        self.last_commit_s = self.wait_s = self.comm_s = 0.0
        self._inside = 0  # operations since the loop's last step
        self._prepared = False
        self._pending: Snapshot | None = None
        self._owed: Callable[[], None] | None = None
        self._world_size = 0
        self._laid_out: tuple[list[int], str] = (
            [],
            "".join("01"[p.requires_grad] for p in self.reducer.parameters),
        )

    # ---- standing at operations ----

    def stand(self, what: str, *, data: bytes, shards: int) -> None:
        """The script is about to do its first operation: become a member with state."""
        if self._prepared:
            return
        self.guard.warn_unregistered()
        settings = hashlib.sha256(what.encode()).digest()
        seed = -1 if self._asked_seed is None else self._asked_seed
        detail = f"{what}; {sum(p.numel() for p in self.reducer.parameters)} parameters"
        self.phase("joining")
        offer = Offer(settings, self.registry.layout_digest(trainable=False), data, shards, seed, detail)
        with self._leaving():
            self.control.prepare(offer, self)
        self._prepared = True
        self._world_size = self.control.world_size

    def arrive(self) -> None:
        """The script stands where the others stand: from here on its objects are the job's."""
        if self._pending is not None:
            snapshot, self._pending = self._pending, None
            self.registry.apply(snapshot)

    def _identity(self, kind: Kind, what: str) -> bytes:
        """8 bytes that members at the same place of the same script share."""
        progress = self.progress
        entries = len(progress.story.entries)
        place = [kind, what, progress.loops, progress.steps, entries, self._inside]
        if kind == "step":
            place[-1] = self._lay_out()
        return hashlib.blake2b(json.dumps(place).encode(), digest_size=8).digest()

    def _lay_out(self) -> str:
        """Lay the buckets out by what is state alone: the agreed order and what is trainable now."""
        trainable = "".join("01"[p.requires_grad] for p in self.reducer.parameters)
        if (self.progress.order, trainable) != self._laid_out:
            self.reducer.rebuild(self.progress.order)
            self._laid_out = (list(self.progress.order), trainable)
        return trainable

    def begin(self, kind: Kind, what: str, shards: int, make: Callable[[int], Retrying]) -> Operation:
        """Open the next operation with the contribution that `make(settings word)` builds."""
        self.progress.story.require_end(kind, what)
        self.arrive()
        self.pay()
        identity = self._identity(kind, what)
        contribution = make(digest_word(identity))
        start = time.perf_counter()
        self.phase("boundary")
        enterable = kind == "step" or self.loop is None
        with self._leaving():
            operation = self.control.open(kind, shards, contribution, identity=identity, enterable=enterable)
        self.wait_s = time.perf_counter() - start
        contribution.operation = operation
        if operation.world_size != self._world_size:
            old, self._world_size = self._world_size, operation.world_size
            for call in self.resize:
                call(old, self._world_size)
        return operation

    def run(
        self, operation: Operation, contribution: Retrying, compute: Callable[[Operation], None]
    ) -> None:
        """Carry an operation of one bucket to its commit; `compute` does what is in `todo()`."""
        while True:
            compute(operation)
            operation.launch(0)
            if self.finish(operation, contribution):
                break
        self._inside += self.loop is not None

    def finish(self, operation: Operation, contribution: Retrying) -> bool:
        """Wait for one attempt; False: `todo()` and everything after it once more."""
        generation = operation.generation
        self.phase("reduce")
        start = time.perf_counter()
        with self._leaving():
            committed = operation.finish()
        self.comm_s = time.perf_counter() - start
        if not committed:
            contribution.retry(same_generation=operation.generation == generation)
            return False
        return True

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """The control may end this process in good order: drained, or not needed any more."""
        try:
            yield
        except SystemExit:
            self.released = True
            raise

    def record(
        self,
        operation: Operation,
        kind: Kind,
        table: bytes,
        *,
        epoch: int = 0,
        step: int = -1,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        """Hand a committed operation to the control."""
        loop = self.progress.loops - 1 if self.loop is not None else self.progress.loops
        self.control.committed(
            operation,
            kind=kind,
            loop=max(loop, 0),
            epoch=epoch,
            step=step,
            table=table,
            metrics=metrics or {},
        )

    def owe(self, record: Callable[[], None]) -> None:
        """A step's record is complete when its body is over: whatever comes next pays it."""
        self._owed = record
        self._inside = 0

    def pay(self) -> None:
        """Hand over the record of the last step, if that is still owed."""
        if self._owed is not None:
            owed, self._owed = self._owed, None
            owed()

    def stop(self) -> None:
        """The members have agreed to end the loop, and the pass around it."""
        self.stopped = self.stop_asked or "asked for by another worker"
        self.stop_asked, self.pass_stopped = None, True

    def heed_pace(self, step: int | None = None) -> None:
        """Before step number `step`, or before a loop: wait for it, and ask to stop, where a rehearsal says
        so.
        """
        if self._pace is None:
            return
        self.pay()
        if self._pace.over(self.progress.steps) if step is None else self._pace.wait(step):
            self.stop_asked = REASON

    def phase(self, name: str) -> None:
        self.control.phase(name, self.progress.steps)

    # ---- what the control asks ----

    def snapshot(self, operation: int, records: Sequence[str] = ()) -> Snapshot:
        if self._pending is not None:
            return self._pending  # received and not yet written into the live objects
        progress = self.progress
        progress.operations, progress.records = operation, list(records)
        try:
            return self.registry.collect()
        finally:
            progress.operations, progress.records = 0, []

    def apply(self, snapshot: Snapshot) -> tuple[int, list[str]]:
        own = self.registry.check(snapshot)[OWN]
        if self._asked_seed is not None and own["seed"] != self._asked_seed:
            raise Refused(
                f"godmw.join(seed={self._asked_seed}), but the job runs with seed {own['seed']}",
                hint="leave seed out, or give the job's",
            )
        self.progress.seed = own["seed"]
        self.progress.onces = dict(own["onces"])
        self.progress.story = Story(list(own["story"]))
        self.progress.story.cursor = 0
        self._pending = snapshot
        self.guard.expect_replay()
        return int(own["operations"]), [str(record) for record in own["records"]]

    # ---- data ----

    def source(
        self, data: Any, arguments: dict[str, Any], take_over: Callable[..., Source], fork: Callable[[], Any]
    ) -> Source:
        """The source for `data`, one for the same arguments; the fork server is started when needed."""
        key = (id(data), repr(sorted(arguments.items())))
        if key not in self._sources:
            source = take_over(data, **arguments, server=self._server)
            if source.num_workers and self._server is None:
                self._server = fork()
                source = take_over(data, **arguments, server=self._server)
            self._sources[key] = (data, source)
            if len(self._sources) > SOURCES_KEPT:  # a script may wrap its data anew for every pass
                oldest = next(iter(self._sources))
                self._sources.pop(oldest)[1].close()
        self._sources[key] = self._sources.pop(key)
        return self._sources[key][1]

    def close(self) -> None:
        """The objects are the script's again, loader processes end."""
        self.closed = True
        self.reducer.close()
        self.guard.release()
        for _, source in self._sources.values():
            source.close()
        if self._server is not None:
            self._server.close()

    # ---- what the script may do ----

    def require_free(self, call: str) -> None:
        """Raise unless `call`, something all members do together, may stand here."""
        self.guard.raise_fault()
        if self.guard.step is not None:
            raise GradientMisuse(
                f"{call} inside step {self.guard.step}: its batches are not finished",
                hint=f"call {call} after the inner loop `for batch in step`, where all stand together",
            )

    def summary(self) -> dict[str, Any]:
        """What the leader knows of the job's end."""
        progress = self.progress
        weights = weights_sha256(self.modules[0]) if len(self.modules) == 1 else None
        return {
            "steps": progress.steps,
            "samples": progress.samples,
            "epochs": progress.epochs,
            "loss_first": progress.loss_first,
            "loss_last": progress.loss_last,
            "weights_sha256": weights or weights_sha256(nn.ModuleList(self.modules)),
        }


def _parameters(modules: Sequence[nn.Module]) -> list[tuple[str, nn.Parameter]]:
    found = []
    for number, module in enumerate(modules):
        prefix = f"{number}." if number else ""
        found += [(prefix + name, parameter) for name, parameter in module.named_parameters()]
    return found


def check_number(name: str, value: float) -> float:
    """A finite weight of at least 0. UsageError otherwise."""
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{name}={value!r}: a number of 0 or more was expected")
    return float(value)
