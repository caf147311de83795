"""`godmw status`: a table for the eye, one object for programs, and which job is meant."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from godmw.cli.target import show_status
from tests.fakes.command import godmw
from tests.fakes.machine import Peer, Served

Capture = pytest.CaptureFixture[str]
KEYS = {"job", "phase", "term", "generation", "step", "world_size", "min", "max", "target", "workers"}
WORKER_KEYS = {"id", "rank", "host", "pid", "state", "step", "phase", "incarnation"}


def test_one_object_on_one_line(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True) as served:
        peer = Peer(served.address, "")
        peer.join()
        peer.receive()
        code, out, err = godmw(capsys, "status", tmp_path, "--json")
        peer.close()
    assert (code, err, out.count("\n")) == (0, "", 1)
    status = json.loads(out)
    assert set(status) >= KEYS
    assert (status["step"], status["term"], status["generation"]) == (0, 1, 1)
    (worker,) = status["workers"]
    assert set(worker) == WORKER_KEYS
    assert (worker["id"], worker["state"]) == ("w0", "JOINING")


def test_a_table_for_the_eye(capsys: Capture) -> None:
    worker = {
        "id": "w0",
        "rank": None,
        "host": "here",
        "pid": 7,
        "state": "ACTIVE",
        "step": 12,
        "phase": "step",
    }
    status = {"job": "j", "phase": "RUNNING", "reason": "", "term": 1, "generation": 2, "step": 12}
    bounds = {"world_size": 1, "min": 1, "max": 8, "target": 2}
    show_status({**status, **bounds, "workers": [{**worker, "incarnation": 1}]}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "job         j",
        "phase       RUNNING",
        "step        12",
        "generation  2",
        "term        1",
        "workers     1 of 2 (min 1, max 8)",
        "",
        "ID  RANK  STATE   STEP  PHASE  HOST  PID  INCARNATION",
        "w0  -     ACTIVE  12    step   here  7    1",
    ]


def test_the_newest_run_here_is_meant_when_none_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GODMW_RUN_DIR", raising=False)
    code, _, err = godmw(capsys, "status")
    assert code == 64
    assert err.startswith("error: no run under ./godmw-runs\nhint: name one")
    with Served(tmp_path / "godmw-runs" / "0001-a", real=True):
        assert godmw(capsys, "status")[0] == 0


def test_a_job_is_named_by_option_variable_or_address(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path, real=True) as served:
        assert godmw(capsys, "status", "--run-dir", tmp_path)[0] == 0
        monkeypatch.setenv("GODMW_RUN_DIR", str(tmp_path))
        assert godmw(capsys, "status")[0] == 0
        monkeypatch.delenv("GODMW_RUN_DIR")
        monkeypatch.setenv("GODMW_JOIN", served.address.format())
        assert godmw(capsys, "status")[0] == 0
        assert godmw(capsys, "status", served.address.bare())[0] == 0
        code, _, err = godmw(capsys, "status", served.address.format())
        assert code == 64
        assert "readable by everybody" in err
        assert served.address.token not in err


def test_no_master_is_69_within_two_seconds(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "join").write_text("GODMW_JOIN='godmw://127.0.0.1:1/abc'\n")
    begin = time.monotonic()
    code, out, _ = godmw(capsys, "status", tmp_path, "--json")
    assert time.monotonic() - begin < 1.0
    assert code == 69
    assert set(json.loads(out)) == {"error", "code", "hint"}


def test_an_ended_job_shows_its_final_state(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "status.json").write_text('{"phase": "FINISHED", "step": 3, "workers": []}')
    (tmp_path / "summary.json").write_text("{}")
    assert json.loads(godmw(capsys, "status", tmp_path, "--json")[1])["step"] == 3
    for verb in (("scale", 2), ("drain", "w0"), ("evict", "w0"), ("pause",), ("resume",), ("stop",)):
        code, out, _ = godmw(capsys, *verb, tmp_path, "--json")
        assert (code, json.loads(out)["phase"]) == (0, "FINISHED")


def test_it_is_quick_and_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{}")
    (tmp_path / "summary.json").write_text("{}")
    code = (
        "import sys, resource, godmw.cli.main as m\n"
        f"assert m.run(['status', {str(tmp_path)!r}, '--json']) == 0\n"
        "heavy = {'torch', 'numpy', 'rich'} & set(sys.modules)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(sorted(heavy), used.ru_utime + used.ru_stime)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    said = [run.stdout.splitlines()[-1] for run in runs]
    assert all(line.startswith("[] ") for line in said), said
    assert min(float(line.split()[-1]) for line in said) < 0.15
