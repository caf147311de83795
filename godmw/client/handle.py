"""The handle of a job: start one, or connect to one, and talk to it from Python without torch.

``start`` and ``connect`` give a `Run`; the commands are a thin layer over it. While the job runs its
master answers; what has ended answers from the files of its run directory. Every call answers within
seconds or raises a `GodmwError`; only `wait` and `result` wait for the job, as long as they are told to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from godmw.client.rundir import RunDir
from godmw.config import SCHEME, JoinAddress
from godmw.errors import JobFailed, Unreachable, UsageError
from godmw.lines import read_lines

POLL_S = 0.05
FOLLOW_S = 0.1
END_S = 12.0  # a run that was asked to end has this long
ENDED = ("FINISHED", "STOPPED", "FAILED")


class Run:
    """A job: its run directory where that is on this machine, its master's address where it is not."""

    def __init__(
        self,
        path: Path | None = None,
        address: JoinAddress | None = None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.files = RunDir(path) if path is not None else None
        self.process = process
        self._address = address

    def __repr__(self) -> str:
        return f"Run({str(self.path) if self.path else self._where()})"

    @property
    def path(self) -> Path | None:
        """The run directory; None for a job that is known by its address alone."""
        return self.files.path if self.files else None

    # ------------------------------------------------------------------ asking

    def status(self) -> dict[str, Any]:
        """The object of ``godmw status --json``.  Raises Unreachable when it neither runs nor is over."""
        return self._ask("Status")

    @property
    def ended(self) -> bool:
        """Whether the job is over: finished, stopped or failed."""
        return self.files is not None and self.files.summary.exists()

    def final_status(self) -> dict[str, Any]:
        """The status an ended job was left with."""
        return (self.files.final_status() if self.files else None) or {}

    def wait(
        self,
        *,
        step: int | None = None,
        phase: str | None = None,
        workers: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Until the job has committed `step` steps, is in `phase`, runs with `workers` members: all given.

        With none of them: until it is over. Returns the status. Raises TimeoutError after `timeout_s` (None:
        never), JobFailed when the job ends before it came to that.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        wanted = {"step": step, "phase": phase, "world_size": workers}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        seen: dict[str, Any] = {}
        while True:
            over = self.ended or self._process_ended()
            try:
                seen = self.status()
            except Unreachable:
                if over:
                    raise
            if (_reached(seen, wanted) and seen) if wanted else self.ended:
                return seen
            if over:
                raise JobFailed(
                    f"the job is over ({seen.get('phase')}, step {seen.get('step')}), not at {wanted}"
                )
            if until_s is not None and time.monotonic() > until_s:
                at = {name: seen.get(name) for name in ("phase", "step", "world_size")}
                raise TimeoutError(f"waited {timeout_s} s for {wanted or 'the end'}; the job is at {at}")
            time.sleep(POLL_S)

    def events(self, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """The events so far, oldest first; with `follow` also those to come, until the job is over."""
        if self.files is None:
            yield from self._subscribed(follow)
            return
        offset = 0
        while True:
            over = self.ended or self._process_ended() or not follow
            for event, end in read_lines(self.files.events, offset):
                offset = end
                yield event
            if over:
                return
            time.sleep(FOLLOW_S)

    def metrics(self) -> dict[str, list[Any]]:
        """The columns of ``metrics.jsonl``, one entry a committed step."""
        columns: dict[str, list[Any]] = {}
        for line, _ in read_lines(self._need_files("its metrics").metrics):
            for name, value in line.items():
                columns.setdefault(name, []).append(value)
        return columns

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The summary, after waiting for the job's end.  Raises TimeoutError, JobFailed without one."""
        files = self._need_files("its summary")
        self.wait(timeout_s=timeout_s)
        summary = files.read_summary()
        if summary is None:
            raise JobFailed(f"{files.summary} cannot be read")
        return summary

    # ------------------------------------------------------------------ commanding

    def scale(self, workers: int) -> dict[str, Any]:
        """Set the target number of workers."""
        return self._ask("Scale", target=workers)

    def drain(self, worker: str) -> dict[str, Any]:
        """Let `worker` leave at the next boundary; the target goes down by one."""
        return self._ask("Drain", worker=worker)

    def evict(self, worker: str) -> dict[str, Any]:
        """Remove `worker` without its consent; the target goes down by one."""
        return self._ask("Evict", worker=worker)

    def kill(self, worker: str, signal: int = signal.SIGKILL) -> dict[str, Any]:
        """Send a signal to `worker` through its agent; an exit it causes is not counted against it."""
        return self._ask("Kill", worker=worker, signal=int(signal))

    def pause(self) -> dict[str, Any]:
        """Hold all members at the next boundary."""
        return self._ask("Pause")

    def resume(self) -> dict[str, Any]:
        """End a pause."""
        return self._ask("Resume")

    def stop(self, reason: str = "stopped by an operator") -> dict[str, Any]:
        """End the job early."""
        return self._ask("Stop", reason=reason)

    # ------------------------------------------------------------------ a process of our own

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that `start` started, if it still runs; a job connected to is left alone."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _process_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    # ------------------------------------------------------------------ the way there

    def _ask(self, request: str, **fields: Any) -> dict[str, Any]:
        """What the master answers to the admin message named `request`; of an ended job its final status."""
        if self.ended:
            return self.final_status()
        from godmw.client.admin import Admin  # sockets and messages: not for what only reads files
        from godmw.protocol import messages

        with Admin(self._where()) as admin:
            try:
                return admin.request(getattr(messages, request)(token=admin.token, **fields))
            except Unreachable as error:
                final = self.final_status()  # it may have ended while we asked
                if final:
                    return final
                if self.path is not None:
                    error.hint = f"take the job up again: godmw master --run-dir {self.path}"
                raise

    def _subscribed(self, follow: bool) -> Iterator[dict[str, Any]]:
        if not follow:
            raise UsageError(
                "past events are in the run directory", hint="--follow, or name the run directory"
            )
        from godmw.client.admin import Admin

        with Admin(self._where()) as admin:
            for event in admin.follow(idle_s=FOLLOW_S):
                if event is not None and event.get("kind") != "subscribed":
                    yield event
                if event is not None and event.get("kind") == "end":
                    return

    def _where(self) -> JoinAddress:
        address = self._address or (self.files.address() if self.files else None)
        if address is None:
            raise Unreachable(
                f"no master has been bound in {self.path} yet",
                hint=f"godmw master --run-dir {self.path}",
            )
        return address

    def _need_files(self, what: str) -> RunDir:
        if self.files is None:
            raise UsageError(
                f"{what} are in the run directory, which is not known here", hint="connect(RUN_DIR)"
            )
        return self.files


def _reached(seen: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(
        seen.get(name, -1) >= value if name == "step" else seen.get(name) == value
        for name, value in wanted.items()
    )


def connect(target: str | os.PathLike[str] | JoinAddress) -> Run:
    """The job of a run directory or of ``godmw://HOST:PORT/TOKEN``.  Raises UsageError for neither."""
    if isinstance(target, JoinAddress):
        return Run(address=target)
    if isinstance(target, str) and target.startswith(SCHEME):
        address = JoinAddress.parse(target)
        if not address.token:
            raise UsageError(
                f"{address.bare()} has no token", hint="the line that `godmw master` printed has it"
            )
        return Run(address=address)
    path = Path(target)
    if not path.is_dir():
        raise UsageError(f"{str(target)!r} is no run directory and no {SCHEME}HOST:PORT address")
    return Run(path=path)
