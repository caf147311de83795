"""A master bound to another process: it says where it listens, comes back, and does not outlive it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from godmw.client.rundir import RunDir
from godmw.errors import ExitCode
from godmw.worker.agent import bound_master
from tests.integration.processes import ROOT, alive, children, wait_until
from tests.integration.processes import python as process_of

WITHIN_S = 40.0  # of whatever must happen; promised: seconds, on an idle machine

# an owner that does nothing but start it and wait
OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from godmw.worker.agent import bound_master
line = bound_master.command(os.getpid(), Path(sys.argv[1]), sys.argv[2:])
kept = subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True)
print(kept.pid, kept.stdout.readline().decode(), end="", flush=True)
time.sleep(600)
"""


class Kept:
    """An owner, the process that keeps its master, and the run directory."""

    def __init__(self, owner: Any, folder: Path) -> None:
        self.owner, self.files = owner, RunDir(folder)
        pid, _, words = owner.stdout.readline().partition(" ")
        self.pid, self.said = int(pid), json.loads(words)

    @property
    def master(self) -> int:
        pid = self.files.master_pid()
        assert pid is not None
        return pid


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    folder = tmp_path / "run"
    with process_of("-c", OWNER, str(folder), "--listen", "127.0.0.1:0") as owner:
        yield Kept(owner, folder)


def test_it_says_where_to_join_and_keeps_the_log(kept: Kept) -> None:
    address = kept.files.address()
    assert address is not None
    assert kept.said == {"join": address.format()}
    assert kept.master in children(kept.pid)


def test_a_master_that_is_killed_comes_back_at_its_address(kept: Kept) -> None:
    before = kept.master
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: kept.master != before, WITHIN_S, "another master")
    address = kept.files.address()
    assert address is not None
    assert kept.said == {"join": address.format()}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_its_owner_does(kept: Kept, signum: int) -> None:
    master = kept.master
    kept.owner.send_signal(signum)
    kept.owner.wait(WITHIN_S)
    wait_until(lambda: not alive(master) and not alive(kept.pid), WITHIN_S, "both end")


def test_a_frozen_master_ends_too(kept: Kept) -> None:
    master = kept.master
    os.kill(master, signal.SIGSTOP)
    kept.owner.kill()
    wait_until(lambda: not alive(master) and not alive(kept.pid), WITHIN_S, "both end")


def test_what_keeps_it_is_killed_and_leaves_no_master(kept: Kept) -> None:
    master = kept.master
    os.kill(kept.pid, signal.SIGKILL)
    wait_until(lambda: not alive(master), WITHIN_S, "the master ends")


def test_a_master_that_refuses_to_serve_is_quoted(tmp_path: Path) -> None:
    command = bound_master.command(os.getpid(), tmp_path, ["--min", "3", "--max", "2"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("GODMW_")}
    done = subprocess.run(
        command,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    said = json.loads(done.stdout)
    assert said["code"] == ExitCode.USAGE
    assert "--min 3 is above --max 2" in said["error"]
    assert "--max" in said["hint"]


def test_the_end_of_the_job_is_its_end(kept: Kept) -> None:
    command = [sys.executable, "-m", "godmw", "stop", str(kept.files.path)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=WITHIN_S)
    wait_until(lambda: not alive(kept.pid), WITHIN_S, "it ends")
    summary = kept.files.read_summary()
    assert summary is not None
    assert summary["outcome"] == "stopped"
