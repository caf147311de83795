"""Several workers in one process: real engines in threads, and between them a control that keeps a script.

`Company` plays master, ring and agent: it assigns shards, adds up what members launch, kills a member at a
chosen place of a chosen operation, and lets workers join at one. Everything is in memory and in step, so a
test says exactly what happens. It holds the engine to `godmw.worker.interface`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from godmw.data.indices import cut
from godmw.worker.engine import Engine
from godmw.worker.job import Job

WAIT_S = 20.0
BEGIN, LAUNCH, FINISH = "begin", "launch", "finish"


class Killed(BaseException):
    """This worker dies here."""


class Bystander(AssertionError):
    """Another worker failed, so this one waits for nothing."""


class FakeOperation:
    """One member's view of an operation."""

    def __init__(self, company: Company, worker: str, number: int, shards: int, contribution: Any) -> None:
        self.company, self.me, self.number, self.shards = company, worker, number, shards
        self.contribution = contribution
        self.results: list[list[torch.Tensor]] = []
        self._begun: set[int] = set()
        self._launched: dict[int, list[torch.Tensor]] = {}
        self._enter()
        company.arrived(worker, number)

    def _enter(self) -> None:
        self.members = list(self.company.members)
        self.generation = self.company.generation
        self.rank, self.world_size = self.members.index(self.me), len(self.members)
        self._launched = {}

    def worker(self, rank: int) -> str:
        return self.members[rank]

    def todo(self) -> tuple[int, ...]:
        with self.company.lock:
            return tuple(sorted(self.company.assigned[self.me] - self._begun))

    def begin(self, shards: Sequence[int]) -> bool:
        with self.company.lock:
            if self.generation != self.company.generation:
                return False
            self._begun.update(shards)
        self.company.maybe_die(self.me, self.number, BEGIN)
        return True

    def launch(self, bucket: int) -> None:
        assert bucket == len(self._launched), "buckets go in order"
        parts = self.contribution.parts(bucket)
        assert all(part.dim() == 1 and part.is_contiguous() for part in parts)
        self._launched[bucket] = [part.clone() for part in parts]
        self.company.maybe_die(self.me, self.number, LAUNCH)

    def finish(self) -> bool:
        assert len(self._launched) == self.contribution.buckets, "every bucket is launched"
        self.company.maybe_die(self.me, self.number, FINISH)
        outcome = self.company.sum(self)
        if not outcome:
            self._enter()
        return outcome


class FakeControl:
    """One worker's place in the company."""

    alone = False
    incarnation = 0

    def __init__(self, company: Company, worker: str) -> None:
        self.company, self.worker, self.run_id = company, worker, "job-fake"
        self.rank = self.world_size = self.generation = 0
        self.records: list[dict[str, Any]] = []
        self.loops: list[str] = []
        self.phases: set[str] = set()
        self.summary: dict[str, Any] | None = None
        self._engine: Any = None

    def prepare(self, offer: Any, engine: Any) -> None:
        self._engine = engine
        snapshot = self.company.admit(self.worker, offer)
        if snapshot is not None:
            assert engine.apply(snapshot) == (self.company.position, [])
        self._look()

    def open(
        self, kind: str, shards: int, contribution: Any, *, identity: bytes, enterable: bool
    ) -> FakeOperation:
        number = self.company.boundary(self.worker, self._engine, kind, shards, identity, enterable)
        self._look()
        return FakeOperation(self.company, self.worker, number, shards, contribution)

    def _look(self) -> None:
        self.rank = self.company.members.index(self.worker)
        self.world_size, self.generation = len(self.company.members), self.company.generation

    def committed(self, operation: FakeOperation, **record: Any) -> None:
        self.records.append({"number": operation.number, **record})

    def loop_opened(self, loop: int, spec: str) -> None:
        self.loops.append(spec)

    def phase(self, name: str, step: int) -> None:
        self.phases.add(name)

    @contextmanager
    def busy(self, label: str, limit_s: float) -> Iterator[None]:
        yield

    def ended(self, summary: dict[str, Any], digest: bytes = b"") -> int:
        self.summary = summary
        return 0

    def failed(self, kind: str, code: int, traceback: str, step: int) -> None:
        self.summary = {"failed": kind}


