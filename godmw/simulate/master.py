"""A simulated master: the shipped Coordinator, its disk, its connections, and its deaths.

The disk (journal, ledger) outlives the process: a restarted master is a new Coordinator of the next term on
the same records, which go through their JSON form as on a real disk.  Ledger entries are durable a moment
after they are written; a crash takes those that were not.  `crash_on` kills the process between a record
and what it would have said.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership import records as rec
from godmw.membership.coordinator import Coordinator
from godmw.protocol import messages as msg
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.simulate.text import BEATS, brief, journalled

if TYPE_CHECKING:
    from godmw.simulate.world import World

SYNC_S = 0.03  # written to durable
FROM_MASTER = frozenset(d for d in msg.Direction if d.value.startswith("master"))
TO_MASTER = frozenset(msg.Direction) - FROM_MASTER


@dataclasses.dataclass(slots=True)
class Connection:
    """One connection of one client; a new one has a new `peer` name."""

    master: SimMaster
    peer: str
    owner: str
    open: bool = True
    on_message: Callable[[msg.Header, Checked], None] = lambda header, message: None
    on_gone: Callable[[], None] = lambda: None

    def to_master(self, header: msg.Header, message: Checked) -> None:
        frame = wire.encode(header, message)
        self.master.world.post(self.owner, "master", message)
        self._carry(lambda: self.master.hear(self, *wire.decode(frame, TO_MASTER)))

    def to_client(self, header: msg.Header, message: Checked) -> None:
        frame = wire.encode(header, message)
        world = self.master.world
        world.post("master", self.owner, message)

        def arrive() -> None:
            head, inner = wire.decode(frame, FROM_MASTER)
            world.note(f"master → {world.label(self.owner)}", brief(inner), beat=isinstance(inner, BEATS))
            self.on_message(head, inner)

        world.network.send("master", self.owner, "control", arrive)

    def lost(self) -> None:
        """The client sees that the master is gone."""
        self.on_gone()

    def close(self) -> None:
        """The client is gone; the master sees it after what was said before."""
        self._carry(lambda: self.master.gone(self))

    def _carry(self, do: Callable[[], None]) -> None:
        self.master.world.network.send(self.owner, "master", "control", do)


class SimMaster:
    """`coordinator` is None while no process runs.  `journal`, `ledger` and `loops` are the disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.coordinator: Coordinator | None = None
        self.frozen = False
        self.journal: list[rec.JournalRecord] = []
        self.ledger: list[msg.Committed] = []
        self.durable = 0
        self.redone: dict[int, tuple[int, ...]] = {}
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.answers: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
        self.ended: act.EndJob | None = None
        self.crash_on: Callable[[rec.JournalRecord], bool] | None = None
        self.connections: dict[str, Connection] = {}
        self.life = 0
        self._away_s = 0.0
        self._froze_s = 0.0
        self._backlog: list[Callable[[], None]] = []
        self._knocking: list[tuple[str, Callable[[], None]]] = []  # not accepted yet
        self._count = 0
        self._sequence = 0

    @property
    def up(self) -> bool:
        return self.coordinator is not None

    @property
    def term(self) -> int:
        return max((item.term for item in self.journal if isinstance(item, rec.TermBegan)), default=0)

    def clock_s(self) -> float:
        """The steady clock: time in which the master itself did not run does not count."""
        return self.world.agenda.now_s() - self._away_s

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """A process on the run directory: the next term."""
        if self.up or self.ended is not None:
            return
        self.life += 1
        settings = dataclasses.replace(self.world.settings, term=self.term + 1)
        restored = [rec.from_json(json.loads(json.dumps(rec.to_json(item)))) for item in self.journal]
        step = max((item.step + 1 for item in self.ledger), default=0)
        self.coordinator = Coordinator(
            settings, restored, now_s=self.clock_s(), next_operation=len(self.ledger), step=step
        )
        self.world.note("MASTER", f"starts, term {settings.term}")
        self._perform(self.coordinator.start(self.clock_s()))
        self._tick(self.life)

    def kill(self) -> None:
        """SIGKILL: what was not durable is lost, what was sent arrives in part."""
        if not self.up:
            return
        self.coordinator, self.frozen, self._backlog = None, False, []
        self.crash_on = None
        self.ledger = self.ledger[: self.durable]
        self.world.note("MASTER", "dies")
        network = self.world.network
        network.forget("master")
        knocking, self._knocking = self._knocking, []
        for owner, refused in knocking:
            network.send("master", owner, "dial", refused, sure=True)
        connections, self.connections = self.connections, {}
        for connection in connections.values():
            connection.open = False
            network.send("master", connection.owner, "control", connection.lost, sure=True)

    def freeze(self) -> None:
        if self.up and not self.frozen:
            self.frozen, self._froze_s = True, self.world.agenda.now_s()

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            self._away_s += self.world.agenda.now_s() - self._froze_s
            backlog, self._backlog = self._backlog, []
            for do in backlog:
                self._run(do)

    def _run(self, do: Callable[[], None]) -> None:
        if not self.up:
            return
        if self.frozen:
            self._backlog.append(do)
        else:
            do()

    def _tick(self, life: int) -> None:
        if self.coordinator is None or life != self.life:
            return
        self.feed(ev.Tick())
        if self.coordinator is not None:
            wait_s = max(0.001, self.coordinator.next_deadline() - self.clock_s())
            self.world.agenda.after(wait_s, lambda: self._run(lambda: self._tick(life)))

    # ------------------------------------------------------------------ connections

    def dial(self, owner: str, connected: Callable[[Connection], None], refused: Callable[[], None]) -> None:
        """`owner` asks for a connection; one of the two is called when the answer is back."""
        network = self.world.network

        def knock() -> None:
            if not self.up:
                network.send("master", owner, "dial", refused, sure=True)
                return
            self._knocking.append((owner, refused))
            self._run(accept)

        def accept() -> None:
            self._knocking.remove((owner, refused))
            self._count += 1
            connection = Connection(self, f"{owner}.{self._count}", owner, on_gone=refused)
            self.connections[connection.peer] = connection
            network.send("master", owner, "control", lambda: connected(connection))

        network.send(owner, "master", "dial", knock)

    def hear(self, connection: Connection, header: msg.Header, message: Checked) -> None:
        """A message has arrived."""
        if not connection.open:
            return
        speaker = self.world.label(connection.owner)
        self.world.note(f"{speaker} → master", brief(message), beat=isinstance(message, BEATS))
        self._run(lambda: self.feed(ev.Received(connection.peer, header, message)))

    def gone(self, connection: Connection) -> None:
        """The other end of a connection is closed."""
        if connection.open:
            connection.open = False
            self.connections.pop(connection.peer, None)
            self._run(lambda: self.feed(ev.PeerGone(connection.peer)))

    # ------------------------------------------------------------------ the machine

    def feed(self, event: Any) -> None:
        if self.coordinator is not None:
            self._perform(self.coordinator.step(event, self.clock_s()))

    def _perform(self, actions: list[Any]) -> None:
        life = self.life
        for action in actions:
            if self.coordinator is None or life != self.life:
                return  # it died between two actions
            match action:
                case act.Record(record=record):
                    self._journal(record)
                case act.Send(peer=peer, message=message):
                    self._send(peer, message)
                case act.WriteCommitted(record=committed, redone_shards=redone):
                    self._write(committed, redone)
                case act.WriteLoop():
                    pass
                case act.Log(kind=kind, fields=fields):
                    self.events.append((self.world.agenda.now_s(), kind, fields))
                    if kind == "abandoned":
                        self.world.abandoned(fields["number"])
                case act.Answer(peer=peer, request=request, code=code, body=body):
                    self.answers[(peer, request)] = (code, body)
                case act.EndJob():
                    self.ended = action
                    self.world.note("MASTER", f"the job is over: {action.outcome}, {action.code}")
                    self.coordinator = None
                case _:
                    raise TypeError(f"a coordinator does not ask for {type(action).__name__}")

    def _journal(self, record: rec.JournalRecord) -> None:
        self.journal.append(record)
        self.world.said.journalled(record)
        self.world.note("MASTER", f"journals {journalled(record)}")
        if self.crash_on is not None and self.crash_on(record):
            self.kill()

    def _send(self, peer: str, message: Checked) -> None:
        self.world.said.sent(message)
        connection = self.connections.get(peer)
        coordinator = self.coordinator
        if connection is None or coordinator is None:
            return
        self._sequence += 1
        header = wire.header_of(
            message, job=self.world.settings.job, term=coordinator.term, generation=coordinator.generation,
            sender="", incarnation=0, sequence=self._sequence,
        )  # fmt: skip
        connection.to_client(header, message)

    def _write(self, committed: msg.Committed, redone: tuple[int, ...]) -> None:
        self.world.said.written(committed.operation, len(self.ledger))
        self.ledger.append(committed)
        self.redone[committed.operation] = redone
        below, life = committed.operation + 1, self.life

        def sync() -> None:
            if life == self.life and self.up:
                self.durable = max(self.durable, below)
                self._run(lambda: self.feed(ev.LedgerDurable(below)))

        self.world.agenda.after(SYNC_S, sync)
