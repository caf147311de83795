"""The agent as a process: one loop that feeds ``Supervision`` and performs what it decides.

Owns the loop, and nothing of what is decided in it: every action is one branch of one match.  The loop
waits on the connection, the children's pipes and the signal descriptor together, so an exit is reported
within milliseconds, and it never writes to a terminal or a disk itself (``outlet``).  ``run_agent`` is
the whole of it for callers; under ``godmw run`` it is handed a *companion*, the master's own process,
which it starts before it connects.
"""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import zmq

from godmw.clock import Clock, SystemClock
from godmw.config import JoinAddress
from godmw.errors import ExitCode
from godmw.ids import is_id, new_id
from godmw.worker.agent import environment
from godmw.worker.agent.children import Children, Process
from godmw.worker.agent.facts import (
    Action,
    End,
    Event,
    Exited,
    MasterEnded,
    Observed,
    Say,
    Send,
    Signal,
    Signalled,
    SignalMaster,
    Start,
    Started,
    StartFailed,
    Sweep,
    Tick,
)
from godmw.worker.agent.outlet import Outlet, Sink, Terminal
from godmw.worker.agent.supervision import Supervision
from godmw.worker.link import MasterLink, diagnose

CONNECT_S = 20.0
MASTER_ENDS_S = 10.0
OUT_OF_MEMORY = "\n(this machine ran out of memory meanwhile, and the kernel killed a process to free some)"
BINDING_S = 0.02  # how often the run directory is looked at until the master is there


class Companion(Protocol):
    """The master that ``godmw run`` starts beside its agent (``master_process``)."""

    join: JoinAddress | None
    ended: MasterEnded | None

    def tick(self, children: Children, now_s: float) -> str | None:
        """Start it (again) when that is due; a line for the person, or None."""

    def output(self, stream: str, data: bytes) -> None:
        """What it printed."""

    def exited(self, process: Process, now_s: float) -> str | None:
        """It has exited; a line for the person, or None."""

    def signal(self, children: Children, signum: int) -> None:
        """Send it a signal."""

    def owns(self, process: Process) -> bool:
        """Whether `process` is it."""


