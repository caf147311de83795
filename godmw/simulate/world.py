"""A whole job under virtual time: master, agents, workers, network, and everything that can be done to
them.

`World` owns the agenda and the dice, starts what the master asks agents to start, carries out faults,
writes the transcript and feeds the invariants.  It decides nothing about membership; that is in the shipped
machines alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from random import Random

from godmw.config import JobSettings
from godmw.errors import UsageError
from godmw.membership.invariants import History, Said, check_wait
from godmw.protocol import messages as msg
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.simulate.agenda import Agenda
from godmw.simulate.agent import SimAgent
from godmw.simulate.fabric import Fabric
from godmw.simulate.master import Connection, SimMaster
from godmw.simulate.network import Network
from godmw.simulate.script import Script
from godmw.simulate.text import BEATS
from godmw.simulate.worker import SimWorker

HOST = "host"
CHECK_EVERY_S = 5.0
NAMED_WITHIN_S = 20.0  # 10 s until a wait is named, and the slack of leases and beats
ADMIN = "operator"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a transcript.  `beat`: heartbeats and the like; `detail`: what happens within an
    operation.
    """

    at_s: float
    who: str
    what: str
    beat: bool = False
    detail: bool = False

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.who}: {self.what}"


@dataclasses.dataclass(frozen=True, slots=True)
class Mail:
    """One control message as it was sent; whether it arrived is another matter."""

    at_s: float
    source: str
    target: str
    message: Checked


