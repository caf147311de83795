"""The job of a rehearsal: a person's script on 3 workers under a kill, a freeze, a join, a drain and a
master restart.

Its first steps are timed undisturbed; the others are let go one by one (`client/pace.py`), so that what
happens to the job happens within them, be a step of 2 ms or of 2 s. A user of the handle and nothing more.
Everything has a deadline, and whatever happens nothing is left running. It judges nothing but whether an
event came to its end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from godmw.client.handle import Run
from godmw.client.launch import start
from godmw.client.pace import Pace
from godmw.demo.checklist import Check
from godmw.errors import GodmwError, JobFailed, Unreachable

WORKERS = 3
EVENTS = ("kill", "freeze", "join", "drain", "master restart")
BEGIN_S, EVENT_S, END_S, TOTAL_S = 50.0, 45.0, 25.0, 150.0  # from here on `close` has less than 30 s
IDLE_S = 1.0  # a step is let go this often while something is awaited that needs none
LEAST_FREE = 4  # steps before anything happens
SHARE = 4  # the least number of steps an event gets …
HELD_BACK = 3  # … and how many of them are kept for the change itself
FEWEST = LEAST_FREE + SHARE * len(EVENTS)
KEEP_S = 4.0  # the pace is written again this often, so that it is not taken for forgotten
POLL_S = 0.05
MOVING = ("STANDBY", "SYNCING", "DRAINING")  # workers whose next state needs a boundary
WORDS = 60  # lines of a failed script's output that are shown
Tell = Callable[[str], None]
Status = dict[str, Any]


class Trial:
    """The job. `seen` are its statuses around each event, `struck` the workers that something was done to,
    `outcome` its summary.
    """

    def __init__(
        self,
        words: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        limit: int,
        ends_s: float,
        tell: Tell,
    ) -> None:
        self.path, self.limit = directory / "run", limit
        self.seen: list[Status] = []
        self.struck: set[str] = set()
        self.outcome: dict[str, Any] = {}
        self.words = ""
        self.free = max(
            LEAST_FREE, min(limit // 4, limit - SHARE * len(EVENTS))
        )  # steps that are only timed
        self.fitting = EVENTS[: max(0, limit - self.free) // SHARE]
        self._words, self._environment = list(words), environment
        self._pace = Pace(directory / "pace")
        self._ends_s, self._tell = ends_s, tell
        self._may = 0
        self._share = limit  # the steps that the event of now should do with
        self._kept_s = 0.0
        self._run: Run

    def play(self) -> list[Check]:
        """All events, as far as the job goes."""
        module = self._words[0] == "-m"
        script, *args = self._words[module:]
        self._allow(self.free)
        environment = {**self._environment, "GODMW_PACE": str(self._pace.path)}
        checks: list[Check] = []
        try:
            with start(
                script, *args, workers=WORKERS, run_dir=self.path, module=module, env=environment
            ) as run:
                self._run = run
                checks += self._events()
                self._finish()
        except GodmwError as error:
            self.words = str(error)
        happened = {check.name for check in checks}
        checks += [
            Check(name, False, "did not happen: the job was over", "see the last words above")
            for name in self.fitting
            if name not in happened
        ]
        checks += [
            Check(
                name,
                False,
                f"did not happen: {self.limit} steps are too few",
                f"rehearse with more data or epochs: {FEWEST} steps are enough for all",
            )
            for name in EVENTS[len(self.fitting) :]
        ]
        if self.failure is not None:
            self.words = last_words(self.path / "logs" / "run.log") or self.words
        return checks

    @property
    def failure(self) -> str | None:
        """Why the job did not come to its end; None when it did."""
        if self.outcome.get("outcome") == "finished":
            return None
        return " ".join(str(self.outcome.get("reason") or self.words or "it did not end in time").split())

    def metrics(self) -> dict[str, list[Any]]:
        """Of the committed steps, in columns."""
        run = Run(path=self.path)
        return run.metrics() if run.files is not None and run.files.metrics.exists() else {}

    def _events(self) -> list[Check]:
        checks = []
        self._tell(f"{WORKERS} workers, {self.limit} steps, run directory {self.path}")
        self._allow(self.free)
        at = self._reach(lambda seen: _ranked(seen) == WORKERS and seen["step"] >= self.free, BEGIN_S)
        self.seen.append(at)
        for number, name in enumerate(self.fitting):
            self._share = self._may + (self.limit - self._may) // (len(self.fitting) - number)
            act = getattr(self, "_" + name.replace(" ", "_"))
            begun_s, step = time.monotonic(), self._may
            try:
                found = act(self._reach(lambda seen: True))
            except (GodmwError, OSError) as error:
                late = isinstance(error, TimeoutError)
                advice = _advice(name) if late else "see the last words above"
                checks.append(Check(name, False, str(error), advice))
                if self._over():
                    break
                continue
            after_s = time.monotonic() - begun_s
            checks.append(Check(name, True, f"step {step}: {found}, {after_s:.1f} s"))
            self._tell(f"step {step}: {name}: {found}, {after_s:.1f} s")
        return checks

    # ---- what happens to it ----

    def _kill(self, seen: Status) -> str:
        victim = _member(seen, rank=1)
        self._strike(victim)
        self._run.kill(victim["id"], signal.SIGKILL)
        return self._replaced(victim)

    def _freeze(self, seen: Status) -> str:
        victim = _member(seen, rank=0)
        self._strike(victim)
        os.kill(victim["pid"], signal.SIGSTOP)
        return self._replaced(victim) + ", it was the leader"

    def _join(self, seen: Status) -> str:
        self._run.scale(WORKERS + 1)
        now = self._reach(lambda seen: _ranked(seen) == WORKERS + 1)
        new = {worker["id"] for worker in now["workers"]} - {worker["id"] for worker in seen["workers"]}
        return f"{', '.join(sorted(new))} joined"

    def _drain(self, seen: Status) -> str:
        members = [worker["id"] for worker in seen["workers"] if worker["rank"] is not None]
        worker = next((worker for worker in members if worker in self.struck), members[-1])
        self.struck.add(worker)
        self._run.drain(worker)
        self._reach(
            lambda seen: (
                all(item["id"] != worker for item in seen["workers"] if item["rank"] is not None)
                and seen["phase"] == "RUNNING"
            )
        )
        return f"{worker} left"

    def _master_restart(self, seen: Status) -> str:
        files = self._run.files
        pid = files.master_pid() if files else None
        if pid is None:
            raise JobFailed("the master's pid is not known")
        os.kill(pid, signal.SIGKILL)
        self._allow(min(self._may + 1, self._share))  # steps need no master
        size, step = _ranked(seen), seen["step"]
        now = self._reach(lambda seen: seen["term"] > 1 and _ranked(seen) == size and seen["step"] > step)
        return f"term {now['term']} runs with the same {size} workers"

    def _strike(self, victim: dict[str, Any]) -> None:
        self.struck.add(victim["id"])
        self._allow(min(self._may + 2, self._share))  # it falls while it works

    def _replaced(self, old: dict[str, Any]) -> str:
        self._reach(
            lambda seen: (
                _ranked(seen) == WORKERS and all(worker["pid"] != old["pid"] for worker in seen["workers"])
            )
        )
        return f"{old['id']} (pid {old['pid']}) fell and is back"

    # ---- time and steps ----

    def _allow(self, may: int) -> None:
        self._may = max(self._may, may)
        self._pace.set(self._may, self.limit)
        self._kept_s = time.monotonic()

    def _over(self) -> bool:
        return self._run.ended or (self._run.process is not None and self._run.process.poll() is not None)

    def _reach(self, reached: Callable[[Status], bool], within_s: float = EVENT_S) -> Status:
        """Until the status is so, with a step let go now and then.  JobFailed when the job ends before,
        TimeoutError when it does not come to that.
        """
        within_s = min(within_s, self._ends_s - time.monotonic())
        ends_s, let_go_s = time.monotonic() + within_s, time.monotonic()
        while True:
            over = self._over()
            try:
                seen = self._run.status()
            except Unreachable:
                seen = {}
            if over:
                raise JobFailed("the job was over before it had happened")
            if seen and reached(seen):
                self.seen.append(seen)
                return seen
            now_s = time.monotonic()
            if now_s > ends_s:
                raise TimeoutError(f"not within {max(within_s, 0):.0f} s and {self._may} steps")
            idle = now_s - let_go_s > IDLE_S and self._may < self._share - HELD_BACK
            moving = seen and self._may < self.limit - 1 and _moving(seen)
            if seen and seen["step"] >= self._may and (idle or moving):
                let_go_s = now_s
                self._allow(self._may + 1)
            elif now_s - self._kept_s > KEEP_S:
                self._allow(self._may)
            time.sleep(POLL_S)

    def _finish(self) -> None:
        """To the last step where there is time, else to the end after the next one."""
        if not self._over():
            self._allow(self.limit)
        while not self._over():
            left_s = self._ends_s - time.monotonic()
            if left_s < -END_S:
                return
            if left_s < 0:
                self._pace.set(0, 0)
            elif time.monotonic() - self._kept_s > KEEP_S:
                self._allow(self.limit)
            time.sleep(POLL_S)
        files = self._run.files
        self.outcome = (files.read_summary() if files else None) or {}


def _member(seen: Status, rank: int) -> dict[str, Any]:
    return next(worker for worker in seen["workers"] if worker["rank"] == rank)


def _ranked(seen: Status) -> int:
    """Members, in a generation that runs."""
    if seen["phase"] != "RUNNING":
        return -1
    return sum(worker["rank"] is not None for worker in seen["workers"])


def _moving(seen: Status) -> bool:
    return seen["phase"] != "RUNNING" or any(worker["state"] in MOVING for worker in seen["workers"])


def _advice(name: str) -> str:
    if name == "join":
        return "a step must have at least as many samples as workers; a worker must start within seconds"
    return (
        "what is slow here: imports, reading the data? Rehearse with less data; --run-dir D keeps the logs"
    )


def last_words(log: Path) -> str:
    """The end of what a run printed, from its last traceback on where there is one."""
    if not log.exists():
        return ""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if not line.startswith("godmw: ")
    ]
    begins = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    first = begins[-1] if begins else 0
    return "\n".join(lines[max(first, len(lines) - WORDS) :])