class Agent:
    """One agent.  Takes over its process: signals, the waiting for all its children, and its main thread."""

    def __init__(
        self, command: Sequence[str], *, slots: int, join: JoinAddress | None, run_dir: Path | None,
        threads: int | None, connect_s: float, outlet: Outlet, tee: bool, companion: Companion | None,
        clock: Clock,
    ) -> None:  # fmt: skip
        self.command, self.slots, self.join, self.run_dir = list(command), slots, join, run_dir
        self.threads, self.connect_s, self.outlet, self.tee = threads, connect_s, outlet, tee
        self.companion, self.clock = companion, clock
        self.name = new_id("a")
        self.children = Children(self.name, self._output)
        self.supervision: Supervision | None = None
        self.link: MasterLink | None = None
        self.machine = environment.Machine(1)
        self.end: End | None = None
        self.shown: set[str] = set()  # workers whose stderr has passed to the terminal
        self._memory_kills = 0
        self._stop_asked = 0

    def run(self) -> End:
        """Until the end; returns it."""
        self.machine = environment.this_machine(os.environ)
        self._memory_kills = environment.memory_kills()
        self.children.start()
        self.outlet.start()
        try:
            while self.end is None:
                self._turn()
            self._see_the_master_off()
        finally:
            if self.link is not None:
                self.link.close()
            self.children.close()
            self.outlet.close()
        return self.end

    # ---------------------------------------------------------------- the loop

    def _turn(self) -> None:
        now_s = self.clock.now_s()
        self._mind_companion(now_s)
        if self.link is None and self.join is not None:
            self._connect(self.join, now_s)
        due_s = self.supervision.next_deadline() if self.supervision is not None else now_s + BINDING_S
        self._wait(max(0.0, due_s - now_s))
        if self.link is not None:
            for event in self.link.events():
                self._feed(event)
        self._children_now()
        for signum in self.children.signalled:
            self._signalled(signum)
        self.children.signalled.clear()
        self._feed(Tick())

    def _wait(self, timeout_s: float) -> None:
        """Until something is there, or the time has passed; pipes that are ready are read."""
        poller = zmq.Poller()
        poller.register(self.children.fileno(), zmq.POLLIN)
        pipes = {descriptor for process in self.children.processes.values() for descriptor in process.pipes}
        for descriptor in pipes:
            poller.register(descriptor, zmq.POLLIN)
        if self.link is not None:
            self.link.register(poller)
        for ready, _ in poller.poll(math.ceil(min(timeout_s, 0.25) * 1000)):
            if ready == self.children.fileno():
                self.children.wake()
            elif ready in pipes:
                self.children.read(ready)

    def _connect(self, join: JoinAddress, now_s: float) -> None:
        self.link = MasterLink(join.host, join.port, sender=self.name)
        self.link.start()
        self.supervision = Supervision(
            token=join.token, host=socket.gethostname(), pid=os.getpid(), slots=self.slots,
            where=join.endpoint,
            owns_master=self.companion is not None, now_s=now_s, connect_s=self.connect_s,
        )  # fmt: skip
        if self._stop_asked:
            self._signalled(self._stop_asked)

    def _feed(self, event: Event) -> None:
        """One event, and all that follows from what it made us do."""
        if self.supervision is None:
            return
        events = [event]
        while events:
            for action in self.supervision.step(events.pop(0), self.clock.now_s()):
                answer = self._perform(action)
                if answer is not None:
                    events.append(answer)
            if self.link is not None:
                self.link.job, self.link.term = self.supervision.job, self.supervision.term

    def _perform(self, action: Action) -> Event | None:
        match action:
            case Send(message):
                if self.link is not None:
                    self.link.send(message)
            case Start():
                return self._start(action)
            case Signal(pid, signum):
                self.children.signal(pid, signum)
            case Sweep(worker, incarnation, pid):
                self.children.sweep(pid, [f"GODMW_WORKER={worker}", f"GODMW_INCARNATION={incarnation}"])
            case SignalMaster(signum):
                if self.companion is not None:
                    self.companion.signal(self.children, signum)
            case Say(text):
                self.outlet.say(text)
            case End():
                self.end = self._explained(action)
        return None

    # ---------------------------------------------------------------- children

    def _start(self, start: Start) -> Event:
        if self.join is None or self.supervision is None or not is_id(start.worker):
            return StartFailed(start.worker, start.incarnation, f"{start.worker!r} is no name for a worker")
        slot = environment.Slot(
            start.worker, start.incarnation, start.slot, self.slots, start.rank, start.world_size
        )
        env = environment.worker_environment(
            os.environ, slot, agent=self.name, join=self.join, run_dir=str(self._folder()),
            machine=self.machine,
            threads=self.threads,
        )  # fmt: skip
        try:
            process = self.children.spawn(start.worker, start.incarnation, self.command, env)
        except OSError as error:
            return StartFailed(start.worker, start.incarnation, f"{self.command[0]}: {error}")
        return Started(start.worker, start.incarnation, process.pid)

    def _children_now(self) -> None:
        for process in self.children.reap():
            if self.companion is not None and self.companion.owns(process):
                said = self.companion.exited(process, self.clock.now_s())
                if said:
                    self.outlet.say(said)
                continue
            status = process.popen.returncode
            code, signum = (status, 0) if status >= 0 else (0, -status)
            words = process.last_words + (self._out_of_memory() if signum == signal.SIGKILL else "")
            self._feed(Exited(process.name, process.incarnation, code, signum, words))
        letters = self.children.letters()
        seen = {
            process.name: letters[pid] for pid, process in self.children.processes.items() if pid in letters
        }
        self._feed(Observed({name: letter for name, letter in seen.items() if letter not in "ZX"}))

    def _out_of_memory(self) -> str:
        """A kill that nobody here sent, and the likely reason."""
        before, self._memory_kills = self._memory_kills, environment.memory_kills()
        return OUT_OF_MEMORY if self._memory_kills > before else ""

    def _output(self, process: Process, stream: str, data: bytes) -> None:
        log = self._folder() / "logs" / f"{process.name}.log"
        if self.companion is not None and self.companion.owns(process):
            self.companion.output(stream, data)
            if stream == "err":  # what it prints on stdout holds the job's token
                self.outlet.put(process.name, stream, data, log=log)
            return
        passes = self.tee or (
            self.supervision is not None and self.supervision.passing(self.clock.now_s()) == process.name
        )
        if passes and stream == "err":
            self.shown.add(process.name)
        self.outlet.put(process.name, stream, data, log=log, passes=passes)

    def _folder(self) -> Path:
        """The run directory: the master's where it is on this machine, else one of the same name here."""
        if self.run_dir is None and self.supervision is not None and self.supervision.run_dir:
            told = Path(self.supervision.run_dir)
            self.run_dir = told if told.is_dir() else Path("godmw-runs").absolute() / told.name
        return self.run_dir if self.run_dir is not None else Path("godmw-runs").absolute()

    # ---------------------------------------------------------------- the companion, and the end

    def _mind_companion(self, now_s: float) -> None:
        if self.companion is None:
            return
        said = self.companion.tick(self.children, now_s)
        if said:
            self.outlet.say(said)
        self.join = self.companion.join or self.join
        ended = self.companion.ended
        if ended is not None and self.supervision is not None:
            self._feed(ended)
        elif ended is not None:
            self.end = End(ended.code, ended.reason, ended.hint)

    def _signalled(self, signum: int) -> None:
        if self.supervision is not None:
            self._feed(Signalled(signum))
        elif self._stop_asked or self.companion is None:
            self.end = End(128 + signum, "a second signal", "")
        else:
            self._stop_asked = signum
            self.companion.signal(self.children, signum)

    def _explained(self, end: End) -> End:
        if end.code != ExitCode.UNREACHABLE or self.join is None:
            return end
        return End(end.code, f"{end.reason}: {diagnose(self.join.host, self.join.port)}", end.hint)

    def _see_the_master_off(self) -> None:
        """The master writes the summary and ends by itself; the agent has nothing left to do but to wait
        for that.
        """
        companion, deadline_s = self.companion, self.clock.now_s() + MASTER_ENDS_S
        while companion is not None and companion.ended is None and self.clock.now_s() < deadline_s:
            if not any(companion.owns(process) for process in self.children.processes.values()):
                return
            self._wait(0.25)
            self._children_now()
            if self.children.signalled:
                return


def run_agent(
    command: Sequence[str], *, slots: int, join: JoinAddress | None = None, run_dir: Path | None = None,
    threads: int | None = None, connect_s: float = CONNECT_S, tee: bool = False, sink: Sink | None = None,
    companion: Companion | None = None, on_start: Callable[[Agent], None] | None = None,
) -> End:  # fmt: skip
    """Run `command` in up to `slots` worker processes, as the master at `join` says, until the job ends.

    Returns how it ended (exit code, reason, hint).  `run_dir` is where ``logs/`` go; by default the
    master's own where that is on this machine.  Takes over the process: call it in the main thread of a
    process that has no other children.  Raises InternalError outside the main thread.
    """
    agent = Agent(
        command, slots=slots, join=join, run_dir=run_dir, threads=threads, connect_s=connect_s,
        outlet=Outlet(sink or Terminal(), tee=tee), tee=tee, companion=companion, clock=SystemClock(),
    )  # fmt: skip
    if on_start is not None:
        on_start(agent)
    return agent.run()
