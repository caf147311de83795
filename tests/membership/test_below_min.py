"""Too few members: whoever joins is taken in where its script can stand, and no step is made by too few."""

from typing import Any

import pytest

from godmw.protocol import messages as msg
from godmw.testing import Cluster


def plans(job: Cluster) -> list[tuple[int, int, int]]:
    """(first operation, members, joiners) of every unplanned generation after the first."""
    seen: dict[int, Any] = {plan.number: plan for plan in job.sent(msg.Plan) if not plan.planned}
    made = list(seen.values())[1:]
    return [(p.start, len(p.members), len(p.members) - len(p.donors) if p.donors else 0) for p in made]


def members_of_steps(job: Cluster) -> set[int]:
    world = job.world
    commits = [c for c in world.history.commits if world.script.step_of(c.operation) >= 0]
    return {len(commit.parts) for commit in commits}


def test_inside_an_evaluation_the_survivors_go_through_it_first() -> None:
    """Operation 2 is an evaluation in the body of a loop: a joiner's script can stand at 3, not there."""
    job = Cluster(workers=2, min=2, shards=4, steps=30, seed=15, evaluate_every=2)
    job.run_until(said="w1: begins shard 1 of 2")
    job.kill("w1")
    job.run_until(step=6)
    job.check()
    assert plans(job) == [(2, 1, 0)]  # then a planned change takes the joiner in, before operation 3
    assert members_of_steps(job) == {2}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("point", ["w1: begins shard 1 of 2", "w1: is whole for 1 ", "w1: commits 1 "])
def test_wherever_one_dies_no_step_is_made_by_too_few(point: str, seed: int) -> None:
    job = Cluster(workers=2, min=2, shards=4, steps=12, seed=seed, evaluate_every=2)
    job.run_until(said=point)
    job.kill("w1")
    job.run_until(phase="FINISHED")
    job.check()
    assert members_of_steps(job) == {2}


def test_whole_for_the_last_operation_it_is_committed_before_a_joiner_comes() -> None:
    job = Cluster(workers=2, min=2, shards=4, steps=30, seed=15, evaluate_every=2)
    job.run_until(said="w0: is whole for 1 ")
    job.world.cut("w1", "w0", one_way=True)
    job.run_until(said="w1: is whole for 1 ")
    job.kill("w1")
    job.run_until(said="Stopped")
    job.mend("w1", "w0")
    job.run_until(step=6)
    job.check()
    assert plans(job) == [(2, 1, 0), (2, 1, 0)]  # committed; through the evaluation; then a planned change
    assert members_of_steps(job) == {2}


def test_a_member_on_its_way_to_a_boundary_is_waited_for_by_name() -> None:
    job = Cluster(workers=2, min=2, shards=4, steps=30, seed=3)
    job.run_until(step=3)
    job.drain("w1")
    job.run_until(phase="PAUSED")
    assert job.reason == "1 workers, 2 are the least"
    step = job.step
    job.advance(20.0)
    assert (job.step, job.phase, job.members) == (step, "PAUSED", ("w0",))
    job.scale(2)
    job.run_until(phase="FINISHED")
    job.check()
    assert job.step == 30
