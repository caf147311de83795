"""Faults as data: what is done to a simulated job and when, drawn from dice or written by hand, carried out
one by one.

Targets are numbers, taken modulo what is there when the fault strikes, so that a schedule makes sense
whatever came before it, and shrinks well.  ``calm`` ends all of them: after it the job must reach its end.
"""

from __future__ import annotations

import dataclasses
import enum
from random import Random
from typing import TYPE_CHECKING

from godmw.membership import records as rec
from godmw.protocol import messages as msg

if TYPE_CHECKING:
    from godmw.simulate.agent import SimAgent
    from godmw.simulate.worker import SimWorker
    from godmw.simulate.world import World


class Kind(enum.Enum):
    """What can be done to a job."""

    KILL = "kill"  # SIGKILL a worker
    FREEZE = "freeze"  # SIGSTOP a worker, for `for_s`
    HOLD = "hold"  # a long call holds its interpreter, for `for_s`
    SLOW = "slow"  # its shards take eight times as long
    KILL_AGENT = "kill agent"
    FREEZE_HOST = "freeze host"  # an agent and its workers, for `for_s`
    CUT = "cut"  # worker `target` from worker `other`, for `for_s`
    CUT_MASTER = "cut master"  # worker `target` from the master, for `for_s`
    CUT_AGENT = "cut agent"  # agent `target` from the master, for `for_s`
    HAND = "hand"  # a worker is started by hand
    DRAIN = "drain"
    EVICT = "evict"
    SCALE = "scale"  # to 1 + `other` workers
    PAUSE = "pause"  # for `for_s`
    KILL_MASTER = "kill master"  # back after `for_s`
    CRASH_MASTER = "crash master"  # at its next record of a plan, Abort or Formed; back after `for_s`
    FREEZE_MASTER = "freeze master"  # for `for_s`


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing done at `at_s`."""

    at_s: float
    kind: Kind
    target: int = 0
    other: int = 0
    for_s: float = 0.5


def draw(random: Random, *, faults: int, within_s: float) -> list[Fault]:
    """`faults` of any kind at any time before `within_s`; some of them close together."""
    made = []
    at_s = random.uniform(0.0, within_s)
    for _ in range(faults):
        close = random.random() < 0.4
        at_s = at_s + random.uniform(0.0, 0.05) if close else random.uniform(0.0, within_s)
        kind = random.choice(list(Kind))
        for_s = random.choice([0.02, 0.1, 0.3, 1.0, 3.0, 6.0])
        made.append(Fault(at_s, kind, random.randrange(8), random.randrange(8), for_s))
    return sorted(made, key=lambda fault: fault.at_s)


def plant(world: World, faults: list[Fault]) -> None:
    """Put the faults on the agenda."""
    for fault in faults:
        world.agenda.at(fault.at_s, lambda fault=fault: strike(world, fault))  # type: ignore[misc]


def strike(world: World, fault: Fault) -> None:
    """Carry one fault out, on whoever is there now."""
    if world.master.ended is not None:
        return
    if fault.kind in _ON_MASTER:
        _strike_master(world, fault)
    elif fault.kind in (Kind.KILL_AGENT, Kind.FREEZE_HOST, Kind.CUT_AGENT):
        _strike_agent(world, fault)
    elif fault.kind is Kind.HAND:
        world.start_by_hand()
    elif fault.kind is Kind.SCALE:
        world.ask(msg.Scale(token=world.settings.token, target=1 + fault.other))
    elif fault.kind is Kind.PAUSE:
        world.ask(msg.Pause(token=world.settings.token))
        world.agenda.after(fault.for_s, lambda: resume(world))
    else:
        living = world.living()
        if living:
            _strike_worker(world, fault, living)


_ON_MASTER = frozenset({Kind.KILL_MASTER, Kind.CRASH_MASTER, Kind.FREEZE_MASTER})


def resume(world: World) -> None:
    """An operator ends a pause, and asks again until a master has answered."""
    request = world.ask(msg.Resume(token=world.settings.token))

    def look() -> None:
        if world.answer(request) is None and world.master.ended is None:
            resume(world)

    world.agenda.after(0.5, look)


def _strike_master(world: World, fault: Fault) -> None:
    master = world.master
    if fault.kind is Kind.FREEZE_MASTER:
        master.freeze()
        world.agenda.after(fault.for_s, master.thaw)
        return
    if fault.kind is Kind.KILL_MASTER:
        master.kill()
        world.agenda.after(fault.for_s, master.start)
        return

    def strikes(record: rec.JournalRecord) -> bool:
        hit = isinstance(record, (rec.PlanMade, rec.AbortMade, rec.GenerationWas, rec.FinishMade))
        if hit:
            world.agenda.after(fault.for_s, master.start)
        return hit

    if master.up:
        master.crash_on = strikes


def _strike_agent(world: World, fault: Fault) -> None:
    agents = [agent for agent in world.agents.values() if agent.alive]
    if not agents:
        return
    agent = agents[fault.target % len(agents)]
    if fault.kind is Kind.KILL_AGENT:
        world.note("KILL", agent.id)
        agent.kill()
    elif fault.kind is Kind.CUT_AGENT:
        _cut(world, agent.id, "master", fault.for_s)
    else:
        world.note("FREEZE", f"{agent.id} and its workers")
        frozen: list[SimAgent | SimWorker] = [agent, *agent.children.values()]
        for process in frozen:
            process.freeze()
            world.agenda.after(fault.for_s, process.thaw)


def _strike_worker(world: World, fault: Fault, living: list[SimWorker]) -> None:
    worker = living[fault.target % len(living)]
    other = living[fault.other % len(living)]
    token = world.settings.token
    match fault.kind:
        case Kind.KILL:
            world.note("KILL", worker.label)
            worker.end(0, 9)
        case Kind.FREEZE | Kind.HOLD:
            world.note("FREEZE" if fault.kind is Kind.FREEZE else "HOLD", worker.label)
            worker.freeze(mute=fault.kind is Kind.HOLD)
            world.agenda.after(fault.for_s, worker.thaw)
        case Kind.SLOW:
            world.slow(worker.id, 8.0)
        case Kind.CUT if worker is not other:
            _cut(world, worker.name, other.name, fault.for_s)
        case Kind.CUT_MASTER:
            _cut(world, worker.name, "master", fault.for_s)
        case Kind.DRAIN:
            world.ask(msg.Drain(token=token, worker=worker.participant.worker))
        case Kind.EVICT:
            world.ask(msg.Evict(token=token, worker=worker.participant.worker))


def _cut(world: World, a: str, b: str, for_s: float) -> None:
    world.cut(a, b)
    world.agenda.after(for_s, lambda: world.mend(a, b))


def calm(world: World) -> None:
    """Everything that can be undone is undone."""
    for a, b in world.network.cuts():
        world.mend(a, b)
    world.master.thaw()
    world.master.crash_on = None
    for agent in world.agents.values():
        agent.thaw()
    for worker in world.living():
        worker.thaw()
    world.master.start()
    resume(world)
