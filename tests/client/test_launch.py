"""`godmw.start`: a job as a process of its own, and what it says when there is none."""

from pathlib import Path

import pytest

import godmw
from godmw.errors import GodmwError
from tests.integration.processes import alive, wait_until

WAITS = "import time\nprint('here', flush=True)\ntime.sleep(60)\n"


def test_a_job_is_started_asked_and_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    with godmw.start(tmp_path / "train.py", workers=2, run_dir=tmp_path / "run") as run:
        assert run.files is not None
        assert run.status()["phase"] == "WAITING"
        master = run.files.master_pid()
        assert master is not None
        wait_until(lambda: run.files and run.files.logged_workers(), what="a worker has printed")
        process = run.process
        assert process is not None
    assert process.returncode is not None
    wait_until(lambda: not alive(master), what="nothing is left")
    run.close()


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    with pytest.raises(GodmwError, match=r"nothing\.py") as failed:
        godmw.start(tmp_path / "nothing.py", run_dir=tmp_path / "run")
    assert failed.value.code == 64
    assert failed.value.hint
