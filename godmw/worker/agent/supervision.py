"""What an agent does, decided without processes, sockets or clocks: events and the time in, actions out.

Owns which children run in which slot, what the master is told of them and when, what happens while the
master is away, and when and with which code the agent ends.  Contract: the shell feeds every fact once,
with the time it learned it, and performs the actions in order; ``next_deadline`` says when a ``Tick`` is
due at the latest. Children run on while the master is away; every exit is kept and told again after each
registration, because a message in a broken connection is lost and a report is idempotent (it is keyed by
worker and incarnation). It must not know how a process is started or what a message looks like in bytes.
"""

from __future__ import annotations

import signal

from godmw.errors import ExitCode
from godmw.protocol.fields import Checked
from godmw.protocol.messages import (
    AgentBeat,
    AgentHello,
    AgentWelcome,
    Child,
    ChildExited,
    Drain,
    Finish,
    Header,
    Launch,
    Notice,
    Refused,
    Reply,
    Terminate,
)
from godmw.worker.agent.facts import (
    Action,
    Connected,
    Disconnected,
    End,
    Event,
    Exited,
    Heard,
    MasterEnded,
    Observed,
    OtherVersion,
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
    order,
)
from godmw.worker.agent.standing import Cause, Link, moved

FINISH_GRACE_S = 3.0  # Finish has reached the children too: this long they end by themselves
KILL_AFTER_S = 1.0  # from SIGTERM to SIGKILL
UNKILLABLE_S = 3.0  # a child that has not ended by then hangs in the kernel
LEAVE_S = 8.0  # asked to go: a drain has this long, so that all is over within 10 s
SAY_WAITING_S = 2.0
HUSH_S = 1.0  # after the failure of the worker whose output passed
HELLO_AGAIN_S = 1.0
HELLO_AGAIN_MAX_S = 5.0
STOPPED = "T"  # the state letter of a stopped process; 't' is one under a debugger


