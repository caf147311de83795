"""A job under a virtual clock for protocol tests: start it, let it run, break it, look at what was said.

`Cluster` drives the machines that ship, in memory and without waiting: seconds of a job take milliseconds.
A run is determined by its arguments.  Every promise of membership is checked while it runs; ``check`` goes
over the whole past. The page "Write a protocol test" beside this module has examples.
"""

from __future__ import annotations

from typing import Any

from godmw.config import JobSettings
from godmw.errors import UsageError
from godmw.membership import records as rec
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked
from godmw.simulate.script import Script
from godmw.simulate.world import World

TOKEN = "testing"
PATIENCE_S = 120.0  # virtual


class Stalled(AssertionError):
    """What was waited for did not come; the text ends with the last lines of the transcript."""


class Cluster:
    """A simulated job of `workers` workers, `agents` hosts sharing them (0: each started by hand).

    `shards` is S of every step and `steps` the script's length; `lease_s` holds on all hosts.
    `evaluate_every` puts an evaluation after every so many steps.  Further keywords are fields of
    `godmw.config.JobSettings`. Times are virtual seconds.  Names: ``w0``…, ``a0``…, ``master``.  Raises
    UsageError on names that do not exist.
    """

    def __init__(
        self, workers: int = 3, *, min: int = 1, max: int = 0, shards: int = 8, steps: int = 1000,
        lease_s: float = 2.0, seed: int = 0, agents: int = 1, evaluate_every: int = 0, beats: bool = False,
        **settings: Any,
    ) -> None:  # fmt: skip
        script = Script(steps=steps, shards=shards, evaluate_every=evaluate_every)
        slots = [workers // agents + (number < workers % agents) for number in range(agents)]
        given = {
            "lease_s": float(lease_s),
            "remote_lease_s": float(lease_s),
            "start_timeout_s": 5.0,
            **settings,
        }
        job = JobSettings(
            job="test", token=TOKEN, minimum=min, maximum=max, target=workers if agents else 1, **given
        )
        self.world = World(job, script, seed=seed, agents=slots)
        self.world.keep_beats = beats
        self._read = 0  # lines of the transcript in which `run_until` has looked for something said
        for _ in range(workers if not agents else 0):
            self.world.start_by_hand()

    # ------------------------------------------------------------------ time

    def run_until(
        self,
        *,
        step: int | None = None,
        phase: str | None = None,
        said: str | None = None,
        limit_s: float = PATIENCE_S,
    ) -> None:
        """Until the job has committed `step` steps, is in `phase` (``FINISHED``: and everybody has left),
        or the transcript has a line that contains `said` behind the one found last.  Raises Stalled after
        `limit_s`.
        """

        def there() -> bool:
            if step is not None and self.step < step:
                return False
            if phase is not None and not (self.phase == phase and (phase != "FINISHED" or self.world.over)):
                return False
            return said is None or self._heard(said)

        if not self.world.run(there, limit_s):
            wanted = {"step": step, "phase": phase, "said": said}
            asked = " ".join(f"{name}={value!r}" for name, value in wanted.items() if value is not None)
            tail = "\n".join(str(line) for line in self.world.lines[-40:])
            where = f"step {self.step}, {self.phase}: {self.reason}"
            raise Stalled(f"{asked} did not come in {limit_s} s; {where}\n{tail}")
        if said is None:
            self._read = len(self.world.lines)

    def _heard(self, said: str) -> bool:
        lines = self.world.lines
        while self._read < len(lines):
            line = lines[self._read]
            self._read += 1
            if said in f"{line.who}: {line.what}":
                return True
        return False

    def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        self.world.run(lambda: False, seconds)

    # ------------------------------------------------------------------ what can be done to it

    def kill(self, name: str) -> None:
        """SIGKILL a worker, an agent (its workers end with it), or the master."""
        self.world.note("KILL", name)
        if name == "master":
            self.world.master.kill()
        elif name in self.world.agents:
            self.world.agents[name].kill()
        else:
            self.world.worker(name).end(0, 9)

    def freeze(self, name: str) -> None:
        """SIGSTOP a worker, the master, or an agent with all its workers."""
        self.world.note("FREEZE", name)
        for process in self._processes(name):
            process.freeze()

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.world.note("THAW", name)
        for process in self._processes(name):
            self.world.agenda.after(0.0, process.thaw)

    def hold(self, worker: str) -> None:
        """A long call in `worker` holds its interpreter until `thaw`: it is silent, and its process is not
        stopped.
        """
        self.world.note("HOLD", worker)
        self.world.worker(worker).freeze(mute=True)

    def _processes(self, name: str) -> list[Any]:
        if name == "master":
            return [self.world.master]
        agent = self.world.agents.get(name)
        return [agent, *agent.children.values()] if agent else [self.world.worker(name)]

    def start_master(self) -> None:
        """Start a dead master again on its run directory."""
        self.world.master.start()

    def crash_master(self, at: str, away_s: float = 0.5) -> None:
        """The master dies right after it next journals a record of the kind `at` (``plan``, ``abort``,
        ``formed``, ``finish``), before it says anything, and is back after `away_s`.
        """
        if at not in rec.KINDS:
            raise UsageError(f"no journal record of kind {at!r}", hint=f"there are: {', '.join(rec.KINDS)}")

        def strikes(record: rec.JournalRecord) -> bool:
            hit = record.kind == at
            if hit:
                self.world.agenda.after(away_s, self.world.master.start)
            return hit

        self.world.master.crash_on = strikes

    def slow(self, worker: str, factor: float) -> None:
        """Every shard takes `factor` times as long on `worker`; below 1: faster."""
        self.world.slow(worker, factor)

    def cut(self, a: str, b: str) -> None:
        """Nothing passes between two of them, workers, agents or the master, until `mend`."""
        self.world.cut(a, b)

    def mend(self, a: str, b: str) -> None:
        """It passes again; what was stuck comes first."""
        self.world.mend(a, b)

    def add_worker(self, host: str = "") -> None:
        """Start one by hand, without an agent; the master gives it the next id."""
        self.world.start_by_hand(host)

    def add_agent(self, slots: int) -> str:
        """Start an agent on another host; returns its name."""
        name = f"a{len(self.world.agents)}"
        self.world.add_agent(name, f"host{len(self.world.agents)}", slots)
        return name

    # ------------------------------------------------------------------ an operator

    def drain(self, worker: str) -> dict[str, Any]:
        return self._ask(msg.Drain(token=TOKEN, worker=worker))

    def evict(self, worker: str) -> dict[str, Any]:
        return self._ask(msg.Evict(token=TOKEN, worker=worker))

    def scale(self, target: int) -> dict[str, Any]:
        return self._ask(msg.Scale(token=TOKEN, target=target))

    def pause(self) -> dict[str, Any]:
        return self._ask(msg.Pause(token=TOKEN))

    def resume(self) -> dict[str, Any]:
        return self._ask(msg.Resume(token=TOKEN))

    def stop(self, reason: str = "") -> dict[str, Any]:
        return self._ask(msg.Stop(token=TOKEN, reason=reason))

    def status(self) -> dict[str, Any]:
        """The object of ``godmw status --json``.  Raises Stalled without a master."""
        return self._ask(msg.Status(token=TOKEN))

    def _ask(self, message: Checked) -> dict[str, Any]:
        number = self.world.ask(message)
        if not number or not self.world.run(lambda: self.world.answer(number) is not None, 2.0):
            raise Stalled(f"no master answers {type(message).__name__}")
        answer = self.world.answer(number)
        assert answer is not None
        return dict(answer[1])

    # ------------------------------------------------------------------ what can be seen

    @property
    def step(self) -> int:
        """Steps that anybody has committed."""
        steps = [self.world.script.step_of(commit.operation) for commit in self.world.history.commits]
        return 1 + max(steps, default=-1)

    @property
    def phase(self) -> str:
        """The job's phase as the master has it; ``AWAY`` without a master."""
        return str(self._view().get("phase", "AWAY"))

    @property
    def reason(self) -> str:
        """Why the phase is what it is."""
        return str(self._view().get("reason", ""))

    @property
    def generation(self) -> int:
        return int(self._view().get("generation", 0))

    @property
    def term(self) -> int:
        return self.world.master.term

    @property
    def members(self) -> tuple[str, ...]:
        """Ids in rank order, as the master has them."""
        rows = [row for row in self._view().get("workers", []) if row["rank"] is not None]
        return tuple(row["id"] for row in sorted(rows, key=lambda row: row["rank"]))

    def _view(self) -> dict[str, Any]:
        master = self.world.master
        if master.ended is not None:
            return {"phase": master.ended.outcome.upper(), "reason": master.ended.reason}
        return master.coordinator.view() if master.coordinator is not None else {}

    def state(self, worker: str) -> str:
        """A worker's state in capitals, as the master has it; ``DEAD`` or ``LEFT`` when it is gone."""
        coordinator = self.world.master.coordinator
        if coordinator is not None:
            known = coordinator.job.roster.current(worker)
            if known is not None:
                return known.state.value
        process = self.world.worker(worker)
        if process.alive:
            return process.participant.state.value
        return "LEFT" if process.exit is not None and process.exit[:2] == (0, 0) else "DEAD"

    def sent(self, kind: str | type[Checked], to: str | None = None, by: str | None = None) -> list[Any]:
        """Messages of one kind that were sent so far, oldest first, `to` or `by` one of them."""
        name = kind if isinstance(kind, str) else kind.__name__
        if name not in {row.cls.__name__ for row in msg.MESSAGES}:
            raise UsageError(f"no message is called {name!r}", hint="godmw/protocol/README.md has the table")
        return [
            mail.message
            for mail in self.world.mail
            if type(mail.message).__name__ == name
            and to in (None, mail.target)
            and by in (None, mail.source)
        ]

    def assignment(self, step: int) -> dict[str, tuple[int, ...]]:
        """Whose shards step `step` was the sum of.  Raises UsageError while it is not committed."""
        for commit in self.world.history.commits:
            if self.world.script.step_of(commit.operation) == step:
                return {name.partition("#")[0]: shards for name, shards in commit.parts}
        raise UsageError(f"step {step} is not committed, the job has committed {self.step}")

    def transcript(self, *, detail: bool = False) -> str:
        """What was said and done, one line each; `detail`: also each shard, contribution and ready word."""
        return "".join(f"{line}\n" for line in self.world.lines if detail or not line.detail)

    def check(self) -> None:
        """All invariants over the whole past.  Raises `godmw.membership.invariants.Violation`."""
        self.world.check()
