"""`DistributedTrainingManager` in whole jobs: under `godmw run`, and under torchrun with its rules."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from godmw.client.rundir import RunDir
from godmw.data.audit import audit
from godmw.lines import read_lines
from godmw.worker.agent import kin
from tests.integration.jobs import PATIENCE_S, SCRIPTS, Job, job
from tests.integration.processes import alive, ended, wait_until

pytestmark = pytest.mark.timeout(180)

SCRIPT = SCRIPTS / "manager.py"
SAMPLES = 1000


def results(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("result ")]


def expected(epochs: int, workers: int) -> str:
    """How a result begins: a step has 16 samples for each of the workers that began."""
    return f"result {-(-SAMPLES // (16 * workers)) * epochs} {SAMPLES * epochs} "


# ---- godmw run


def test_workers_that_come_later_know_the_losses_of_all_epochs(tmp_path: Path) -> None:
    epochs = 20
    with job(tmp_path) as run:
        args = ("--epochs", str(epochs), "--until", str(run.until))
        command = ("run", "--workers", "2", "--run-dir", str(run.path), str(SCRIPT), *args)
        run.process = run.godmw(*command)
        run.see("formed", members=2)
        run.first_pids = run.pids()
        run.goes_on()
        first, second = run.first_pids
        run.kill(second)
        run.see("verdict", worker=second)
        run.see("formed", members=2)
        run.run.scale(3)  # the third finds WORLD_SIZE=3 in its environment
        run.see("formed", members=3)
        run.until.touch()
        code, out, err = ended(run.process, PATIENCE_S)
        assert code == 0, err
        run.check(survivors=(first,))
        logs = "".join(run.files.log(worker).read_text() for worker in run.files.logged_workers())
    told = results(logs) or results(out)
    assert len(set(told + results(out))) == 1
    assert len(results(logs)) == 3
    assert told[0].startswith(expected(epochs, workers=2))
    losses = [float(loss) for loss in told[0].split()[-1].split(",")]
    assert len(losses) == epochs
    assert losses[-1] < losses[0]


# ---- torchrun


def torchrun(run: Job, *args: str, restarts: int = 0) -> Any:
    """Two ranks under torchrun, with this run directory."""
    line = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    env = {"GODMW_RUN_DIR": str(run.path), "OMP_NUM_THREADS": "1"}
    run.process = run.python(*line, str(SCRIPT), *args, env=env)
    return run.process


def in_the_middle(run: Job) -> dict[int, int]:
    """When some steps are committed: rank -> pid."""
    lines = run.files.metrics
    wait_until(lambda: sum(1 for _ in read_lines(lines)) > 5 or run._over(), PATIENCE_S, "five steps")
    workers = [pid for pid in run.left() if b"manager.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return {
        rank: min(pid for pid in workers if f"RANK={rank}".encode() in kin.environment(pid))
        for rank in (0, 1)
    }


def gone(run: Job) -> None:
    """No process is left; a folder of logs that torchrun makes and leaves is its own affair."""
    wait_until(lambda: not run.left(), 5.0, "nothing is left")


def finished(files: RunDir) -> None:
    summary, report = files.read_summary(), audit(files.ledger)
    assert summary is not None
    assert (summary["outcome"], summary["workers_seen"]) == ("finished", 2)
    assert (report.clean, report.missing, report.repeated) == (True, 0, 0)
    digests = {event["digest"] for event, _ in read_lines(files.events) if event["kind"] == "ended"}
    assert len(digests) == 1


def test_torchrun(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        code, out, err = ended(torchrun(run), PATIENCE_S)
        assert code == 0, err
        told = results(out)
        assert len(told) == 2
        assert told[0] == told[1]
        assert told[0].startswith(expected(5, workers=2))
        said = [line for line in err.splitlines() if line.startswith("godmw:")]
        assert len(said) == 1
        assert "2 workers under torchrun; master at 127.0.0.1:" in said[0]
        assert "deaths follow torchrun's rules (--max-restarts 0)" in said[0]
        finished(run.files)
        gone(run)


@pytest.mark.slow
def test_a_rank_that_dies_under_torchrun_ends_all(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        process = torchrun(run, "--until", str(run.until))
        os.kill(in_the_middle(run)[1], signal.SIGKILL)
        code, _, err = ended(process, PATIENCE_S)
        assert code == 1
        assert "exitcode  : -9" in err
        gone(run)


@pytest.mark.slow
def test_rank_0_dies_and_torchrun_starts_all_again(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        process = torchrun(run, "--until", str(run.until), restarts=1)
        ranks, master = in_the_middle(run), run.files.master_pid()
        assert master is not None
        os.kill(ranks[0], signal.SIGKILL)
        wait_until(lambda: not alive(master), PATIENCE_S, "the master of rank 0 ends")
        run.until.touch()
        code, out, err = ended(process, PATIENCE_S)
        assert code == 0, err
        assert len(results(out)) == 2
        first = run.files.read_summary()  # its master may have had the time to write one
        assert first is None or first["outcome"] != "finished"
        finished(RunDir(f"{run.path}-restart1"))
        gone(run)


@pytest.mark.slow
def test_the_master_dies_under_torchrun_and_comes_back(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        process = torchrun(run, "--until", str(run.until))
        ranks, master = in_the_middle(run), run.files.master_pid()
        assert master is not None
        os.kill(master, signal.SIGKILL)
        wait_until(lambda: run.files.master_pid() != master, PATIENCE_S, "another master")
        assert all(alive(pid) for pid in ranks.values())
        run.until.touch()
        code, out, err = ended(process, PATIENCE_S)
        assert code == 0, err
        assert "the master died (signal 9) and is started again on its run directory" in err
        assert len(set(results(out))) == 1
        finished(run.files)
        gone(run)
