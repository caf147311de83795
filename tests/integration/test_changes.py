"""What an operator asks of a running job: more workers, fewer, a pause, an end.  Nobody restarts for it."""

import subprocess
from pathlib import Path

import pytest

from tests.integration.jobs import PATIENCE_S, Job, job
from tests.integration.processes import ended, wait_until

pytestmark = pytest.mark.timeout(180)
BATCH, SAMPLES = 64, 2000


def global_batch_is_constant(run: Job) -> None:
    """Each step has 64 samples, the last of an epoch what is left, and none was computed twice."""
    columns = run.run.metrics()
    per_epoch = -(-SAMPLES // BATCH)
    expected = [BATCH if (s + 1) % per_epoch else SAMPLES % BATCH for s in columns["step"]]
    assert columns["samples"] == expected
    assert set(columns["redone_samples"]) == {0}


def test_scale_2_to_4_to_1(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(2, "--max", "4")
        run.goes_on()
        assert run.run.scale(4)["target"] == 4
        run.see("formed", members=4)
        assert dict(list(run.pids().items())[:2]) == run.first_pids
        run.goes_on()
        assert run.run.scale(1)["target"] == 1
        run.see("formed", members=1)
        run.goes_on()
        (last,) = run.pids()
        summary = run.finish(survivors=(last,) if last in run.first_pids else ())
        global_batch_is_constant(run)
    assert summary["recoveries"] == []
    assert len(summary["joins"]) == 2


def test_drain_of_the_middle_the_lowest_and_the_highest_rank(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(4)
        run.goes_on()
        first, middle, stays, highest = run.first_pids
        for left, victim in ((3, middle), (2, first), (1, highest)):
            assert run.run.drain(victim) == {"worker": victim, "target": left}
            run.see("formed", members=left)
            wait_until(lambda victim=victim: victim not in run.pids(), PATIENCE_S, f"{victim} is no member")
            run.goes_on()
        assert list(run.pids()) == [stays]
        summary = run.finish(survivors=(stays,))
        global_batch_is_constant(run)
    assert summary["recoveries"] == []


def test_pause_resume_and_stop(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(2)
        run.goes_on()
        run.run.pause()
        held = run.see("phase", phase="PAUSED")["t"]
        with pytest.raises(subprocess.TimeoutExpired):
            run.process.wait(1.0)  # fifty steps: that none is done is what is tested
        run.run.resume()
        plan = run.see("plan")["t"]
        run.see("phase", phase="RUNNING")
        run.goes_on()
        assert run.pids() == run.first_pids
        assert min(run.commits_after(held)) > plan
        assert run.run.stop()["phase"] == "STOPPED"
        code, _, err = ended(run.process, PATIENCE_S)
        assert code == 75, err
        last = err.splitlines()[-1]
        assert "stopped (stopped by an operator) after" in last
        assert "no state is on disk: this job cannot be resumed" in last
        run.nothing_left()
        assert run.run.result()["outcome"] == "stopped"
