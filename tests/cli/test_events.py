"""`godmw events`: records for programs, lines for the eye."""

import json
from pathlib import Path

import pytest

from godmw.cli.events import line
from tests.fakes.command import godmw
from tests.fakes.machine import Served

Capture = pytest.CaptureFixture[str]


def test_one_object_a_record(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True):
        godmw(capsys, "scale", 2, tmp_path)
        code, out, _ = godmw(capsys, "events", tmp_path, "--json")
    records = [json.loads(text) for text in out.splitlines()]
    assert code == 0
    assert [record["kind"] for record in records] == ["term", "target"]
    assert all({"t", "since_s", "kind", "term"} <= set(record) for record in records)


def test_follow_ends_with_the_job(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True) as served:
        godmw(capsys, "stop", tmp_path)
        served.wait()
        served.place.finish({}, {})
        code, out, _ = godmw(capsys, "events", "--follow", tmp_path)
    assert code == 0
    assert "end" in out.splitlines()[-1]


def test_a_line_for_the_eye() -> None:
    event = {"t": 1.0, "since_s": 12.3456, "kind": "verdict", "term": 1, "generation": 2, "step": 40}
    event |= {"worker": "w1", "cause": "exited", "members": ["w0", "w2"], "reason": "SIGKILL"}
    assert line(event) == "    12.346  verdict     w1  step 40  cause=exited  members=w0,w2  (SIGKILL)"
    assert line({"kind": "failed", "traceback": "Traceback\n  x\nValueError: no"}).endswith(
        "traceback=ValueError: no"
    )


def test_no_such_run_is_64(tmp_path: Path, capsys: Capture) -> None:
    code, _, err = godmw(capsys, "events", tmp_path / "nothing")
    assert code == 64
    assert "is no run directory" in err
