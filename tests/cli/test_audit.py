"""`godmw audit`: which run, the words and the exit codes, as text and as JSON."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from godmw.cli import main as frame
from godmw.data.indices import LoopSpec, shard_hashes
from godmw.data.ledger import LedgerWriter
from godmw.data.table import Table, to_bytes

SPEC = LoopSpec(length=10, batch_size=4, epochs=2, shards=3, seed=5)


def write_run(path: Path, steps: list[int]) -> Path:
    """A run directory whose ledger holds these steps of `SPEC`."""
    writer = LedgerWriter(path / "ledger")
    writer.loop(SPEC.to_json())
    for operation, step in enumerate(steps):
        bounds = SPEC.shard_bounds(step)
        hashes = shard_hashes(SPEC.step_indices(step), bounds)
        filled = Table(len(bounds))
        filled.open()
        for shard, (low, high) in enumerate(bounds):
            digest = int(hashes[shard])
            filled.fill(shard, samples=high - low, weight=1.0, loss_sum=0.0, hash=digest, rank=0)
        writer.committed(operation, 1, "step", 0, SPEC.epoch_of(step), step, to_bytes(filled.array))
    writer.flush()
    writer.close()
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GODMW_RUN_DIR", raising=False)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = frame.run(["audit", *args])
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


def test_a_clean_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home / "job", [0, 1, 2, 3, 4, 5])
    expected = "epochs 2, steps 6, samples 20, missing 0, repeated 0, open 0\n"
    assert run(capsys, "job") == (0, expected, "")
    code, out, err = run(capsys, "--run-dir", "job", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out) == {
        "epochs": 2,
        "steps": 6,
        "samples": 20,
        "missing": 0,
        "repeated": 0,
        "open": 0,
    }


def test_an_open_epoch_is_not_missing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home / "job", [0, 1, 2, 3])
    code, out, _ = run(capsys, "job")
    assert (code, out) == (0, "epochs 1, steps 4, samples 14, missing 0, repeated 0, open 1\n")


def test_a_fault_is_exit_1_and_names_the_samples(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home / "job", [0, 2, 3, 4, 5])
    samples = SPEC.step_indices(1).tolist()
    code, out, err = run(capsys, "job")
    assert (code, out) == (1, "epochs 2, steps 5, samples 16, missing 4, repeated 0, open 0\n")
    assert f"loop 0 epoch 0 step 1 has no record: samples {', '.join(map(str, samples))}" in err
    code, out, err = run(capsys, "job", "--json")
    told = json.loads(out)
    assert (code, err, told["missing"], told["code"]) == (1, "", 4, 1)
    assert told["first_bad"][0]["samples"] == samples
    assert "has no record" in told["error"]
    assert told["hint"]


def test_a_repeated_step(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home / "job", [0, 1, 2, 2])
    code, out, _ = run(capsys, "job")
    assert (code, out) == (1, "epochs 1, steps 3, samples 10, missing 0, repeated 2, open 0\n")


def test_the_newest_run_by_default(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(home / "godmw-runs" / "20260101-old", [0])
    write_run(home / "godmw-runs" / "20260102-new", [0, 1])
    assert "steps 2," in run(capsys)[1]
    (home / "godmw-runs" / "latest").symlink_to("20260101-old")
    assert "steps 1," in run(capsys)[1]


def test_the_variable_names_the_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(home / "job", [0])
    monkeypatch.setenv("GODMW_RUN_DIR", str(home / "job"))
    assert "steps 1," in run(capsys)[1]


@pytest.mark.parametrize("args", [[], ["nowhere"], ["godmw://127.0.0.1:5"]])
def test_no_ledger_is_usage(home: Path, capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (64, "")
    assert err.startswith("error: ")
    assert "hint: godmw audit RUN" in err


def test_it_is_quick_and_needs_no_torch(home: Path) -> None:
    write_run(home / "job", [0, 1, 2])
    used_before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    script = (
        "import sys; from godmw.cli.main import run; code = run(['audit', 'job']); "
        "assert 'torch' not in sys.modules and 'zmq' not in sys.modules; sys.exit(code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(frame.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30, env=environment)
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used_before_s
    assert used_s < 0.5  # 0.12 on an idle machine
