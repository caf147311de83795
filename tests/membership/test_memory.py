"""What is remembered is bounded by who is there, not by who ever was; and who is out stays out."""

from typing import Any

from godmw.config import JobSettings
from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.coordinator import Coordinator
from godmw.membership.selfportrait import Unrecorded
from godmw.protocol import messages as msg
from godmw.protocol.wire import header_of
from godmw.testing import Cluster

GENERATIONS = 12


def test_workers_that_come_and_die_are_forgotten() -> None:
    job = Cluster(workers=2, shards=4, steps=10_000, seed=5)
    job.run_until(step=1)
    for number in range(2, 2 + GENERATIONS):
        job.add_worker(f"host-{number}")
        job.run_until(said=f"w{number}: commits")
        job.kill(f"w{number}")
        job.run_until(said="has formed")
        job.advance(1.0)
    coordinator = job.world.master.coordinator
    assert coordinator is not None
    state = coordinator.job
    assert set(state.roster.workers) == {("w0", 1), ("w1", 1)}
    assert set(state.roster.latest) == {"w0", "w1"}
    assert len(state.roster.peers) <= 4  # two workers, their agent, the operator
    job.world.check()


def test_agents_that_come_and_die_are_forgotten() -> None:
    job = Cluster(workers=1, shards=4, steps=100_000, seed=5, restart_window_s=20.0)
    job.run_until(step=1)
    for _ in range(4):
        agent = job.add_agent(1)
        job.run_until(said=f"agent={agent}")
        job.run_until(said="has formed")
        job.kill(agent)
        job.run_until(said="has formed")
    job.advance(25.0)
    coordinator = job.world.master.coordinator
    assert coordinator is not None
    state = coordinator.job
    assert set(state.roster.agents) == {"a0"}
    assert set(state.roster.workers) == {("w0", 1)}
    assert state.deaths == {} or all(len(times) <= 1 for times in state.deaths.values())


def answers(master: Coordinator, sender: str, incarnation: int, agent: str) -> list[Any]:
    join = msg.Join(
        token="", agent=agent, host="h", pid=9, address="h:1", generation=3, position=7, abort=0, held=(),
        prepared=True, ended=False,
    )  # fmt: skip
    header = header_of(
        join, job="job", term=1, generation=3, sender=sender, incarnation=incarnation, sequence=1
    )
    actions = master.step(ev.Received(f"of {sender}#{incarnation}", header, join), 1.0)
    return [type(action.message) for action in actions if isinstance(action, act.Send)]


def test_a_forgotten_worker_stays_out_with_an_agent_or_without() -> None:
    master = Coordinator(JobSettings())
    master.start(0.0)
    master.job.roster.next_worker = 5  # w0 to w4 have been
    assert answers(master, "w3", 1, "") == [msg.Refused]
    assert answers(master, "w3", 1, "a7") == [msg.Refused]
    assert answers(master, "w4", 9, "a7") == [msg.Refused]


def test_an_evicted_worker_that_was_forgotten_is_out_after_a_restart_too() -> None:
    job = Cluster(workers=2, shards=4, steps=2_000, seed=5)
    job.run_until(step=1)
    job.add_worker("elsewhere")
    job.run_until(said="w2: commits")
    job.hold("w2")
    job.evict("w2")
    job.run_until(said="has formed")
    job.kill("master")
    job.start_master()
    job.run_until(phase="RUNNING")
    job.advance(3.0)
    coordinator = job.world.master.coordinator
    assert coordinator is not None
    assert ("w2", 1) not in coordinator.job.roster.workers
    job.thaw("w2")
    job.run_until(said="w2: exits 77")
    assert job.members == ("w0", "w1")
    job.check()


def committed(operation: int, loop: int, step: int) -> msg.Committed:
    return msg.Committed(
        operation=operation, generation=1, kind="step" if step >= 0 else "reduce", loop=loop, epoch=0,
        step=step, table=b"", metrics="{}", wall_s=0.0,
    )  # fmt: skip


def test_a_loop_is_kept_until_a_step_of_it_is_on_disk() -> None:
    kept = Unrecorded()
    for loop in range(3):
        kept.keep(msg.LoopOpened(loop=loop, spec="{}"))
        kept.keep(committed(2 * loop, loop, loop))
        kept.keep(committed(2 * loop + 1, loop + 1, -1))  # between two loops it bears the next one's number
    kept.acknowledge(4)
    assert [record.loop for record in kept.all() if isinstance(record, msg.LoopOpened)] == [2]
    kept.acknowledge(5)
    assert [type(record) for record in kept.all()] == [msg.Committed]
    assert not kept.keep(msg.LoopOpened(loop=2, spec="{}"))
