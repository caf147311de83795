"""A person's script as ``python SCRIPT`` alone: does it run, how many steps does it have, how long is one.

One process in a session of its own, ended with all it started when it takes too long or the caller leaves.
Its metrics and its warnings are what a worker of one writes into a run directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from godmw.client.handle import connect
from godmw.client.pace import Pace
from godmw.client.rundir import RunDir

PATIENCE_S = 45.0
END_S = 10.0  # from the order to stop after this step to the end of the process
ENOUGH = 3  # steps that show that the script works, should it not come to its end
POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """`code` None: it had to be ended. `cut`: it had more to do than there was time for."""

    code: int | None
    steps_s: tuple[float, ...]
    output: str
    cut: bool


def run(
    words: Sequence[str], directory: Path, environment: Mapping[str, str], limit: int, patience_s: float
) -> Plain:
    """Run `python WORDS…` for at most `limit` steps."""
    directory.mkdir(parents=True)
    pace, files, log = Pace(directory / "pace"), RunDir(directory / "run"), directory / "output"
    pace.set(limit, limit)
    variables = {**environment, "GODMW_RUN_DIR": str(files.path), "GODMW_PACE": str(pace.path)}
    ends_s, cut = time.monotonic() + patience_s, False
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, *words], env=variables, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        while process.poll() is None and time.monotonic() < ends_s + END_S:
            if not cut and time.monotonic() > ends_s:
                cut = True
                pace.set(0, 0)
            time.sleep(POLL_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        ended = process.returncode
        process.wait()
    said = log.read_text(encoding="utf-8", errors="replace")
    return Plain(ended, _steps(files), said, cut)


def _steps(files: RunDir) -> tuple[float, ...]:
    """How long each committed step took."""
    if not files.metrics.exists():
        return ()
    return tuple(float(step_s) for step_s in connect(files.path).metrics().get("step_s", ()))
