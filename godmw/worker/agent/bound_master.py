"""A master bound to another process: started for it, started again when it dies, never left behind by it.

Rank 0 under torchrun starts this beside itself, ``python -m godmw.worker.agent.bound_master PID RUN_DIR
OPTION…``: PID is whom it is bound to, the options are those of ``godmw master``.  It says one line on
stdout, a JSON object with where to join or with the error; later words go to stderr.  It ends when the
master does, with the job.  When its owner is gone the master has a moment to write how the job ended, is
asked to stop, and is killed.  Must not know who trains, or what torchrun is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from godmw.client.rundir import RunDir
from godmw.errors import GodmwError
from godmw.ids import new_id
from godmw.worker.agent.children import Children, Process
from godmw.worker.agent.facts import MasterEnded
from godmw.worker.agent.master_process import NAME, MasterProcess
from godmw.worker.agent.outlet import Outlet, Terminal

LOOK_S = 0.2
# after the owner's end: this long the master ends by itself, then it is asked, then it is killed
ASK_AFTER_S, KILL_AFTER_S = 1.5, 3.0


def command(owner: int, run_dir: Path, options: Sequence[str]) -> list[str]:
    """The command line of this program."""
    return [sys.executable, "-m", "godmw.worker.agent.bound_master", str(owner), str(run_dir), *options]


class BoundMaster:
    """One master on `run_dir`, for as long as the process `owner` is this one's parent."""

    def __init__(self, owner: int, run_dir: Path, options: Sequence[str]) -> None:
        self._owner = owner
        self._outlet = Outlet(Terminal(all_err=True))
        self._children = Children(new_id("b"), self._output)
        self._log = RunDir(run_dir).log(NAME)
        line = [sys.executable, "-m", "godmw", "master", "--json", "--run-dir", str(run_dir), *options]
        self._master = MasterProcess(line, RunDir(run_dir), os.environ)
        self._told = False
        self._alone_since_s: float | None = None
        self._signals = [(ASK_AFTER_S, signal.SIGTERM), (KILL_AFTER_S, signal.SIGKILL)]

    def run(self) -> int:
        """Returns the exit code of the master."""
        self._outlet.start()
        self._children.start()
        try:
            while self._master.ended is None:
                self._look(time.monotonic())
            self._tell_end(self._master.ended)
            return self._master.ended.code
        finally:
            self._children.close()
            self._outlet.close()

    def _look(self, now_s: float) -> None:
        said = self._master.tick(self._children, now_s)
        if said:
            self._outlet.say(said)
        if self._master.join is not None and not self._told:
            self._tell({"join": self._master.join.format()})
        self._wait()
        for process in self._children.reap():
            said = self._master.exited(process, time.monotonic()) if self._master.owns(process) else None
            if said:
                self._outlet.say(said)
        self._mind_owner(now_s)

    def _wait(self) -> None:
        """Until a child or a signal says something, at most LOOK_S."""
        poller = select.poll()
        poller.register(self._children.fileno(), select.POLLIN)
        pipes = {descriptor for process in self._children.processes.values() for descriptor in process.pipes}
        for descriptor in pipes:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(LOOK_S * 1000):
            if descriptor in pipes:
                self._children.read(descriptor)
            else:
                self._children.wake()

    def _mind_owner(self, now_s: float) -> None:
        if self._children.signalled:
            self._children.signalled.clear()
            self._master.signal(self._children, signal.SIGTERM)
        if os.getppid() == self._owner:
            return
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        while self._signals and now_s - self._alone_since_s >= self._signals[0][0]:
            self._master.signal(self._children, self._signals.pop(0)[1])

    def _output(self, process: Process, stream: str, data: bytes) -> None:
        self._master.output(stream, data)
        if stream == "err":  # what it prints on stdout holds the job's token
            self._outlet.put(NAME, stream, data, log=self._log)

    def _tell(self, words: dict[str, Any]) -> None:
        self._told = True
        with contextlib.suppress(OSError):  # nobody may be left to hear it
            os.write(sys.stdout.fileno(), json.dumps(words).encode() + b"\n")

    def _tell_end(self, end: MasterEnded) -> None:
        if not self._told:
            reason = end.reason or f"the master ended with exit code {end.code}"
            self._tell(GodmwError(reason, code=end.code or None, hint=end.hint or None).as_dict())
        elif end.reason and os.getppid() == self._owner:
            self._outlet.say(end.reason)


if __name__ == "__main__":
    sys.exit(BoundMaster(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]).run())
