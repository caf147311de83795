"""A master beside a training process that must not outlive it: rank 0's, under torchrun.

Started as a process that keeps the master (`worker/agent/bound_master.py`), watched by a thread: what is
killed is started again on the run directory, and takes the running workers over. When there will be no
master any more, this process ends, because nobody would tell it that its job is over.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from godmw.client.rundir import RunDir
from godmw.config import JoinAddress
from godmw.errors import ExitCode, GodmwError
from godmw.worker.agent import bound_master

BIND_S = 30.0
STARTS = 5  # of a master that was killed together with what starts it again
LEAVE_S = 5.0  # for the master to write the summary, once the job is over
TOLD = (ExitCode.OK, ExitCode.FAILED, ExitCode.RESUMABLE)  # ends of a job, which all workers have heard of


_started: list[Companion] = []


def see_off_at_exit() -> None:
    """Let this process leave after its master, in good order.

    To be called before `endings.watch`, which ends the job when the script has ended: what is registered
    first runs last.
    """
    atexit.register(_see_off)


def _see_off() -> None:
    """The job is over: its summary is written when this process, and with it torchrun, ends."""
    if getattr(sys, "last_value", None) is None:  # an exception ends this rank: torchrun is to hear of it
        for companion in _started:
            companion.over.wait(LEAVE_S)


class Companion:
    """The master that rank 0 has started, through the process that binds it to this one's life."""

    def __init__(self, run_dir: Path, options: list[str]) -> None:
        self._line = bound_master.command(os.getpid(), run_dir, options)
        self._logs = RunDir(run_dir).logs
        self.over = threading.Event()

    def start(self) -> JoinAddress:
        """Returns where the master listens, or raises why it does not."""
        process = self._spawn()
        said = _first_word(process) or {
            "error": f"no master listened within {BIND_S:.0f} s",
            "hint": f"see {self._logs}",
        }
        if "join" not in said:
            process.kill()
            process.wait()
            raise GodmwError(said["error"], code=said.get("code"), hint=said.get("hint"))
        _started.append(self)
        threading.Thread(target=self._watch, args=(process,), name="godmw-companion", daemon=True).start()
        return JoinAddress.parse(said["join"])

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # torchrun signals the session of a worker: the master ends after it
        )

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Start again what was killed; end this process when there will be no master any more."""
        left = STARTS
        while (code := process.wait()) < 0 and left:
            left -= 1
            sys.stderr.write(
                f"godmw: the master died with what kept it (signal {-code}); both start again\n"
            )
            process = self._spawn()
            _first_word(process)
        self.over.set()
        if code not in TOLD:
            sys.stderr.write(
                f"error: the master ended for good (exit code {code})\nhint: see {self._logs}\n"
            )
            sys.stderr.flush()
            os._exit(code if code > 0 else ExitCode.INTERNAL)


def _first_word(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What `bound_master` says once the master listens, or never will; empty when it is silent."""
    assert process.stdout is not None
    with process.stdout as pipe:
        ready, _, _ = select.select([pipe], [], [], BIND_S)
        line = pipe.readline() if ready else b""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