class World:
    """`agents` is the number of slots of each agent's host; the first is the master's host."""

    def __init__(
        self, settings: JobSettings, script: Script, *, seed: int, agents: Iterable[int] = (),
        latency_s: tuple[float, float] = (0.0002, 0.002),
    ) -> None:  # fmt: skip
        self.settings = dataclasses.replace(settings, local_host=HOST + "0", address="master:7000")
        self.script = script
        self.random = Random(seed)
        self.agenda = Agenda()
        self.network = Network(self.agenda, self.random, latency_s)
        self.fabric = Fabric(self)
        self.history = History(script.shards_of)
        self.said = Said()
        self.lines: list[Line] = []
        self.mail: list[Mail] = []
        self.watchers: list[Callable[[Line], None]] = []
        self.keep_beats = False
        self.workers: list[SimWorker] = []
        self.agents: dict[str, SimAgent] = {}
        self._slow: dict[str, float] = {}
        self._requests = 0
        self._operator: Connection | None = None
        self.master = SimMaster(self)
        self.master.start()
        self._call_operator()
        for number, slots in enumerate(agents):
            self.add_agent(f"a{number}", f"{HOST}{number}", slots)
        self.agenda.after(CHECK_EVERY_S, self._look)

    # ------------------------------------------------------------------ what is there

    def label(self, process: str) -> str:
        """A process as a transcript names it."""
        return next((worker.label for worker in self.workers if worker.name == process), process)

    def worker(self, identity: str) -> SimWorker:
        """The newest process of a worker id.  Raises UsageError."""
        for worker in reversed(self.workers):
            if identity in (worker.participant.worker, worker.name):
                return worker
        known = ", ".join(sorted({worker.label for worker in self.workers}))
        raise UsageError(f"no worker {identity!r} was ever started", hint=f"there are: {known}")

    def living(self) -> list[SimWorker]:
        return [worker for worker in self.workers if worker.alive]

    def names(self, addresses: Iterable[str]) -> list[str]:
        """Addresses of a plan as (id, incarnation) names."""
        found = {worker.participant.identity.address: worker for worker in self.workers}
        return [f"{found[a].participant.worker}#{found[a].participant.incarnation}" for a in addresses]

    def offer(self, worker: SimWorker) -> msg.Prepared:
        """What every worker of the job brings."""
        return msg.Prepared(
            settings=b"settings",
            model=b"model",
            data=b"data",
            shards=self.script.shards,
            seed=-1,
            detail="simulated",
        )

    def compute_s(self, worker: SimWorker) -> float:
        return self.random.uniform(*self.script.compute_s) * self._slow.get(worker.id, 1.0)

    def note(self, who: str, what: str, *, beat: bool = False, detail: bool = False) -> None:
        """One line for the transcript."""
        if self.keep_beats or not beat:
            self.lines.append(Line(self.agenda.now_s(), who, what, beat, detail))
            for watcher in self.watchers:
                watcher(self.lines[-1])

    def post(self, source: str, target: str, message: Checked) -> None:
        """Remember what was said to whom; beats only when they are kept."""
        if self.keep_beats or not isinstance(message, BEATS):
            self.mail.append(Mail(self.agenda.now_s(), self.label(source), self.label(target), message))

    # ------------------------------------------------------------------ processes

    def add_agent(self, agent: str, host: str, slots: int) -> SimAgent:
        self.agents[agent] = SimAgent(self, agent, host, slots)
        return self.agents[agent]

    def start_worker(self, worker: str, incarnation: int, agent: str, host: str) -> SimWorker:
        """A new process; without `worker` and `agent` one started by hand on a host of its own."""
        pid = 100 + len(self.workers)
        made = SimWorker(self, worker, incarnation, agent, host or f"{HOST}-{pid}", pid)
        self.workers.append(made)
        self.fabric.open(made)
        self.note(made.label, "is started")
        return made

    def start_by_hand(self, host: str = "") -> SimWorker:
        """`GODMW_JOIN=… python train.py` on some machine."""
        return self.start_worker("", 0, "", host)

    def worker_ended(self, worker: SimWorker) -> None:
        """What a process's end does to others: closed ends, a closed connection, an agent that notices."""
        assert worker.exit is not None
        if worker.exit[1]:
            self.note(worker.label, f"dies of signal {worker.exit[1]}")
            self.network.forget(worker.name)
        if worker.links is not None and not worker.links.abandoned:
            self.fabric.close(worker, worker.links)
        if worker.connection is not None:
            worker.connection.close()
        agent = self.agents.get(worker.agent)
        if agent is not None:
            agent.child_ended(worker)

    def abandoned(self, generation: int) -> None:
        """The master gives a generation up whose members it knows to be dead."""
        self.note("MASTER", f"abandons generation {generation}")
        alive = {worker.name for worker in self.living()}
        self.history.abandon(generation, lambda name: name in alive)

    # ------------------------------------------------------------------ faults

    def slow(self, worker: str, factor: float) -> None:
        """From now on every shard takes `factor` times as long on `worker`."""
        self._slow[worker] = factor

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        self.note("CUT", f"{a} {'-/->' if one_way else '|'} {b}")
        self.network.cut(self._process(a), self._process(b), one_way=one_way)

    def mend(self, a: str, b: str) -> None:
        self.note("MEND", f"{a} – {b}")
        self.network.mend(self._process(a), self._process(b))

    def _process(self, name: str) -> str:
        """The process that a worker's or agent's id or ``master`` means now; a process's name is itself."""
        known = name == "master" or name in self.agents or "#" in name or name.startswith("hand")
        return name if known else self.worker(name).name

    # ------------------------------------------------------------------ an operator

    def _call_operator(self) -> None:
        def connected(connection: Connection) -> None:
            self._operator = connection
            connection.on_gone = gone

        def gone() -> None:
            self._operator = None
            again()

        def again() -> None:
            self.agenda.after(0.1, self._call_operator)

        self.master.dial(ADMIN, connected, again)

    def ask(self, message: Checked) -> int:
        """An admin request; its answer will be at `answer(number)`.  0: there is no master to ask."""
        if self._operator is None:
            return 0
        self._requests += 1
        header = wire.header_of(
            message,
            job=self.settings.job,
            term=0,
            generation=0,
            sender=ADMIN,
            incarnation=0,
            sequence=self._requests,
        )
        self._operator.to_master(header, message)
        return self._requests

    def answer(self, request: int) -> tuple[int, dict[str, object]] | None:
        """(code, body) once the master has answered."""
        return next((a for (_, number), a in self.master.answers.items() if number == request), None)

    # ------------------------------------------------------------------ time

    @property
    def committed(self) -> int:
        """Operations that anybody has committed."""
        return len(self.history.commits)

    @property
    def over(self) -> bool:
        """The master has ended the job and no process is left running."""
        return self.master.ended is not None and all(worker.frozen for worker in self.living())

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until `until()` or for `limit_s`; whether `until()` came true."""
        deadline_s = self.agenda.now_s() + limit_s
        while not until():
            if not self.agenda.step(deadline_s):
                return until()
        return True

    def _look(self) -> None:
        """Now and then: has everybody who waits been told why?"""
        self._check_waits()
        self.agenda.after(CHECK_EVERY_S, self._look)

    def _check_waits(self) -> None:
        master = self.master
        if master.coordinator is None or master.frozen or master.ended is not None:
            return
        now_s = self.agenda.now_s()
        said = [at for at, kind, _ in master.events if kind != "prepared"]
        if master.coordinator.view()["phase"] in ("PAUSED", "WAITING"):
            return  # the phase and its reason are the word
        for worker in self.living():
            seen = worker.participant.activity
            network = self.network
            cut = network.is_cut(worker.name, "master") or network.is_cut("master", worker.name)
            if not worker.frozen and not cut and seen.phase == "waiting" and worker.participant.generation:
                check_wait(
                    worker.label, now_s - seen.since_s, now_s - max(said, default=0.0), NAMED_WITHIN_S
                )

    def check(self) -> None:
        """All invariants over the whole past.  Raises Violation."""
        self.history.check()
        ledger = [record.operation for record in self.master.ledger]
        if ledger != list(range(len(ledger))):
            raise AssertionError(f"the ledger holds operations {ledger}")
        for record, commit in zip(self.master.ledger, self.history.commits, strict=False):
            if record.generation != commit.generation:
                raise AssertionError(f"the ledger has {record}, history has {commit}")
