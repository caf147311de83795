"""Workers that die or freeze in the middle of a job: the others go on in the same processes."""

import re
import signal
import time
from pathlib import Path

import pytest

from tests.integration.jobs import PATIENCE_S, job
from tests.integration.processes import freeze

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("loaders", [0, 2])
def test_the_leader_and_then_another_are_killed(tmp_path: Path, loaders: int) -> None:
    with job(tmp_path) as run:
        run.start(3, args=("--loaders", str(loaders)))
        run.goes_on()
        leader, other, last = run.first_pids
        when = run.kill(leader)
        assert run.see("verdict", worker=leader)["t"] - when < 2.0
        run.see("formed", members=2)
        run.goes_on()
        assert len(run.commits_after(when)) >= 5
        run.see("formed", members=3)  # the replacement
        assert next(iter(run.pids())) != leader
        run.kill(other)
        run.see("verdict", worker=other)
        run.see("formed", members=3)
        run.goes_on()
        summary = run.finish(survivors=(last,))
    assert [recovery["worker"] for recovery in summary["recoveries"]] == [leader, other]


def test_two_of_four_at_once(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(4)
        run.goes_on()
        first, second, *others = run.first_pids
        run.kill(first, second)
        run.see("formed", members=2)
        run.see("formed", members=4)
        run.goes_on()
        run.finish(survivors=tuple(others))


def test_a_frozen_worker_is_evicted(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(3)
        run.goes_on()
        victim, *others = run.first_pids
        when = time.time()
        freeze(run.first_pids[victim])
        verdict = run.see("verdict", worker=victim)
        assert verdict["t"] - when < 10.0  # promised: 3 s on an idle machine
        run.see("formed", members=2)
        run.goes_on()
        run.see("formed", members=3)
        assert run.pids()[victim] != run.first_pids[victim]
        run.finish(survivors=tuple(others))


@pytest.mark.slow
def test_a_worker_without_an_agent_frozen_and_continued_is_out(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.process = run.master("--min", "1")
        agent = run.godmw("worker", "--nproc", "2", *run.line(), env=run.join)
        plain = run.python(*run.line(), env=run.join)
        run.see("formed", members=3)
        run.first_pids = run.pids()
        victim = next(w for w, pid in run.first_pids.items() if pid == plain.pid)
        run.goes_on()
        frozen = time.monotonic()
        freeze(plain.pid)
        run.see("verdict", worker=victim)
        run.see("formed", members=2)
        while time.monotonic() - frozen < 10.0:  # longer than any lease: the time is what is tested
            run.goes_on()
        plain.send_signal(signal.SIGCONT)
        out, err = plain.communicate(timeout=PATIENCE_S)
        assert plain.returncode == 77, (out, err)
        assert "Traceback" not in err
        assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
        run.goes_on()
        run.finish(survivors=tuple(w for w in run.first_pids if w != victim))
        assert agent.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_a_leader_that_stands_while_the_others_wait_is_named_and_not_evicted(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(3, args=("--stand", "20"))
        leader = next(iter(run.first_pids))
        said = run.see("notice", within_s=120.0, step=20)["reason"]
        assert re.fullmatch(rf"waiting for {leader} for 1\d s: compute at small\.py:\d+ main", said), said
        run.run.wait(step=25, timeout_s=PATIENCE_S)
        summary = run.finish(survivors=tuple(run.first_pids))
    assert summary["recoveries"] == []
