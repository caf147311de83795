"""`godmw master`: its last line. What it does as a process is tested in tests/master/test_process.py."""

import json
from pathlib import Path

import pytest

from godmw.cli.master import say_end
from godmw.client.rundir import RunDir
from godmw.errors import JobFailed, Stopped
from tests.fakes.command import godmw

Capture = pytest.CaptureFixture[str]


def files(path: Path, **summary: object) -> RunDir:
    (path / "summary.json").write_text(json.dumps(summary))
    return RunDir(path)


def test_a_finished_job_says_where_its_summary_is(tmp_path: Path, capsys: Capture) -> None:
    say_end(0, files(tmp_path, steps=7), as_json=False)
    assert capsys.readouterr().out == f"finished after 7 steps; summary in {tmp_path / 'summary.json'}\n"


def test_other_ends_have_their_exit_code(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="stopped after 7 steps: enough"):
        say_end(75, files(tmp_path, steps=7, reason="enough"), as_json=True)
    with pytest.raises(JobFailed, match="w0: its script raised") as failed:
        say_end(1, files(tmp_path, steps=7, reason="w0: its script raised"), as_json=True)
    assert failed.value.hint == f"logs are in {tmp_path / 'logs'}"


def test_bounds_that_disagree_are_64(tmp_path: Path, capsys: Capture) -> None:
    code, out, _ = godmw(capsys, "master", "--run-dir", tmp_path / "run", "--min", 3, "--max", 2, "--json")
    assert (code, json.loads(out)["error"]) == (64, "--min 3 is above --max 2")
    assert not (tmp_path / "run").exists()
