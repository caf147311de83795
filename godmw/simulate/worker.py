"""A simulated worker process: the shipped Participant, the connection it speaks on, and life, freeze and
death.

Stands for the control thread: messages become events, actions are performed in order.  What the script and
the communication thread do is in ``engine``; both ask the same participant, under a lock that virtual time
makes trivial. A frozen process does nothing; what happens to it meanwhile happens when it is thawed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.participant import Participant
from godmw.membership.selfportrait import Identity
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.protocol.messages import Header
from godmw.simulate.engine import Engine
from godmw.simulate.links import Links
from godmw.simulate.text import brief

if TYPE_CHECKING:
    from godmw.simulate.master import Connection
    from godmw.simulate.world import World

RECONNECT_S = 0.1
SIGKILL = 9


class SimWorker:
    """One incarnation of one worker.  `alive` until its process has ended; `exit` is then (code, signal,
    words).
    """

    def __init__(self, world: World, worker: str, incarnation: int, agent: str, host: str, pid: int) -> None:
        self.world = world
        self.id, self.incarnation, self.agent, self.host, self.pid = worker, incarnation, agent, host, pid
        self.name = f"{worker or 'hand' + str(pid)}#{incarnation}"
        self.alive, self.frozen, self.mute = True, False, False
        self.exit: tuple[int, int, str] | None = None
        self.said: list[str] = []
        self.connection: Connection | None = None
        self.links: Links | None = None
        self.engine = Engine(self)
        self._backlog: list[Callable[[], None]] = []
        self._sequence = 0
        identity = Identity(
            worker=worker, incarnation=incarnation, agent=agent, host=host, pid=pid,
            address=f"{host}:{40000 + pid}", token=world.settings.token,
        )  # fmt: skip
        now_s = world.agenda.now_s()
        self.participant = Participant(
            identity, beat_s=world.settings.beat_s, orphan_s=world.settings.orphan_s, now_s=now_s
        )
        self.later(world.random.uniform(*world.script.import_s), self._imported)

    @property
    def label(self) -> str:
        """How a transcript names it: its id, once it has one."""
        return self.participant.worker or self.name

    # ------------------------------------------------------------------ time and life

    def run(self, do: Callable[[], None]) -> None:
        """Something happens in or to the process."""
        if self.alive:
            if self.frozen:
                self._backlog.append(do)
            else:
                do()

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.world.agenda.after(delay_s, lambda: self.run(do))

    def freeze(self, *, mute: bool = False) -> None:
        """Stop the process (SIGSTOP), or, `mute`, only hold its interpreter for long."""
        if self.alive and not self.frozen:
            self.frozen, self.mute = True, mute

    def thaw(self) -> None:
        if self.alive and self.frozen:
            self.frozen = self.mute = False
            backlog, self._backlog = self._backlog, []
            for at, do in enumerate(backlog):
                self.run(do)
                if self.frozen:
                    self._backlog.extend(backlog[at + 1 :])
                    return

    def end(self, code: int, signal: int, words: str = "") -> None:
        """The process is no more."""
        if not self.alive:
            return
        self.alive = False
        self.exit = (code, signal, words)
        self.world.worker_ended(self)

    # ------------------------------------------------------------------ the connection

    def _imported(self) -> None:
        self.world.master.dial(self.name, self._connected, self._no_answer)
        self._tick()

    def _no_answer(self) -> None:
        self.later(RECONNECT_S, lambda: self.world.master.dial(self.name, self._connected, self._no_answer))

    def _connected(self, connection: Connection) -> None:
        connection.on_message = lambda header, message: self.run(lambda: self._hear(header, message))
        connection.on_gone = lambda: self.run(self._disconnected)
        self.run(lambda: self._greet(connection))

    def _greet(self, connection: Connection) -> None:
        self.connection = connection
        self.feed(ev.MasterBack())
        if self.engine.stage == "importing":
            self.engine.build()

    def _disconnected(self) -> None:
        self.connection = None
        self.feed(ev.MasterGone())
        self._no_answer()

    def _hear(self, header: Header, message: Checked) -> None:
        self.feed(ev.Received("", header, message))

    def _tick(self) -> None:
        self.feed(ev.Tick())
        if self.alive:
            wait_s = max(0.001, self.participant.next_deadline() - self.world.agenda.now_s())
            self.later(wait_s, self._tick)

    # ------------------------------------------------------------------ the machine

    def feed(self, event: Any) -> None:
        """One event for the participant; then the main thread looks whether it can go on."""
        before = self.participant.generation
        self.perform(self.participant.step(event, self.world.agenda.now_s()))
        if self.participant.generation != before:
            self.world.note(self.label, f"enters generation {self.participant.generation}")
        if self.alive:
            self.engine.advance()

    def perform(self, actions: list[Any]) -> None:
        """The actions, in order; one match, no decisions."""
        for action in actions:
            if not self.alive:
                return
            match action:
                case act.Send(message=message):
                    self._send(message)
                case act.Abandon(generation=generation):
                    self.world.fabric.abandon(self, generation)
                case act.FormLinks(generation=generation, rank=rank, members=members):
                    self.world.fabric.form(self, generation, rank, members)
                case act.FetchState(generation=generation, donors=donors):
                    self.engine.fetch(generation, donors)
                case act.KeepSnapshot(generation=generation):
                    self.engine.keep(generation)
                case act.DropSnapshot(generation=generation):
                    self.engine.drop(generation)
                case act.Exit(code=code, reason=reason):
                    self.world.note(self.label, f"exits {code}: {reason}")
                    self.end(code, 0, reason)
                case act.Say(text=text):
                    self.said.append(text)
                case _:
                    raise TypeError(f"a participant does not ask for {type(action).__name__}")

    def _send(self, message: Checked) -> None:
        if self.connection is None:
            self.world.note(self.label, f"speaks to nobody: {brief(message)}", beat=True)
            return
        self._sequence += 1
        participant = self.participant
        header = wire.header_of(
            message, job=self.world.settings.job, term=participant.term, generation=participant.generation,
            sender=participant.worker, incarnation=participant.incarnation, sequence=self._sequence,
        )  # fmt: skip
        self.connection.to_master(header, message)
