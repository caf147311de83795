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
    from godmw.simulate.world import Line, World


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
    LATE = "late"  # what worker `target` says to worker `other` is `for_s` late
    LATE_MASTER = "late master"  # what the master says to worker `target`
    LATE_TO_MASTER = "late to master"  # what worker `target` says to the master
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
    """One thing done at `at_s`; or, with `on`, `at_s` after the `nth` line of the transcript that holds it,
    and then, with a negative `target`, to whom the line is about."""

    at_s: float
    kind: Kind
    target: int = 0
    other: int = 0
    for_s: float = 0.5
    on: str = ""
    nth: int = 1


# where the order of things matters: between each of these and the next message
POINTS = (
    "journals plan", "journals abort", "journals generation", "journals the end", "starts, term",
    "begins shard", "gives", "is whole for", "commits", "switches to", "is drained",
    "enters generation", "ends its script",
    "→ master: Stopped", "→ master: PlanHeld", "→ master: Formed", "→ master: Join", "→ master: Prepared",
    "→ master: Committed", ": Plan number", ": Abort number", ": GenerationFormed", ": Finish",
)  # fmt: skip
CHANGES = (Kind.HAND, Kind.DRAIN, Kind.SCALE, Kind.KILL)  # what makes plans


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


def aim(random: Random, *, faults: int) -> list[Fault]:
    """`faults` aimed at the points where order matters, and changes of membership that lead there."""
    made = [
        Fault(random.uniform(0.5, 2.0), random.choice(CHANGES), random.randrange(8), random.randrange(5))
    ]
    for _ in range(faults):
        kind = random.choice(list(Kind))
        delay_s = random.choice([0.0, 0.0, 0.0005, 0.002, 0.01])
        for_s = random.choice([0.002, 0.02, 0.1, 0.3, 0.9, 3.0])
        target = random.choice([-1, -1, *range(6)])
        made.append(
            Fault(
                delay_s,
                kind,
                target,
                random.randrange(8),
                for_s,
                random.choice(POINTS),
                random.randint(1, 12),
            )
        )
    return made


def plant(world: World, faults: list[Fault]) -> None:
    """Put the faults on the agenda, or on watch."""
    for fault in faults:
        if fault.on:
            _watch(world, fault)
        else:
            world.agenda.at(fault.at_s, lambda fault=fault: strike(world, fault))  # type: ignore[misc]


def _watch(world: World, fault: Fault) -> None:
    left = fault.nth

    def seen(line: Line) -> None:
        nonlocal left
        text = f"{line.who}: {line.what}"
        if left and fault.on in text:
            left -= 1
            if not left:
                about = line.who.removesuffix(" → master").removeprefix("master → ")
                world.agenda.after(fault.at_s, lambda: strike(world, fault, about))

    world.watchers.append(seen)


def strike(world: World, fault: Fault, about: str = "") -> None:
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
            meant = [worker for worker in living if fault.target < 0 and worker.label == about]
            target = meant[0] if meant else living[fault.target % len(living)]
            _strike_worker(world, fault, target, living[fault.other % len(living)])


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


def _strike_worker(world: World, fault: Fault, worker: SimWorker, other: SimWorker) -> None:
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
        case Kind.LATE if worker is not other:
            _cut(world, worker.name, other.name, min(fault.for_s, 0.9), one_way=True)
        case Kind.LATE_MASTER:
            _cut(world, "master", worker.name, min(fault.for_s, 0.9), one_way=True)
        case Kind.LATE_TO_MASTER:
            _cut(world, worker.name, "master", min(fault.for_s, 0.9), one_way=True)
        case Kind.DRAIN:
            world.ask(msg.Drain(token=token, worker=worker.participant.worker))
        case Kind.EVICT:
            world.ask(msg.Evict(token=token, worker=worker.participant.worker))


def _cut(world: World, a: str, b: str, for_s: float, *, one_way: bool = False) -> None:
    world.cut(a, b, one_way=one_way)
    world.agenda.after(for_s, lambda: world.mend(a, b))


def calm(world: World) -> None:
    """Everything that can be undone is undone."""
    for a, b in world.network.cuts():
        world.network.mend(a, b)
    world.master.thaw()
    world.master.crash_on = None
    for agent in world.agents.values():
        agent.thaw()
    for worker in world.living():
        worker.thaw()
    world.master.start()
    resume(world)
