"""``godmw.start``: a job of its own process, as ``godmw run`` starts it, and the handle to it.

The process leads its own session, so that a Ctrl-C meant for the caller does not reach the workers twice;
its output goes to ``logs/run.log``. The call returns when the master listens, and raises what the process
said when it does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from godmw.client.handle import Run
from godmw.client.rundir import RunDir, default_path
from godmw.errors import ExitCode, GodmwError, JobFailed

BIND_S = 30.0
POLL_S = 0.02


def start(
    script: str | os.PathLike[str],
    *args: str,
    workers: int = 1,
    min: int | None = None,
    max: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    module: bool = False,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Run:
    """Train `script` (or, with `module`, the module of that name) with `workers` workers on this host.

    `args` are the script's; `env` replaces the environment; `options` are further options of ``godmw run``,
    such as ``("--stall-timeout", "60")``. Returns when the job's master listens. Raises what the process
    ended with.
    """
    label = str(script)
    path = Path(run_dir) if run_dir is not None else default_path(label, time.strftime("%Y%m%d-%H%M%S"))
    files = RunDir(path)
    files.logs.mkdir(parents=True, exist_ok=True)
    bounds = [
        part
        for name, value in (("--min", min), ("--max", max))
        if value is not None
        for part in (name, str(value))
    ]
    command = [
        *(sys.executable, "-m", "godmw", "run", "--workers", str(workers), "--run-dir", str(path)),
        *bounds,
        *options,
        *(("-m", label) if module else (label,)),
        *args,
    ]
    before = files.master_pid()
    with open(files.log("run"), "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    run = Run(path=path, process=process)
    until_s = time.monotonic() + BIND_S
    while files.master_pid() == before and not run.ended:
        if process.poll() is not None:
            raise _why(files, process.returncode)
        if time.monotonic() > until_s:
            run.close()
            raise JobFailed(f"no master listened within {BIND_S:.0f} s", hint=f"see {files.log('run')}")
        time.sleep(POLL_S)
    return run


def _why(files: RunDir, code: int) -> GodmwError:
    """What the process said last, as the error it ended with."""
    try:
        lines = files.log("run").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    said = {
        word: rest for word, _, rest in (line.partition(": ") for line in lines) if word in ("error", "hint")
    }
    message = said.get("error") or (lines[-1] if lines else f"godmw run ended with exit code {code}")
    known = code in set(ExitCode) and code != ExitCode.OK
    return GodmwError(
        message, code=code if known else None, hint=said.get("hint") or f"see {files.log('run')}"
    )
