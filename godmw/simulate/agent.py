"""A simulated agent: slots on one host, launches, exits seen, beats, and what dies with it.

A stand-in for ``worker/agent`` with its behaviour towards the master: it tells every exit again after each
registration, shows its children's process states in every beat, and everything it started ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from godmw.protocol import messages as msg
from godmw.protocol import wire
from godmw.protocol.fields import Checked

if TYPE_CHECKING:
    from godmw.simulate.master import Connection
    from godmw.simulate.worker import SimWorker
    from godmw.simulate.world import World

LAUNCH_S = 0.02
REAP_S = 0.003  # a child's death is known
ORPHANS_END_S = 0.05
RECONNECT_S = 0.1
FINISH_GRACE_S = 3.0  # after Finish its children end by themselves, or are ended


class SimAgent:
    """One host's supervisor; `exit_code` is set when it has ended."""

    def __init__(self, world: World, agent: str, host: str, slots: int) -> None:
        self.world = world
        self.id, self.host, self.slots = agent, host, slots
        self.alive, self.frozen = True, False
        self.exit_code: int | None = None
        self.children: dict[tuple[str, int], SimWorker] = {}
        self.connection: Connection | None = None
        self.term = 0
        self._exits: dict[tuple[str, int], msg.ChildExited] = {}
        self._finish: msg.Finish | None = None
        self._backlog: list[Callable[[], None]] = []
        self._sequence = 0
        self._dial()
        self._beat()

    @property
    def name(self) -> str:
        return self.id

    def run(self, do: Callable[[], None]) -> None:
        if self.alive:
            if self.frozen:
                self._backlog.append(do)
            else:
                do()

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.world.agenda.after(delay_s, lambda: self.run(do))

    # ------------------------------------------------------------------ life

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            backlog, self._backlog = self._backlog, []
            for do in backlog:
                self.run(do)

    def kill(self) -> None:
        """SIGKILL: the kernel closes its connection and, a moment later, ends what it started."""
        self._end(None)
        for child in list(self.children.values()):
            self.world.agenda.after(ORPHANS_END_S, lambda child=child: child.end(0, 9))  # type: ignore[misc]

    def _end(self, code: int | None) -> None:
        if not self.alive:
            return
        self.alive, self.exit_code = False, code
        if code is None:
            self.world.network.forget(self.name)
        if self.connection is not None:
            self.connection.close()

    # ------------------------------------------------------------------ the master

    def _dial(self) -> None:
        self.world.master.dial(self.name, self._connected, lambda: self.later(RECONNECT_S, self._dial))

    def _connected(self, connection: Connection) -> None:
        if not self.alive:
            connection.close()
            return
        connection.on_message = lambda header, message: self.run(lambda: self._hear(header, message))
        connection.on_gone = lambda: self.run(self._disconnected)
        self.run(lambda: self._hello(connection))

    def _hello(self, connection: Connection) -> None:
        self.connection = connection
        self._send(msg.AgentHello(
            token=self.world.settings.token, host=self.host, pid=1, slots=self.slots, children=self._seen()
        ))  # fmt: skip

    def _disconnected(self) -> None:
        self.connection = None
        if self._finish is None:
            self._dial()
        else:
            self._maybe_leave()

    def _seen(self) -> tuple[msg.Child, ...]:
        return tuple(
            msg.Child(
                worker=w,
                incarnation=i,
                pid=child.pid,
                process="T" if child.frozen and not child.mute else "S",
            )
            for (w, i), child in self.children.items()
        )

    def _beat(self) -> None:
        if self.term:
            self._send(msg.AgentBeat(children=self._seen()))
        self._maybe_leave()
        self.later(self.world.settings.beat_s, self._beat)

    def _send(self, message: Checked) -> None:
        if self.connection is None:
            return
        self._sequence += 1
        header = wire.header_of(
            message, job=self.world.settings.job, term=self.term, generation=0, sender=self.id,
            incarnation=0, sequence=self._sequence,
        )  # fmt: skip
        self.connection.to_master(header, message)

    def _hear(self, header: msg.Header, message: Checked) -> None:
        if header.term < self.term:
            return
        match message:
            case msg.AgentWelcome():
                self.term = header.term
                for exited in self._exits.values():
                    self._send(exited)
                self._send(msg.AgentBeat(children=self._seen()))
            case msg.Launch(worker=worker, incarnation=incarnation):
                if (worker, incarnation) not in self.children and self._finish is None:
                    self.later(LAUNCH_S, lambda: self._launch(worker, incarnation))
            case msg.Terminate(worker=worker, incarnation=incarnation, signal=signal):
                child = self.children.get((worker, incarnation))
                if child is not None:
                    child.end(0, signal)
            case msg.Finish():
                self._finish = message
                self.later(FINISH_GRACE_S, self._clear)
                self._maybe_leave()
            case msg.Refused(code=code):
                self._end(code)

    def _launch(self, worker: str, incarnation: int) -> None:
        if (worker, incarnation) not in self.children and (worker, incarnation) not in self._exits:
            self.children[(worker, incarnation)] = self.world.start_worker(
                worker, incarnation, self.id, self.host
            )

    def child_ended(self, child: SimWorker) -> None:
        """`waitpid` returns, a moment after."""
        self.later(REAP_S, lambda: self._reap(child))

    def _reap(self, child: SimWorker) -> None:
        assert child.exit is not None
        self.children.pop((child.id, child.incarnation), None)
        code, signal, words = child.exit
        exited = msg.ChildExited(
            worker=child.id,
            incarnation=child.incarnation,
            code=code,
            signal=signal,
            last_words=words if code else "",
        )
        self._exits[(child.id, child.incarnation)] = exited
        if self.term:
            self._send(exited)
        self._maybe_leave()

    def _clear(self) -> None:
        for child in list(self.children.values()):
            child.end(0, 9)

    def _maybe_leave(self) -> None:
        if self._finish is not None and not self.children:
            self._end(self._finish.code)