class Supervision:
    """The agent's decisions.

    ``where`` is how the master is named to a person.  ``owns_master``: the agent belongs to ``godmw
    run``, which started the master itself: it is asked to stop by a signal, and not waited for in vain
    (its own keeper does that).
    """

    def __init__(
        self, *, token: str, host: str, pid: int, slots: int, where: str, owns_master: bool, now_s: float,
        connect_s: float,
    ) -> None:  # fmt: skip
        self.token, self.host, self.pid, self.slots, self.where = token, host, pid, slots, where
        self.owns_master = owns_master
        self.link = Link.NEW
        self.job, self.term, self.run_dir = "", 0, ""
        self.beat_s, self.lease_s, self.orphan_s = 0.25, 2.0, 600.0
        self.children: dict[str, Child] = {}
        self.exits: dict[str, ChildExited] = {}  # the last one of each worker
        self.first_failure: ChildExited | None = None
        self.end: End | None = None  # decided; said when no child is left
        self.over = False
        self._slots: dict[str, int] = {}
        self._queued: dict[str, Launch] = {}  # wait for the worker's last incarnation to be gone
        self._waits_since = now_s
        self._give_up_at: float | None = None if owns_master else now_s + connect_s
        self._hello_at, self._hello_gap_s = now_s, HELLO_AGAIN_S
        self._beat_at = now_s
        self._seen_at = now_s
        self._kill: list[tuple[float, int]] = []  # (when, signal) for every child still there; 0: leave
        self._leave_by: float | None = None  # asked to go: all is over by then
        self._drain_refused = False
        self._hush_until = now_s
        self._say_waiting_at: float | None = None if owns_master else now_s + SAY_WAITING_S

    # ---------------------------------------------------------------- in and out

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Take one event; returns what is to be done, in order."""
        if self.over:
            return []
        actions: list[Action] = []
        late_s, self._seen_at = now_s - self._seen_at, now_s
        match event:
            case Connected():
                actions += self._connected(now_s)
            case Disconnected():
                actions += self._disconnected(now_s)
            case Heard(header, message):
                actions += self._heard(header, message, now_s)
            case OtherVersion(reason) if not self.term:
                hint = "install the same version of godmw on both sides"
                actions += self._ending(
                    End(int(ExitCode.VERSION), f"{self.where}: {reason}", hint), now_s, 0.0
                )
            case Started(worker, incarnation, pid):
                self.children[worker] = Child(worker=worker, incarnation=incarnation, pid=pid, process="R")
                actions += self._beat(now_s)
            case StartFailed(worker, incarnation, reason):
                actions += self._gone(worker, incarnation, 127, 0, reason, now_s)
            case Exited(worker, incarnation, code, signum, last_words):
                actions += self._gone(worker, incarnation, code, signum, last_words, now_s)
            case Observed(letters):
                actions += self._observed(letters, now_s)
            case Signalled(signum):
                actions += self._signalled(signum, now_s)
            case MasterEnded(code, reason, hint):
                actions += self._ending(End(code, reason, hint), now_s, FINISH_GRACE_S)
            case Tick() | OtherVersion():
                pass
        if late_s > self.lease_s and self.link is Link.REGISTERED:
            actions.append(self._hello(now_s))  # this process stood still: it may have been given up
        actions += self._timed(now_s)
        return actions

    def next_deadline(self) -> float:
        """When ``Tick`` is due at the latest."""
        times = [self._seen_at + 1.0]
        if self.link is Link.REGISTERED:
            times.append(self._beat_at)
        elif self.link is Link.HELLO:
            times.append(self._hello_at)
        if self._give_up_at is not None and not self._slots:
            times.append(self._give_up_at)
            if self._say_waiting_at is not None:
                times.append(self._say_waiting_at)
        times += [when for when, _ in self._kill]
        return min(times)

    def passing(self, now_s: float) -> str | None:
        """Whose output passes to the terminal: the lowest worker alive, who usually leads.

        For a moment nobody's when that one's script has failed: one error ends all scripts alike, and a
        person wants its traceback once.
        """
        return None if now_s < self._hush_until else min(self.children, key=order, default=None)

    # ---------------------------------------------------------------- the master

    def _connected(self, now_s: float) -> list[Action]:
        self.link = moved(self.link, Cause.CONNECTED)
        self._hello_gap_s = HELLO_AGAIN_S
        return [self._hello(now_s)]

    def _disconnected(self, now_s: float) -> list[Action]:
        known = self.link is Link.REGISTERED
        never = not self.term
        self.link = moved(self.link, Cause.LOST)
        if never:
            self.link = Link.NEW
        if not known:
            return []
        self._waits_since = now_s
        if not self.owns_master and self.end is None:
            self._give_up_at = now_s + self.orphan_s
        if self.end is not None:
            return []
        count = len(self.children)
        return [
            Say(f"the master at {self.where} is away; {count} worker(s) here go on, and it is tried again")
        ]

    def _hello(self, now_s: float) -> Send:
        self._hello_at = now_s + self._hello_gap_s
        self._hello_gap_s = min(2 * self._hello_gap_s, HELLO_AGAIN_MAX_S)
        children = tuple(self.children.values())
        return Send(
            AgentHello(token=self.token, host=self.host, pid=self.pid, slots=self.slots, children=children)
        )

    def _heard(self, header: Header, message: Checked, now_s: float) -> list[Action]:
        """The one gate: nothing of a lower term, nothing of another job once ours is known."""
        other = bool(self.job) and header.job != self.job
        if header.term < self.term or (other and not isinstance(message, Refused)):
            return []
        match message:
            case AgentWelcome():
                return self._welcome(header, message, now_s)
            case Refused(code=code, reason=reason, hint=hint):
                return self._ending(End(code, reason, hint), now_s, 0.0)
            case Finish(code=code, reason=reason):
                return self._ending(End(code, reason, ""), now_s, FINISH_GRACE_S)
            case Launch():
                return self._launch(message, now_s)
            case Terminate(worker=worker, incarnation=incarnation, signal=signum):
                return self._terminate(worker, incarnation, signum)
            case Notice(text=text):
                return [Say(text)]
            case Reply(code=code, body=body):
                return self._drain_answered(code, body, now_s)
            case _:
                return []

    def _welcome(self, header: Header, message: AgentWelcome, now_s: float) -> list[Action]:
        if self.link not in (Link.HELLO, Link.REGISTERED):
            return []  # of a connection that is gone already
        back = self.term and header.term > self.term
        self.link = moved(self.link, Cause.WELCOME)
        self._give_up_at = self._say_waiting_at = None
        self.job, self.term, self.run_dir = header.job, header.term, message.run_dir
        self.beat_s, self.lease_s, self.orphan_s = message.beat_s, message.lease_s, message.orphan_s
        actions: list[Action] = [Say(f"the master is back (term {self.term})")] if back else []
        actions += [Send(report) for report in self.exits.values()]
        if self._leave_by is not None:
            actions += self._drains()
        return actions + self._beat(now_s)

    # ---------------------------------------------------------------- children

    def _launch(self, launch: Launch, now_s: float) -> list[Action]:
        worker, incarnation = launch.worker, launch.incarnation
        if self.end is not None or self._leave_by is not None:
            return []
        known = self.children.get(worker)
        if known is not None and incarnation <= known.incarnation:
            return self._beat(now_s)  # said twice, or out of date: the beat shows what runs
        last = self.exits.get(worker)
        if last is not None and incarnation <= last.incarnation:
            return [Send(last)]
        if worker in self._slots:
            self._queued[worker] = launch
            return [Signal(known.pid, signal.SIGKILL)] if known is not None else []
        taken = set(self._slots.values())
        slot = launch.slot if launch.slot not in taken else min(set(range(len(taken) + 1)) - taken)
        self._slots[worker] = slot
        return [Start(worker, incarnation, slot, launch.rank_hint, launch.world_hint)]

    def _terminate(self, worker: str, incarnation: int, signum: int) -> list[Action]:
        child = self.children.get(worker)
        if child is not None and child.incarnation == incarnation:
            return [Signal(child.pid, signum)]
        last = self.exits.get(worker)
        return [Send(last)] if last is not None and last.incarnation == incarnation else []

    def _gone(
        self, worker: str, incarnation: int, code: int, signum: int, last_words: str, now_s: float
    ) -> list[Action]:
        actions = self._report(worker, incarnation, code, signum, last_words)
        if code and worker == self.passing(now_s):
            self._hush_until = now_s + HUSH_S
        child = self.children.pop(worker, None)
        self._slots.pop(worker, None)
        if child is not None:
            actions.append(Sweep(worker, incarnation, child.pid))
        queued = self._queued.pop(worker, None)
        return actions if queued is None else actions + self._launch(queued, now_s)

    def _report(
        self, worker: str, incarnation: int, code: int, signum: int, last_words: str
    ) -> list[Action]:
        report = ChildExited(
            worker=worker, incarnation=incarnation, code=code, signal=signum, last_words=last_words
        )
        self.exits[worker] = report
        if (code or signum) and self.first_failure is None and self.end is None:
            self.first_failure = report
        return [Send(report)] if self.link is Link.REGISTERED else []

    def _observed(self, letters: dict[str, str], now_s: float) -> list[Action]:
        changed = False
        for worker, letter in letters.items():
            child = self.children.get(worker)
            if child is not None and child.process != letter:
                changed |= STOPPED in (child.process, letter)
                self.children[worker] = Child(
                    worker=worker, incarnation=child.incarnation, pid=child.pid, process=letter
                )
        return self._beat(now_s) if changed else []

    def _beat(self, now_s: float) -> list[Action]:
        if self.link is not Link.REGISTERED:
            return []
        self._beat_at = now_s + self.beat_s
        return [Send(AgentBeat(children=tuple(self.children.values())))]

    # ---------------------------------------------------------------- the end

    def _signalled(self, signum: int, now_s: float) -> list[Action]:
        """The first SIGINT or SIGTERM asks; the second does not."""
        if self._leave_by is not None:
            self.end = End(128 + signum, f"a second {signal.Signals(signum).name}", "")
            self._kill_all(now_s)
            return [SignalMaster(signal.SIGKILL)] if self.owns_master else []
        self._leave_by = now_s + LEAVE_S
        if self.end is not None:
            self._kill_all(now_s)
            return []
        name = signal.Signals(signum).name
        if self.owns_master:
            self._kill_all(self._leave_by)
            say = Say(f"{name}: stopping the job (a second one ends it at once)")
            return [say, SignalMaster(signal.SIGTERM)]
        self.end = End(int(ExitCode.RESUMABLE), f"left after {name}", "")
        if self.link is not Link.REGISTERED or not self.children:
            self._terminate_all(now_s)
            return []
        self._kill_all(self._leave_by)
        count = len(self.children)
        return [Say(f"{name}: draining {count} worker(s) (a second one ends them at once)"), *self._drains()]

    def _drains(self) -> list[Action]:
        if self.owns_master:
            return []
        return [Send(Drain(token=self.token, worker=worker)) for worker in sorted(self.children, key=order)]

    def _drain_answered(self, code: int, body: str, now_s: float) -> list[Action]:
        """A drain that is refused (the last worker with state) is not waited for: this host has to go."""
        if not code or self._leave_by is None or self._drain_refused:
            return []
        self._drain_refused = True
        self._terminate_all(now_s)
        return [Say(f"a drain was refused, the workers here end without one: {body}")]

    def _ending(self, end: End, now_s: float, grace_s: float) -> list[Action]:
        """The first word stands: a Finish heard twice, or the master's own end after it, changes nothing."""
        if self.end is not None:
            return []
        self.end = end
        self._give_up_at = None
        at = now_s + grace_s if self._leave_by is None else min(now_s + grace_s, self._leave_by)
        self._terminate_all(at)
        return []

    def _terminate_all(self, at_s: float) -> None:
        self._kill_all(at_s + KILL_AFTER_S)
        self._kill.insert(0, (at_s, int(signal.SIGTERM)))

    def _kill_all(self, at_s: float) -> None:
        self._kill = [(at_s, int(signal.SIGKILL)), (at_s + UNKILLABLE_S, 0)]

    def _timed(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        if self.link is Link.HELLO and now_s >= self._hello_at:
            actions.append(self._hello(now_s))
        if self.link is Link.REGISTERED and now_s >= self._beat_at:
            actions += self._beat(now_s)
        if (
            self._say_waiting_at is not None
            and now_s >= self._say_waiting_at
            and self._give_up_at is not None
        ):
            left_s = max(0.0, self._give_up_at - now_s)
            actions.append(Say(f"waiting for the master at {self.where} (gives up in {left_s:.0f} s)"))
            self._say_waiting_at = None
        if self._give_up_at is not None and now_s >= self._give_up_at and not self._slots:
            self._unreachable(now_s)
        due = [signum for when, signum in self._kill if now_s >= when]
        if due:
            self._kill = [(when, signum) for when, signum in self._kill if now_s < when]
            if self.end is None:
                self.end = End(
                    int(ExitCode.RESUMABLE), f"stopped; the master did not end within {LEAVE_S:.0f} s", ""
                )
            if due[-1]:
                actions += [Signal(child.pid, due[-1]) for child in self.children.values()]
            else:
                self.children, self._slots = {}, {}  # in the kernel, beyond any signal: left to the keeper
        if self.end is not None and not self.children and not self._slots:
            self.over = True
            actions.append(self.end)
        return actions

    def _unreachable(self, now_s: float) -> None:
        waited = now_s - self._waits_since
        hint = "check the address, or start one: godmw master"
        end = End(int(ExitCode.UNREACHABLE), f"no master at {self.where} for {waited:.0f} s", hint)
        self._ending(end, now_s, 0.0)
