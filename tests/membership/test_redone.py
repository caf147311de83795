"""What a death makes the job compute again: the shards of the dead, and none that nobody had begun."""

from godmw.testing.cluster import Cluster


def test_the_shards_of_the_dead_are_computed_again() -> None:
    job = Cluster(workers=3, shards=6, steps=6, seed=1)
    job.run_until(step=2)
    job.kill("w1")
    job.run_until(phase="FINISHED")
    redone = job.world.master.redone
    assert redone[2] == (2, 3)
    assert all(shards == () for operation, shards in redone.items() if operation != 2)


def test_what_a_living_member_had_not_come_to_is_no_loss() -> None:
    """w0 waits for a ready word when the others have begun the next operation; one of these dies."""
    job = Cluster(workers=3, shards=6, steps=6, seed=1)
    job.run_until(step=2)
    job.run_until(said="w0: is whole for 2")
    job.world.cut("w1", "w0", one_way=True)
    job.run_until(said="w1: begins shard 2 of 3")
    assert job.world.worker("w0").participant.position == 2
    job.kill("w1")
    job.run_until(said="MASTER: journals plan")
    job.mend("w0", "w1")
    plan = next(line for line in reversed(job.world.lines) if "journals plan" in line.what)
    assert "from operation 3" in plan.what
    job.run_until(phase="FINISHED")
    assert job.assignment(3) == {"w0": (0, 1, 2), "w2": (3, 4, 5)}
    assert job.world.master.redone[3] == (2, 3)


def test_a_second_death_in_the_same_operation_adds_its_own() -> None:
    """w1 had two shards and takes over one of w3's two."""
    job = Cluster(workers=4, shards=8, steps=6, seed=3)
    job.run_until(step=2)
    job.slow("w0", 20)
    job.run_until(step=3)
    job.kill("w3")
    job.run_until(said="has formed")
    (given,) = (plan.added for plan in job.sent("Plan", to="w1") if plan.start == 3)
    taken = {share.worker: share.shards for share in given}
    assert sorted(shard for shards in taken.values() for shard in shards) == [6, 7]
    job.kill("w1")
    job.run_until(step=4)
    job.run_until(phase="FINISHED", limit_s=300.0)
    assert job.world.master.redone[3] == tuple(sorted({2, 3, 6, 7}))
