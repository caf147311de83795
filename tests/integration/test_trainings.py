"""Trainings with more state than weights, through kills and joins: all workers decide and end alike."""

import json
from pathlib import Path

import pytest

from tests.integration.jobs import PATIENCE_S, SCRIPTS, job
from tests.integration.processes import ended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("loaders", [0, 2])
def test_batch_norm_and_dropout_through_kills_and_joins(tmp_path: Path, loaders: int) -> None:
    with job(tmp_path) as run:
        run.start(3, args=("--net", "cnn", "--loaders", str(loaders)))
        run.goes_on()
        first, second, last = run.first_pids
        for victim in (first, second):
            run.kill(victim)
            run.see("verdict", worker=victim)
            run.see("formed", members=3)
            run.goes_on()
        run.run.scale(4)
        run.see("formed", members=4)
        run.goes_on()
        run.finish(survivors=(last,))


def test_early_stopping_joined_in_the_third_epoch(tmp_path: Path) -> None:
    """Evaluate each epoch, scheduler, best model: the joiner stops at the same step with the same best."""
    told, enter = tmp_path / "told", tmp_path / "enter"
    line = (str(SCRIPTS / "early.py"), "--told", str(told))
    with job(tmp_path) as run:
        run.process = run.master("--min", "2")
        agent = run.godmw("worker", "--nproc", "2", *line, env=run.join)
        joiner = run.python(*line, "--enter", str(enter), env=run.join)
        run.see("formed", members=2)
        run.first_pids = run.pids()
        run.run.wait(step=20, timeout_s=PATIENCE_S)
        enter.touch()
        formed = run.see("formed", members=3)
        assert 20 <= formed["step"] < 30, "it came after the third epoch: the machine is too busy to tell"
        for process in (agent, joiner, run.process):
            code, out, err = ended(process, PATIENCE_S)
            assert code == 0, (out, err)
        summary = run.check(survivors=tuple(run.first_pids))
        said = [json.loads(path.read_text()) for path in told.iterdir()]
    assert len(said) == 3
    assert said[0] == said[1] == said[2]
    assert summary["steps"] == 10 * (said[0]["stopped_after"] + 1) < 400
