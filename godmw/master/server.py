"""The master's loop: bytes become events, the machine answers with actions, the actions are performed.

One thread, one turn: wait until something can be read or is due, hear everything that can be read, tell
the time, sync the ledger when it is due. It decides nothing: who is in is the machine's matter, who may
speak the door's, and what an action means the performer's. The machine is any object with the
Coordinator's methods.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from godmw.config import JobSettings
from godmw.master.books import Books
from godmw.master.door import Door, Let
from godmw.master.journal import Journal
from godmw.master.perform import Performer
from godmw.master.router import Arrival, Gone, Router
from godmw.master.steady import SteadyClock
from godmw.membership.actions import EndJob
from godmw.membership.events import LedgerDurable, PeerGone, Received, StopAsked, Tick
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.protocol.messages import AgentBeat, Committed, Heartbeat, Reply, Subscribe

log = logging.getLogger(__name__)

# In calm times records and beats are gathered; a connection that closes, or a signal, is never waited with.
ROUTINE = (Committed, Heartbeat, AgentBeat)
GATHER_S = 0.05
CALM_AFTER_S = 1.0  # since anything else was heard
TICK_S = 0.05  # however much is heard, the machine is told the time this often
SHORTEST_WAIT_S = 0.001  # a deadline that its Tick does not move is not spun on


class Machine(Protocol):
    """What the shell drives; `membership.coordinator.Coordinator` in production."""

    @property
    def term(self) -> int: ...

    @property
    def generation(self) -> int: ...

    def start(self, now_s: float) -> list[Any]: ...

    def step(self, event: Any, now_s: float) -> list[Any]: ...

    def next_deadline(self) -> float | None: ...

    def view(self) -> dict[str, Any]: ...


class Server:
    """Serves one job on a bound ``router`` until its machine ends it."""

    def __init__(
        self,
        machine: Machine,
        settings: JobSettings,
        *,
        router: Router,
        journal: Journal,
        books: Books,
        clock: SteadyClock,
    ) -> None:
        self._machine = machine
        self._settings = settings
        self._router = router
        self._books = books
        self._clock = clock
        self._door = Door(settings.token)
        self._performer = Performer(journal, books, self._say, self._publish)
        self._subscribers: dict[str, int] = {}
        self._sequence = 0
        self._stop_reason: str | None = None
        self._stirred_s = 0.0
        self._ticked_s = 0.0
        self._woken = -1
        self._wake = -1

    # ------------------------------------------------------------------ from outside

    def ask_stop(self, reason: str) -> None:
        """End the job early; safe in a signal handler."""
        if self._wake >= 0:
            os.write(self._wake, b"!")
        self._stop_reason = reason  # last: once it is seen the loop may end and close what it waits on

    @property
    def performer(self) -> Performer:
        """What was asked for at the end: ``ended`` and ``finish``."""
        return self._performer

    # ------------------------------------------------------------------ the loop

    def serve(self, ready: Callable[[], None]) -> EndJob:
        """Run the job to its end; ``ready`` is called once the machine has begun its term."""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._router.watch(self._woken)
        try:
            now_s = self._clock.now_s()
            self._performer.perform(self._machine.start(now_s))
            ready()
            while self._performer.ended is None:
                self._turn()
            return self._performer.ended
        finally:
            wake, self._wake = self._wake, -1
            os.close(wake)
            os.close(self._woken)

    def _turn(self) -> None:
        if self._clock.reading_s - self._stirred_s > CALM_AFTER_S:
            self._router.wait(min(GATHER_S, self._timeout_s()), alarms_only=True)
        self._router.wait(self._timeout_s())
        now_s = self._clock.now_s()
        for arrival in self._router.read():
            self._hear(arrival, now_s)
        if self._stop_reason is not None:
            reason, self._stop_reason = self._stop_reason, None
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 64)
            self._tell(StopAsked(reason), now_s)
        deadline_s = self._machine.next_deadline()
        if now_s - self._ticked_s >= TICK_S or (deadline_s is not None and deadline_s <= now_s):
            self._ticked_s = now_s
            self._tell(Tick(), now_s)
        below = self._books.sync_if_due()
        if below is not None:
            self._tell(LedgerDurable(below), now_s)

    def _timeout_s(self) -> float:
        """Never longer than a beat: the steady clock takes a longer wait for a time in which nothing ran."""
        due_s = self._settings.beat_s
        deadline_s = self._machine.next_deadline()
        if deadline_s is not None:
            due_s = min(due_s, deadline_s - self._clock.reading_s)
        sync_s = self._books.due_in_s()
        if sync_s is not None:
            due_s = min(due_s, sync_s)
        return max(SHORTEST_WAIT_S, due_s)

    def _hear(self, arrival: Arrival | Gone, now_s: float) -> None:
        if isinstance(arrival, Gone):
            self._door.forget(arrival.peer)
            self._subscribers.pop(arrival.peer, None)
            self._stirred_s = now_s
            self._tell(PeerGone(arrival.peer), now_s)
            return
        verdict = self._door.judge(arrival.peer, arrival.data)
        if not isinstance(verdict, Let):
            if verdict.answer is not None:
                self._say(arrival.peer, verdict.answer)
        elif isinstance(verdict.message, Subscribe):
            self._subscribe(arrival.peer, verdict.header.sequence)
        else:
            if not isinstance(verdict.message, ROUTINE):
                self._stirred_s = now_s
            self._tell(Received(arrival.peer, verdict.header, verdict.message), now_s)

    def _tell(self, event: Any, now_s: float) -> None:
        self._performer.perform(self._machine.step(event, now_s))

    # ------------------------------------------------------------------ speaking

    def _say(self, peer: str, message: Checked) -> None:
        self._sequence += 1
        header = wire.header_of(
            message,
            job=self._settings.job,
            term=self._machine.term,
            generation=self._machine.generation,
            sender="",
            incarnation=0,
            sequence=self._sequence,
        )
        if not self._router.send(peer, wire.encode(header, message)):
            log.info("connection %s does not take %s", peer, type(message).__name__)

    def _subscribe(self, peer: str, request: int) -> None:
        self._subscribers[peer] = request
        body = {"kind": "subscribed", "run_dir": self._settings.run_dir}
        self._say(peer, Reply(request=request, code=0, body=json.dumps(body)))

    def _publish(self, line: dict[str, Any]) -> None:
        for peer, request in list(self._subscribers.items()):
            self._say(peer, Reply(request=request, code=0, body=json.dumps(line)))
