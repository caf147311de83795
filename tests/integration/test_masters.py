"""The master is not in the step path: killed, its workers go on; when it is back they are its own again."""

import itertools
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.jobs import PATIENCE_S, job
from tests.integration.processes import ended, wait_until

pytestmark = pytest.mark.timeout(180)


def test_under_run_a_killed_master_is_started_again(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(3)
        run.goes_on()
        old = run.files.master_pid()
        assert old is not None
        before = run.status()
        when = run.kill_pid(old)
        run.see("term", number=2)
        run.see("adopted")
        assert run.pids() == run.first_pids
        run.goes_on()
        after = run.status()
        assert (after["term"], after["generation"]) == (2, before["generation"])
        victim = list(run.first_pids)[1]
        run.kill(victim)
        run.see("verdict", worker=victim)
        run.see("formed", members=2)
        run.see("formed", members=3)
        run.goes_on()
        run.finish(survivors=tuple(w for w in run.first_pids if w != victim))
        commits = run.commits_after(when)
        assert max(b - a for a, b in itertools.pairwise(commits)) < 10.0  # they did not wait


def test_by_hand_a_killed_master_and_then_one_of_two_agents(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        first = run.master()
        agents = [run.godmw("worker", "--nproc", "2", *run.line(), env=run.join) for _ in range(2)]
        run.see("formed", members=4)
        run.first_pids = run.pids()
        run.goes_on()
        first.kill()
        first.wait()
        run.process = run.master("--listen", "127.0.0.1:1")  # the journalled address counts
        assert run.see("term", number=2)
        run.see("adopted")
        assert run.pids() == run.first_pids
        run.goes_on()
        agents[0].kill()
        gone = [run.see("verdict")["worker"], run.see("verdict")["worker"]]
        run.see("formed", members=2)
        run.goes_on()
        stayed = {w: pid for w, pid in run.first_pids.items() if w not in gone}
        assert run.pids() == stayed
        more = run.godmw("worker", *run.line(), env=run.join)  # a join works afterwards
        run.see("formed", members=3)
        run.goes_on()
        run.finish(survivors=tuple(stayed))
        for agent in (agents[1], more):
            assert ended(agent, PATIENCE_S)[0] == 0


@pytest.mark.slow
def test_a_master_killed_between_a_joins_plan_and_its_boundary(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.start(2, "--max", "3", args=("--pace", "0.3"))
        run.goes_on(2)
        run.run.scale(3)
        run.see("plan", planned=True)
        run.kill_pid(run.files.master_pid())
        run.see("term", number=2)
        run.see("formed", members=3)
        assert dict(list(run.pids().items())[:2]) == run.first_pids
        run.goes_on()
        victim = next(iter(run.first_pids))
        run.kill(victim)
        run.see("verdict", worker=victim)
        run.see("formed", members=3)
        run.finish(survivors=(list(run.first_pids)[1],))


@pytest.mark.slow
def test_steps_never_stop_while_the_master_is_away_5_s(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        first = run.master()
        agent = run.godmw("worker", "--nproc", "3", *run.line(), env=run.join)
        run.see("formed", members=3)
        run.first_pids = run.pids()
        run.goes_on()
        away = run.status()["step"]
        first.send_signal(signal.SIGKILL)
        first.wait()
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(5.0)  # the time is what is tested
        run.process = run.master()
        run.see("term", number=2)
        run.see("adopted")
        run.run.wait(step=away + 100, timeout_s=PATIENCE_S)
        assert run.pids() == run.first_pids
        wait_until(
            lambda: len(run.run.metrics()["t"]) > away + 100, PATIENCE_S, "the records of the time away"
        )
        times = run.run.metrics()["t"][away:]
        assert max(b - a for a, b in itertools.pairwise(times)) < 3.0
        run.finish(survivors=tuple(run.first_pids))
        assert ended(agent, PATIENCE_S)[0] == 0
