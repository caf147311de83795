"""What tests of real processes need: waiting for a condition, looking at processes, and leaving none
behind.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from godmw.worker.agent import kin

ROOT = Path(__file__).resolve().parents[2]


def wait_until(condition: Callable[[], object], within_s: float = 10.0, what: str = "") -> float:
    """Look until it holds; how long it took.  Raises AssertionError when it never does."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > within_s:
            raise AssertionError(f"not within {within_s} s: {what or condition}")
        time.sleep(0.005)
    return time.monotonic() - begin


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    seen = kin.stat(pid)
    return seen is not None and seen[0] not in kin.DEAD


def letter(pid: int) -> str:
    seen = kin.stat(pid)
    return seen[0] if seen else "-"


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    seen = {int(name): kin.stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return [child for child, item in seen.items() if item is not None and item[1] == pid]


def godmw(
    *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """`godmw ARGS` as a process; killed with all it started when the block is left."""
    return python("-m", "godmw", *args, env=env, cwd=cwd)


@contextlib.contextmanager
def python(
    *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """`python ARGS` as a process; killed with all it started when the block is left."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("GODMW_")}
    base["PYTHONPATH"] = str(ROOT)
    mark = f"GODMW_TEST={os.getpid()}.{time.monotonic_ns()}"
    base.update(env or {}, GODMW_TEST=mark.partition("=")[2])
    command: Sequence[str] = [sys.executable, *args]
    process = subprocess.Popen(
        command, env=base, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        kin.end([mark], [])


def ended(process: "subprocess.Popen[str]", within_s: float = 15.0) -> tuple[int, str, str]:
    """Exit code and output of a process that must end by itself."""
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: letter(pid) == "T", what=f"{pid} stops")