class Company:
    """`kills` {worker: (operation, place)}; `joins` {worker: operation}: they enter before it is begun."""

    def __init__(
        self,
        workers: Sequence[str],
        *,
        kills: dict[str, tuple[int, str]] | None = None,
        joins: dict[str, int] | None = None,
    ) -> None:
        self.lock = threading.Condition()
        self.members = list(workers)
        self.generation, self.position = 1, 0
        self.assigned: dict[str, set[int]] = {}
        self.offers: dict[str, Any] = {}
        self.controls: dict[str, FakeControl] = {}
        self.jobs: dict[str, Job] = {}
        self.ends: dict[str, BaseException | Any] = {}
        self._founders = list(workers)
        self._kills, self._joins = dict(kills or {}), dict(joins or {})
        self._opened = -1  # the operation whose boundary has been passed
        self._standing: dict[str, tuple[Any, ...]] = {}
        self._snapshots: dict[str, Any] = {}
        self._inside: dict[str, int] = {}
        self._waiting: dict[str, FakeOperation] = {}
        self._outcomes: dict[int, bool] = {}

    # ---- what controls call ----

    def _wait(self, ready: Callable[[], bool]) -> None:
        if not self.lock.wait_for(lambda: ready() or bool(self._failures()), WAIT_S):
            raise AssertionError("the others never came")
        if self._failures():
            raise Bystander

    def _failures(self) -> list[str]:
        return [
            name
            for name, end in self.ends.items()
            if isinstance(end, BaseException) and not isinstance(end, Killed)
        ]

    def admit(self, worker: str, offer: Any) -> Any:
        """Founders bring their own state, joiners wait for a boundary and get a member's."""
        with self.lock:
            self.offers[worker] = offer
            self.lock.notify_all()
            if worker in self._founders:
                return None
            self._wait(lambda: worker in self._snapshots)
            return self._snapshots[worker]

    def boundary(
        self, worker: str, engine: Any, kind: str, shards: int, identity: bytes, enterable: bool
    ) -> int:
        with self.lock:
            if self._opened == self.position:  # a joiner: the others have passed it already
                assert self._mark[1:] == (kind, shards, identity), "the joiner stands somewhere else"
                return self.position
            self._standing[worker] = (engine, kind, shards, identity)
            self._mark = self._standing[worker]
            if self._all_standing():
                self._pass(engine, shards, enterable)
            else:
                number = self.position
                self._wait(lambda: self._opened == number)
            return self.position

    def _all_standing(self) -> bool:
        places = {place[1:] for place in self._standing.values()}
        assert len(places) == 1, f"scripts out of order: {places}"
        return set(self._standing) == set(self.members)

    def _pass(self, engine: Any, shards: int, enterable: bool) -> None:
        """All stand at the boundary: joiners enter, shards are dealt."""
        joiners = [worker for worker, at in self._joins.items() if at <= self.position] if enterable else []
        for worker in joiners:
            assert self.lock.wait_for(lambda name=worker: name in self.offers, WAIT_S)
            self._snapshots[worker] = engine.snapshot(self.position)
            del self._joins[worker]
        if joiners:
            self.members += joiners
            self.generation += 1
        bounds = cut(shards, min(shards, len(self.members))) if shards else []
        shares = [set(range(*bound)) for bound in bounds] + [set()] * len(self.members)
        self.assigned = {worker: set(share) for worker, share in zip(self.members, shares, strict=False)}
        self._standing.clear()
        self._opened = self.position
        self.lock.notify_all()

    def arrived(self, worker: str, number: int) -> None:
        """This worker has entered the operation."""
        with self.lock:
            self._inside[worker] = number
            self.lock.notify_all()

    def maybe_die(self, worker: str, number: int, place: str) -> None:
        if self._kills.get(worker) == (number, place):
            with self.lock:  # nobody dies before all are in it: a test says what it sees
                self._wait(lambda: all(self._inside.get(member) == number for member in self.members))
            raise Killed(worker)

    def bury(self, worker: str) -> None:
        """The verdict over a dead member: its shards go to the others."""
        with self.lock:
            self._waiting.clear()
            self.members.remove(worker)
            self.generation += 1
            for turn, shard in enumerate(sorted(self.assigned.pop(worker))):
                self.assigned[self.members[turn % len(self.members)]].add(shard)
            self.lock.notify_all()

    def sum(self, operation: FakeOperation) -> bool:
        with self.lock:
            if operation.generation != self.generation:
                return False
            self._waiting[operation.me] = operation
            if set(self._waiting) == set(self.members):
                self._add_up()
            else:
                self._wait(lambda: self._waiting.get(operation.me) is not operation)
            return self._outcomes.pop(id(operation), False)

    def _add_up(self) -> None:
        operations = [self._waiting[worker] for worker in self.members]
        judged = []
        for operation in operations:
            operation.results = [
                [
                    sum(parts[1:], parts[0].clone())
                    for parts in zip(*(o._launched[b] for o in operations), strict=True)
                ]
                for b in range(operation.contribution.buckets)
            ]
            judged.append(operation.contribution.accept(operation.results))
        assert len(set(judged)) == 1, "all members judge the same sums"
        for operation in operations:
            self._outcomes[id(operation)] = judged[0]
        if judged[0]:
            self.position += 1
        self._waiting.clear()
        self.lock.notify_all()

    # ---- what tests call ----

    def run(self, script: Callable[[Callable[..., Job], str], Any]) -> dict[str, Any]:
        """Run `script(join, worker)` as every founder and joiner; worker -> what it returned, or Killed."""
        torch.set_num_threads(1)
        workers = [*self._founders, *self._joins]
        threads = [
            threading.Thread(target=self._one, args=(script, worker), daemon=True) for worker in workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * WAIT_S)
        failures = [self.ends[worker] for worker in self._failures()]
        for failure in sorted(failures, key=lambda end: isinstance(end, Bystander)):
            raise failure
        return self.ends

    def _one(self, script: Callable[..., Any], worker: str) -> None:
        def join(*objects: Any, seed: int | None = None, **named: Any) -> Job:
            control = self.controls[worker] = FakeControl(self, worker)
            self.jobs[worker] = Job(Engine(objects, named, control, seed=seed, own_seed=99))
            return self.jobs[worker]

        try:
            end: Any = script(join, worker)
        except Killed as killed:
            self.ends[worker] = killed
            self.bury(worker)
            return
        except BaseException as error:
            end = error
        with self.lock:
            self.ends[worker] = end
            self.lock.notify_all()
