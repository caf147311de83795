"""Whole jobs of real processes under watch: what happened to them is read in their run directory, in order,
and at their end every promise is looked at.

A test says what it does and then what it must see (`Job.see`): no test waits for a time to pass.  Bounds
are generous, because the machine may be busy with other things.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import godmw
from godmw.client.handle import Run
from godmw.client.rundir import RunDir
from godmw.data.audit import audit
from godmw.lines import read_lines
from godmw.worker.agent import kin
from tests.integration import processes
from tests.integration.processes import alive, ended, wait_until

SCRIPTS = Path(__file__).parent / "scripts"
SMALL = SCRIPTS / "small.py"
PATIENCE_S = 60.0
SHM = Path("/dev/shm")
PACE_S = 0.02  # a step leaves the processor to those who start
ENDLESS = 1_000_000  # steps: the test says when it is over


class Job:
    """A run directory, the processes started for it, and what is known of its members."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.path = folder, folder / "run"
        self.until = folder / "until"
        self.mark = f"GODMW_JOB={os.getpid()}.{time.monotonic_ns()}"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.files = RunDir(self.path)
        self.process: Any = None
        self._stack = stack
        self._offset = 0
        self._shm = set(os.listdir(SHM))
        self.first_pids: dict[str, int] = {}

    # ------------------------------------------------------------------ processes

    def _env(self, env: dict[str, str] | None) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        return {name: value, "TMPDIR": str(self.scratch), **(env or {})}

    def godmw(self, *args: str, env: dict[str, str] | None = None) -> Any:
        """`godmw ARGS` for this job."""
        return self._stack.enter_context(processes.godmw(*args, env=self._env(env), cwd=self.folder))

    def python(self, *args: str, env: dict[str, str] | None = None) -> Any:
        """`python ARGS`, a worker without an agent."""
        return self._stack.enter_context(processes.python(*args, env=self._env(env), cwd=self.folder))

    def start(self, workers: int, *options: str, script: Path = SMALL, args: tuple[str, ...] = ()) -> Job:
        """`godmw run` of a script that goes on until the test says so; returns when all are members."""
        self.begin(workers, *options, script=script, args=args)
        self.see("formed", members=workers)
        self.first_pids = self.pids()
        assert len(self.first_pids) == workers
        return self

    def begin(self, workers: int, *options: str, script: Path = SMALL, args: tuple[str, ...] = ()) -> None:
        self.process = self.godmw(
            "run",
            "--workers",
            str(workers),
            "--run-dir",
            str(self.path),
            *options,
            *self.line(script, *args),
        )

    def line(self, script: Path = SMALL, *args: str) -> list[str]:
        """The script and its arguments, endless until `until` is there."""
        steps = [] if "--steps" in args else ["--steps", str(ENDLESS)]
        pace = [] if "--pace" in args else ["--pace", str(PACE_S)]
        return [str(script), *steps, *pace, "--until", str(self.until), *args]

    def master(self, *options: str) -> Any:
        """`godmw master` by hand; returns when it listens."""
        process = self.godmw("master", "--run-dir", str(self.path), *options)
        wait_until(
            lambda: self.files.master_pid() == process.pid or process.poll() is not None,
            PATIENCE_S,
            "a master",
        )
        assert process.poll() is None, process.stderr.read()
        return process

    @property
    def join(self) -> dict[str, str]:
        """What is pasted in front of `godmw worker`."""
        address = self.files.address()
        assert address is not None
        return {"GODMW_JOIN": address.format()}

    # ------------------------------------------------------------------ looking

    @property
    def run(self) -> Run:
        return godmw.connect(self.path)

    def status(self) -> dict[str, Any]:
        return self.run.status()

    def pids(self) -> dict[str, int]:
        """The members now, in order of rank."""
        members = [w for w in self.status()["workers"] if w["rank"] is not None]
        return {w["id"]: w["pid"] for w in sorted(members, key=lambda w: w["rank"])}

    def see(self, kind: str, *, within_s: float = PATIENCE_S, **fields: Any) -> dict[str, Any]:
        """The next event of `kind` with these fields (`members`: how many), after the last one seen."""
        begin = time.monotonic()
        while True:
            seen = []
            for event, end in read_lines(self.files.events, self._offset):
                seen.append(event)
                if event["kind"] == kind and all(_agrees(event, *item) for item in fields.items()):
                    self._offset = end
                    return event
            if time.monotonic() - begin > within_s or self._over():
                told = "\n".join(json.dumps(event)[:240] for event in seen)
                if self._over():
                    told += f"\nand it ended: {ended(self.process)}"
                raise AssertionError(f"no {kind} {fields} within {within_s} s after what was seen:\n{told}")
            time.sleep(0.01)

    def _over(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def goes_on(self, steps: int = 5) -> int:
        """Until that many more steps are committed; the step then."""
        now = self.status()["step"]
        return int(self.run.wait(step=now + steps, timeout_s=PATIENCE_S)["step"])

    def kill(self, *workers: str, signum: int = signal.SIGKILL) -> float:
        """A signal from outside; the killer's clock."""
        pids = self.pids()
        when = time.time()
        for worker in workers:
            os.kill(pids[worker], signum)
        return when

    def kill_pid(self, pid: int | None, signum: int = signal.SIGKILL) -> float:
        assert pid is not None
        when = time.time()
        os.kill(pid, signum)
        return when

    def commits_after(self, when: float) -> list[float]:
        """The times of the commits that metrics.jsonl knows after `when`."""
        return [t for t in self.run.metrics()["t"] if t > when]

    # ------------------------------------------------------------------ the end

    def finish(self, *, survivors: tuple[str, ...] = (), digests: int | None = None) -> dict[str, Any]:
        """Let the script end; look at everything that is promised; returns the summary."""
        self.until.touch()
        code, out, err = ended(self.process, PATIENCE_S)
        assert code == 0, (code, out, err)
        return self.check(survivors=survivors, digests=digests)

    def check(self, *, survivors: tuple[str, ...] = (), digests: int | None = None) -> dict[str, Any]:
        """One history, one digest, the survivors are the processes that they were, nothing is left."""
        summary, final = self.files.read_summary(), self.files.final_status()
        assert summary is not None
        assert final is not None
        assert summary["outcome"] == "finished", summary
        report = audit(self.files.ledger)
        assert report.clean, report
        assert (report.missing, report.repeated) == (0, 0)
        columns = self.run.metrics()
        assert columns["step"] == list(range(summary["steps"]))
        assert report.steps == summary["steps"] > 0
        assert summary["samples"] == report.samples == sum(columns["samples"])
        last = list(self.run.events())
        known = [event["digest"] for event in last if event["kind"] == "ended"]
        assert len(set(known)) == 1, known
        assert len(known) == (digests or len([w for w in final["workers"] if w["rank"] is not None]))
        pids = {w["id"]: w["pid"] for w in final["workers"]}
        assert {w: pids.get(w) for w in survivors} == {w: self.first_pids[w] for w in survivors}
        self.nothing_left()
        return summary

    def nothing_left(self) -> None:
        """No process, no socket file and no shared memory within 5 s."""
        wait_until(lambda: not self.left(), 5.0, f"nothing is left: {self.left()}")
        wait_until(lambda: not self._shared(), 5.0, f"nothing is left in {SHM}: {self._shared()}")
        # torch's own: its compiler's cache, and torchrun's folder of logs
        left = sorted(path.name for path in self.scratch.iterdir())
        assert [name for name in left if not name.startswith(("torchinductor", "torchelastic"))] == []

    def left(self) -> list[int]:
        return kin.find([self.mark], [])

    def _shared(self) -> set[str]:
        """What has come into shared memory and no living process holds: others work here too."""
        new = set(os.listdir(SHM)) - self._shm
        if not new:
            return new
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                maps = Path("/proc", pid, "maps").read_text(errors="replace")
                new -= {name for name in new if f"{SHM}/{name}" in maps}
        return new & set(os.listdir(SHM))


def _agrees(event: dict[str, Any], name: str, wanted: Any) -> bool:
    if name == "members" and isinstance(wanted, int):
        return len(event.get("members") or ()) == wanted
    return bool(event.get(name) == wanted)


@contextlib.contextmanager
def job(folder: Path) -> Iterator[Job]:
    """A job in this folder; whatever was started for it is killed when the block is left."""
    with contextlib.ExitStack() as stack:
        yield Job(folder, stack)


__all__ = ["PATIENCE_S", "SCRIPTS", "SMALL", "Job", "alive", "job"]
