"""A worker's place in a job with a master: the shell around its participant.

Threads meet here under one lock, ``changed``: the control thread feeds messages, the main thread
opens, begins and waits, the communication thread asks to be whole and commits.  The participant
decides; this module performs its actions (links, snapshots, fetching state, leaving) and lets the
main thread wait for what they bring.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from godmw.clock import SystemClock
from godmw.errors import GodmwError
from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.participant import Participant
from godmw.membership.selfportrait import Identity
from godmw.protocol import messages as msg
from godmw.protocol.wire import decode, encode, header_of
from godmw.worker.agent.facts import Connected, Disconnected, Heard, OtherVersion
from godmw.worker.dataplane import DataPlane
from godmw.worker.interface import Contribution, Engine, Kind, Offer, Operation
from godmw.worker.operation import WAIT_S, Attempt, SharedOperation
from godmw.worker.postbox import Fact, Postbox
from godmw.worker.surroundings import Surroundings, main_thread_at

log = logging.getLogger(__name__)

Record = msg.Committed | msg.LoopOpened
LAST_WORDS_S = 1.0
LEAVE_WITHIN_S = 5.0  # a main thread that does not come by in time is ended
LOOK_AFTER_S = 1.0
BEAT_S, ORPHAN_S = 0.25, 600.0  # until the Welcome says


def written(record: Record) -> str:
    """A record as text, to travel with the state: the bytes in which it would be said."""
    header = header_of(record, job="", term=0, generation=0, sender="", incarnation=0, sequence=0)
    return base64.b64encode(encode(header, record)).decode()


def unwritten(text: str) -> Record:
    """The record that `written` described.  Raises WireError, ValueError."""
    record = decode(base64.b64decode(text, validate=True))[1]
    if not isinstance(record, (msg.Committed, msg.LoopOpened)):
        raise ValueError(f"a record was expected in the state, not {type(record).__name__}")
    return record


def _end_with_thread(what: threading.ExceptHookArgs) -> None:
    """An exception nobody expected in a thread of ours ends the process: half a worker must not go on."""
    threading.__excepthook__(what)
    if what.thread is not None and what.thread.name.startswith("godmw-"):
        sys.stderr.flush()
        os._exit(70)


class Control:
    """See ``interface.Control``."""

    alone = False

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self.changed = threading.Condition(threading.Lock())
        self.engine: Engine | None = None
        self.rank, self.world_size, self.generation = -1, 0, 0
        self._clock = SystemClock()
        self._exit: act.Exit | None = None
        self._exit_by_s: float | None = None
        self._wanted: set[int] = set()
        self._step = 0
        self._main = threading.main_thread()
        self._plane = DataPlane(surroundings, self._tell, lambda: self._step)
        identity = Identity(
            worker=surroundings.worker,
            incarnation=surroundings.incarnation,
            agent=surroundings.agent,
            host=surroundings.host,
            pid=os.getpid(),
            address=self._plane.address,
            token=surroundings.join.token,
        )
        self.participant = Participant(identity, beat_s=BEAT_S, orphan_s=ORPHAN_S, now_s=self._clock.now_s())
        self._postbox = Postbox(
            surroundings.join, surroundings.worker, surroundings.incarnation, self._heard, self._due_s
        )

    def start(self) -> None:
        threading.excepthook = _end_with_thread
        """Open the peer endpoint and the control thread; then wait for the master's Welcome."""
        self._postbox.start()
        deadline_s = self._clock.now_s() + self.surroundings.patience_s
        with self.changed:
            while not self.participant.registered:
                self.check()
                if self._clock.now_s() > deadline_s:
                    raise self.surroundings.unreachable()
                self.wait(WAIT_S)
            self._plane.name(self.worker)

    @property
    def worker(self) -> str:
        return self.participant.worker

    @property
    def incarnation(self) -> int:
        return self.participant.incarnation

    @property
    def run_id(self) -> str:
        return self.surroundings.run_id

    # ------------------------------------------------------------------ the main thread

    def prepare(self, offer: Offer, engine: Engine) -> None:
        self.engine = engine
        message = msg.Prepared(
            settings=offer.settings,
            model=offer.model,
            data=offer.data,
            shards=offer.shards,
            seed=offer.seed,
            detail=offer.detail[:4000],
        )
        self.phase("joining", self._step)
        with self.changed:
            self._perform(self.participant.prepare(message))
        while True:
            fetched = self._plane.take_fetched()
            if fetched is not None:
                generation, snapshot = fetched
                position, records = engine.apply(snapshot)
                self._tell(ev.StateApplied(generation, position, tuple(unwritten(text) for text in records)))
            self.serve_snapshots()
            with self.changed:
                self.check()
                if self.participant.generation > 0 and not self.participant.stopped:
                    break
                if self._plane.fetched is None:
                    self.wait(WAIT_S)
        self._pass_boundary()

    def open(
        self, kind: Kind, shards: int, contribution: Contribution, *, identity: bytes, enterable: bool
    ) -> Operation:
        while True:
            with self.changed:
                self.check()
                self._perform(self.participant.boundary(enterable))
            self.serve_snapshots()
            with self.changed:
                self.check()
                if self.participant.may_open(self._clock.now_s()):
                    number = self.participant.position
                    self._perform(
                        self.participant.step(ev.OperationOpened(number, shards), self._clock.now_s())
                    )
                    self._pass_boundary()
                    return SharedOperation(
                        self, number, shards, contribution, self._step, kind=kind, identity=identity
                    )
                self.phase("paused" if self.participant.stopped else "waiting", self._step)
                self.wait(WAIT_S)

    def committed(
        self,
        operation: Operation,
        *,
        kind: Kind,
        loop: int,
        epoch: int,
        step: int,
        table: bytes,
        metrics: dict[str, Any],
    ) -> None:
        record = msg.Committed(
            operation=operation.number,
            generation=operation.generation,
            kind=kind,
            loop=loop,
            epoch=epoch,
            step=step,
            table=table,
            metrics=json.dumps(metrics),
            wall_s=self._clock.wall_s(),
        )
        with self.changed:
            self._perform(self.participant.record(record))

    def loop_opened(self, loop: int, spec: str) -> None:
        with self.changed:
            self._perform(self.participant.record(msg.LoopOpened(loop=loop, spec=spec)))

    def phase(self, name: str, step: int) -> None:
        activity = self.participant.activity
        if activity.phase != name or self._step != step:
            activity.progress += 1
            activity.since_s = self._clock.now_s()
        activity.phase, self._step = name, step

    def progressed(self) -> None:
        """Something was done, in whatever phase."""
        self.participant.activity.progress += 1
        self.participant.activity.since_s = self._clock.now_s()

    @contextmanager
    def busy(self, label: str, limit_s: float) -> Iterator[None]:
        activity = self.participant.activity
        before = (activity.phase, activity.limit_s)
        self.phase(label, self._step)
        activity.limit_s = limit_s
        try:
            yield
        finally:
            activity.limit_s = before[1]
            self.phase(before[0], self._step)

    def ended(self, summary: dict[str, Any], digest: bytes = b"") -> int:
        self.phase("ended", self._step)
        self._tell(ev.ScriptEnded(json.dumps(summary), digest))
        while True:
            self.serve_snapshots()
            with self.changed:
                if self._exit is not None:
                    break
                self.wait(WAIT_S)
        if self._exit.code and self._exit.reason:
            log.warning("%s", self._exit.reason)
        self._postbox.close(LAST_WORDS_S)
        return self._exit.code

    def failed(self, kind: str, code: int, traceback: str, step: int) -> None:
        try:
            words = msg.Failed(
                kind=kind[:64], code=max(-255, min(255, code)), traceback=traceback[-60000:], step=step
            )
            self._postbox.post(self.participant.generation, words)
            self._postbox.close(LAST_WORDS_S)
        except Exception:
            log.exception("the last words could not be said")

    def serve_snapshots(self, inside: int | None = None) -> None:
        """Take the state that joiners of an entered generation wait for; the main thread, between
        changes.

        ``inside``: the operation the main thread is in.  Once that is committed the live state
        belongs to neither boundary until the user's code has stepped, so the next boundary serves.
        """
        if not self._wanted or self.engine is None:
            return
        with self.changed:
            if inside is not None and self.participant.position != inside:
                return
            wanted, self._wanted = self._wanted, set()
            position, kept = self.participant.position, self.participant.unrecorded()
        self._plane.offer(wanted, self.engine.snapshot(position, [written(record) for record in kept]))

    # ------------------------------------------------------------------ under the lock

    def check(self) -> None:
        """Raise what ends this worker."""
        if self._exit is None:
            return
        told = self.participant.finish is not None and self.participant.generation == 0
        if self._exit.code == 0 or (told and self.surroundings.agent):
            # the job ended before this worker was in it; what ended it, its agent says
            log.info("%s", self._exit.reason)
            raise SystemExit(self._exit.code)
        raise GodmwError(self._exit.reason, code=self._exit.code, hint=self._exit.hint)

    def wait(self, seconds: float) -> None:
        self.changed.wait(seconds)

    def new_attempt(self) -> Attempt:
        """The operation in the generation in force."""
        participant = self.participant
        ids = tuple(member.worker for member in participant.members)
        return Attempt(
            participant.generation, participant.rank, ids, self._plane.links(participant.generation)
        )

    def _pass_boundary(self) -> None:
        participant = self.participant
        self.rank, self.world_size, self.generation = (
            participant.rank,
            participant.world_size,
            participant.generation,
        )

    # ------------------------------------------------------------------ the communication thread

    def whole(self, attempt: Attempt, number: int) -> int | None:
        with self.changed:
            word = self.participant.whole(number, attempt.generation)
            attempt.whole = word is not None
            return word

    def commit(self, attempt: Attempt, number: int, lowest: int) -> None:
        with self.changed:
            if self.participant.commit(number, attempt.generation, lowest):
                attempt.outcome = True
            self.changed.notify_all()

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    # ------------------------------------------------------------------ the control thread

    def _due_s(self) -> float:
        return self.participant.next_deadline() - self._clock.now_s()

    def _heard(self, fact: Fact) -> None:
        match fact:
            case Connected():
                self._tell(ev.MasterBack())
            case Disconnected():
                self._tell(ev.MasterGone())
            case Heard(header=header, message=message):
                self._tell(ev.Received("", header, message))
                name = self.participant
                self._postbox.name(name.worker, name.incarnation, header.job, name.term)
            case OtherVersion(reason=reason):
                self._leave(act.Exit(76, reason, "install the same version of godmw on all machines"))
            case None:
                self._beat()

    def _beat(self) -> None:
        now_s = self._clock.now_s()
        activity = self.participant.activity
        if now_s - activity.since_s > LOOK_AFTER_S:
            activity.where = main_thread_at(self._main)
        activity.waits_for = self._plane.waits_for
        self._tell(ev.Tick())
        if self._exit_by_s is not None and now_s > self._exit_by_s and self._exit is not None:
            sys.stderr.write(f"godmw: {self._exit.reason}\n")
            sys.stderr.flush()
            os._exit(self._exit.code)

    def _tell(self, event: Any) -> None:
        """One event to the participant, its actions performed, everybody woken; from any thread."""
        with self.changed:
            self._perform(self.participant.step(event, self._clock.now_s()))
            if not isinstance(event, ev.Tick):
                self.changed.notify_all()

    def _perform(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case act.Send(message=message):
                    self._postbox.post(self.participant.generation, message)
                case act.Abandon(generation=generation):
                    self._plane.abandon(generation)
                case act.FormLinks(generation=generation, rank=rank, members=members):
                    self._plane.form(generation, rank, members)
                case act.FetchState(generation=generation, donors=donors):
                    assert self.engine is not None, "only a prepared worker is taken in"
                    self._plane.fetch(generation, donors, self.engine, self.notify)
                case act.KeepSnapshot(generation=generation):
                    self._wanted.add(generation)
                case act.DropSnapshot(generation=generation):
                    self._wanted = {number for number in self._wanted if number > generation}
                    self._plane.withdraw(generation)
                case act.Exit():
                    self._leave(action)
                case act.Say(text=text):
                    log.warning("%s", text)
                case _:
                    raise TypeError(f"unknown action {action!r}")

    def _leave(self, action: act.Exit) -> None:
        if self._exit is None:
            self._exit = action
            self._exit_by_s = time.monotonic() + LEAVE_WITHIN_S
