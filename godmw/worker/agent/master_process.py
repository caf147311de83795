"""The master that ``godmw run`` starts beside its agent, and starts again on the run directory when it
dies.

``Upkeep`` decides (pure); ``MasterProcess`` is the process.  A master that was killed or broke is started
again; one that ended by itself, with the job over or a reason not to serve, is not.  Where it listens is
read from the run directory, once the file is this process's.  What it prints goes to its log; its last
error is kept for the person.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from godmw.client.rundir import RunDir
from godmw.config import JoinAddress
from godmw.errors import ExitCode
from godmw.worker.agent.children import Children, Process
from godmw.worker.agent.environment import foreign
from godmw.worker.agent.facts import MasterEnded

NAME = "master"
BUDGET, WINDOW_S = 5, 60.0
AGAIN_S = 0.1  # doubled with every death in the window
KEPT_BYTES = 16 * 1024
BIND_S = 20.0  # a master that has not bound its address by then never will


@dataclasses.dataclass(slots=True)
class Upkeep:
    """When a dead master is started again: at once at first, later with growing pauses, and not for ever."""

    deaths: list[float] = dataclasses.field(default_factory=list)
    stopping: bool = False

    def died(self, code: int, signum: int, now_s: float) -> float | None:
        """The time at which to start another; None: it has ended for good."""
        if self.stopping or not (signum or code == ExitCode.INTERNAL):
            return None
        self.deaths = [when for when in self.deaths if now_s - when < WINDOW_S] + [now_s]
        if len(self.deaths) > BUDGET:
            return None
        return now_s + (0.0 if len(self.deaths) == 1 else AGAIN_S * 2 ** (len(self.deaths) - 2))


class MasterProcess:
    """The companion of an agent.  ``command`` starts a master on ``run_dir``, ``base`` is the environment
    to give.
    """

    def __init__(self, command: Sequence[str], run_dir: RunDir, base: Mapping[str, str]) -> None:
        self.command, self.run_dir = list(command), run_dir
        self.join: JoinAddress | None = None
        self.ended: MasterEnded | None = None
        self._env = foreign(base)
        self._upkeep = Upkeep()
        self._due_s: float | None = 0.0
        self._bind_by_s = 0.0
        self._process: Process | None = None
        self._bound = False
        self._printed = {"out": bytearray(), "err": bytearray()}

    # ---------------------------------------------------------------- the companion

    def tick(self, children: Children, now_s: float) -> str | None:
        """Start it when that is due, and learn where it listens."""
        if self._process is not None:
            if not self._bound and self.run_dir.master_pid() == self._process.pid:
                self._bound, self.join = True, self.run_dir.address() or self.join
            elif not self._bound and now_s > self._bind_by_s:
                self._bind_by_s = now_s + BIND_S
                children.signal(self._process.pid, signal.SIGKILL)
                return f"the master has not bound its address within {BIND_S:.0f} s"
            return None
        if self._due_s is None or now_s < self._due_s:
            return None
        self._due_s, self._bound, self._bind_by_s = None, False, now_s + BIND_S
        for kept in self._printed.values():
            kept.clear()
        try:
            self._process = children.spawn(NAME, 0, self.command, self._env)
        except OSError as error:
            self.ended = MasterEnded(int(ExitCode.INTERNAL), f"the master cannot be started: {error}", "")
        return None

    def output(self, stream: str, data: bytes) -> None:
        kept = self._printed[stream]
        kept += data
        del kept[:-KEPT_BYTES]

    def exited(self, process: Process, now_s: float) -> str | None:
        self._process = None
        status = process.popen.returncode
        code, signum = (status, 0) if status >= 0 else (0, -status)
        over = self.run_dir.summary.exists()  # whatever it ended with, there is nothing left to serve
        self._due_s = None if over else self._upkeep.died(code, signum, now_s)
        how = f"signal {signum}" if signum else f"exit code {code}"
        if self._due_s is not None:
            return f"the master died ({how}) and is started again on its run directory"
        self.ended = self._last_word(code, signum, how)
        return None

    def signal(self, children: Children, signum: int) -> None:
        self._upkeep.stopping = True
        if self._process is not None:
            children.signal(self._process.pid, signum)
        elif self.ended is None:
            self._due_s = None
            self.ended = MasterEnded(int(ExitCode.RESUMABLE), "stopped while the master was away", "")

    def owns(self, process: Process) -> bool:
        return process is self._process

    # ---------------------------------------------------------------- its last word

    def _last_word(self, code: int, signum: int, how: str) -> MasterEnded:
        said = self._error()
        if said is not None:
            return MasterEnded(
                int(said.get("code") or code), str(said.get("error", "")), str(said.get("hint") or "")
            )
        if self._upkeep.stopping and (signum or code == ExitCode.INTERNAL):
            return MasterEnded(int(ExitCode.RESUMABLE), "stopped before the master was there", "")
        if signum or code == ExitCode.INTERNAL:
            reason = f"the master died {len(self._upkeep.deaths)} times within {WINDOW_S:.0f} s ({how})"
            return MasterEnded(int(ExitCode.INTERNAL), reason, f"see {self.run_dir.log(NAME)}")
        return MasterEnded(code, "", "")

    def _error(self) -> dict[str, Any] | None:
        """The error object that a master started with ``--json`` printed, if it ended with one."""
        for line in reversed(bytes(self._printed["out"]).splitlines()):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and "error" in value:
                return value
        return None


def fresh(run_dir: RunDir) -> tuple[int, int] | None:
    """What tells one summary of a run directory from a later one."""
    try:
        seen = os.stat(run_dir.summary)
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns
