"""A job drawn from one seed, run through its faults to an honest end.

`random_world` draws how many workers and hosts there are, what the script does, and what is done to them;
`play` lets it all happen, then calms everything and waits.  A job that can finish must finish; one that
cannot must be able to say why: its state is lost, or too few workers are left.  Everything else is *stuck*,
which is a fault of ours.
"""

from __future__ import annotations

import dataclasses
from random import Random

from godmw.config import JobSettings
from godmw.membership import records as rec
from godmw.membership.invariants import Violation
from godmw.protocol import messages as msg
from godmw.simulate import schedule
from godmw.simulate.schedule import Fault
from godmw.simulate.script import Script
from godmw.simulate.world import World

TROUBLE_S = 12.0  # faults have struck and ended by then
PATIENCE_S = 90.0


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: ``finished``, ``lost`` (no state is left anywhere), ``too few`` (below min),
    ``stuck``.
    """

    how: str
    reason: str


def random_world(seed: int, faults: list[Fault] | None = None) -> World:
    """A small job with its faults planted; the same for the same seed.  `faults` replaces the drawn ones."""
    dice = Random(seed)
    workers = dice.randint(1, 4)
    slots = [workers] if dice.random() < 0.6 else [max(1, workers // 2), max(1, workers - workers // 2)]
    by_hand = dice.random() < 0.2
    settings = JobSettings(
        token="simulated", target=1 if by_hand else slots[0],
        minimum=dice.choice([1, 1, 2]) if workers > 1 else 1,
        restarts=dice.choice([0, 1, 3, None]), start_timeout_s=2.0, remote_lease_s=4.0,
        orphan_s=dice.choice([5.0, 600.0]), stall_timeout_s=dice.choice([10.0, 600.0]),
    )  # fmt: skip
    script = Script(
        steps=dice.randint(3, 30), shards=dice.choice([1, 3, 8]), evaluate_every=dice.choice([0, 0, 3]),
        last_boundary=dice.random() < 0.5,
    )  # fmt: skip
    latency_s = dice.choice([(0.0002, 0.002), (0.0002, 0.002), (0.0002, 0.05)])
    world = World(settings, script, seed=seed, agents=[] if by_hand else slots, latency_s=latency_s)
    for _ in range(workers if by_hand else 0):
        world.start_by_hand()
    if faults is None:
        if dice.random() < 0.5:
            faults = schedule.draw(dice, faults=dice.randint(0, 10), within_s=dice.choice([1.0, 3.0, 8.0]))
        else:
            faults = schedule.aim(dice, faults=dice.randint(2, 8))
    schedule.plant(world, faults)
    return world


def play(world: World) -> Ending:
    """Through all faults to the end.  Raises `Violation` when a promise breaks on the way."""
    world.run(lambda: world.over, TROUBLE_S)
    schedule.calm(world)
    world.run(lambda: world.over, 3.0)
    if any(
        agent.alive for agent in world.agents.values()
    ):  # an operator may have lowered the target to nothing
        world.ask(msg.Scale(token=world.settings.token, target=max(2, world.settings.minimum)))
    world.run(lambda: world.over, PATIENCE_S)
    _operators_word(world)
    world.check()
    return _ending(world)


def _operators_word(world: World) -> None:
    """Members that died in silence keep the job PAUSED until somebody says that they are dead."""
    coordinator = world.master.coordinator
    if coordinator is None or coordinator.view()["phase"] != "PAUSED":
        return
    for worker, incarnation in sorted(coordinator.job.chain_keys()):
        if not any(process.name == f"{worker}#{incarnation}" for process in world.living()):
            world.ask(msg.Evict(token=world.settings.token, worker=worker))
    world.run(lambda: world.over, PATIENCE_S)


def _ending(world: World) -> Ending:
    master = world.master
    if master.ended is not None:
        if master.ended.outcome == "finished":
            _check_finished(world)
            return Ending("finished", master.ended.reason)
        return Ending(
            "lost" if "held the job's state" in master.ended.reason else "stuck", master.ended.reason
        )
    view = master.coordinator.view() if master.coordinator is not None else {"phase": "AWAY", "reason": ""}
    reason = f"{view['phase']}: {view['reason']}"
    if "are the least" in reason or "the first generation needs" in reason:
        return Ending("too few", reason)
    if not any(worker.participant.generation for worker in world.living()):
        nobody = not any(agent.alive for agent in world.agents.values())
        return Ending("lost" if world.committed or nobody else "stuck", reason)
    return Ending("stuck", reason)


def _check_finished(world: World) -> None:
    """Finished means finished: every operation is in history and in the ledger, and so does the journal
    say.
    """
    if not world.committed == len(world.master.ledger) == world.script.operations:
        raise Violation(
            f"finished with {world.committed} operations committed and {len(world.master.ledger)} in the "
            f"ledger, the script has {world.script.operations}"
        )
    if not any(isinstance(record, rec.FinishMade) for record in world.master.journal):
        raise Violation("finished, and the journal does not say so")
