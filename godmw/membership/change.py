"""Generations in the making: the first, and planned changes at a boundary (DESIGN 4, "Planned change").

The announcement is the numbered plan: to its joiners first, to the members when every joiner holds it.
At most one is pending; a change of mind is an Abort round (``rounds``).
"""

from __future__ import annotations

from godmw.membership import records as rec
from godmw.membership.jobstate import JobState, Pending
from godmw.membership.roster import Worker
from godmw.membership.states import JobPhase, WorkerState
from godmw.protocol import messages as msg


def install(job: JobState, plan: rec.PlanMade) -> None:
    """``plan`` is the generation in force from now on: it stands on an Abort round, or is the first."""
    job.record(plan)
    job.plans, job.past[plan.number] = {plan.number: plan}, plan
    job.current, job.current_formed = plan.number, False
    job.formed_by = {plan.number: set()}
    job.pending = job.round = None
    first = plan.start == 0 and job.next_operation == 0 and job.phase.state is JobPhase.WAITING
    job.move(JobPhase.FORMING if first else JobPhase.RECONFIGURING, plan.reason)


def log_plan(job: JobState, plan: rec.PlanMade, verdict: str) -> None:
    """One line of the event log a plan."""
    job.log(
        "plan",
        number=plan.number,
        planned=plan.planned,
        members=[member[0] for member in plan.members],
        joiners=list(plan.joiners),
        verdict=verdict,
        start=plan.start,
        shards_redone=len(job.redone.get(plan.start, ())),
        reason=plan.reason,
    )


def first_generation(job: JobState) -> None:
    """Make the first generation of the workers that are prepared: the leader's state is everybody's."""
    workers = job.standby()[: job.limit()]
    plan = rec.PlanMade(
        number=job.number(),
        planned=False,
        members=tuple((worker.id, worker.incarnation, worker.address) for worker in workers),
        joiners=tuple(worker.id for worker in workers[1:]),
        start=0,
        shards=0,
        added=(),
        reason="the job begins",
    )
    install(job, plan)
    message = job.plan_message(plan, donors(job, plan))
    for worker in workers:
        worker.track.move(WorkerState.SYNCING, "the first generation takes it in")
        job.tell(worker, message)
    log_plan(job, plan, "begin")


def plan_change(job: JobState) -> None:
    """Announce a join or a drain, when one is due and nothing else is under way."""
    if job.round or job.pending or job.hearing or job.finish or not job.current_formed:
        return
    members = job.roster.get(job.current_keys())
    if all(worker.ended for worker in members):
        return
    stay = [worker for worker in members if not worker.draining]
    joiners = job.standby()[: max(0, min(job.target, job.limit()) - len(stay))]
    if (not joiners and len(stay) == len(members)) or not stay + joiners:
        return
    workers = [*stay, *joiners]
    plan = rec.PlanMade(
        number=job.number(),
        planned=True,
        members=tuple((worker.id, worker.incarnation, worker.address) for worker in workers),
        joiners=tuple(worker.id for worker in joiners),
        start=-1,
        shards=0,
        added=(),
        reason=_change_in_words(joiners, members, stay),
    )
    job.record(plan)
    announce(job, plan)


def _change_in_words(joiners: list[Worker], members: list[Worker], stay: list[Worker]) -> str:
    parts = [f"{', '.join(w.id for w in joiners)} joins"] if joiners else []
    leaving = [worker.id for worker in members if worker not in stay]
    return "; ".join(parts + ([f"{', '.join(leaving)} drains"] if leaving else []))


def announce(job: JobState, plan: rec.PlanMade) -> None:
    """Say a journalled planned change: to its joiners first, to the members when every joiner holds it."""
    job.plans[plan.number] = job.past[plan.number] = plan
    old = set(job.current_keys())
    joiners = {key for key in job.member_keys(plan) if key not in old}
    for worker in job.roster.get(old - set(job.member_keys(plan))):
        worker.draining = worker.excused = True  # a restarted master has it from the plan alone
    job.pending = Pending(plan, joiners)
    job.formed_by[plan.number] = set()
    for worker in job.roster.get(sorted(joiners)):
        if worker.state is WorkerState.STANDBY:
            worker.track.move(WorkerState.SYNCING, f"plan {plan.number} takes it in")
        job.tell(worker, job.plan_message(plan, donors(job, plan)))
    log_plan(job, plan, "")
    _tell_members(job)


def donors(job: JobState, plan: rec.PlanMade) -> tuple[msg.Member, ...]:
    """Who may send state to the plan's joiners: old members that stay, then those that the plan drains."""
    if not plan.joiners:
        return ()
    old = job.plans[job.current].members if plan.planned else plan.members
    stay = set(job.member_keys(plan))
    order = [m for m in old if (m[0], m[1]) in stay and m[0] not in plan.joiners]
    order += [m for m in old if (m[0], m[1]) not in stay]
    return tuple(msg.Member(worker=w, incarnation=i, address=a) for w, i, a in order)


def remind(job: JobState, worker: Worker, held: tuple[int, ...]) -> None:
    """A worker registered again: the plans that concern it and that it does not hold are said again."""
    plan = job.plans.get(job.current)
    if (
        plan is not None
        and not plan.planned
        and worker.generation < plan.number
        and worker.key in job.current_keys()
    ):
        job.tell(worker, job.plan_message(plan, donors(job, plan)))
    elif job.current_formed and worker.generation == job.current:
        job.tell(worker, msg.GenerationFormed(number=job.current))
    pending = job.pending
    if pending is not None and pending.plan.number not in held:
        if worker.key in pending.joiners or (pending.told and worker.key in job.current_keys()):
            job.tell(worker, job.plan_message(pending.plan, donors(job, pending.plan)))


def _tell_members(job: JobState) -> None:
    pending = job.pending
    if pending is None or pending.told or pending.joiners - pending.holds:
        return
    pending.told = True
    message = job.plan_message(pending.plan, donors(job, pending.plan))
    for worker in job.roster.get(job.current_keys()):
        job.tell(worker, message)


def plan_held(job: JobState, worker: Worker, number: int) -> None:
    """A worker holds a plan; when it is the last joiner the members are told."""
    if job.pending is not None and job.pending.plan.number == number:
        job.pending.holds.add(worker.key)
        _tell_members(job)


def formed(job: JobState, worker: Worker, number: int) -> bool:
    """A worker stands in generation ``number`` with its links up.  True: it was the last."""
    if (
        job.round is not None
        or job.finish is not None
        or number not in job.formed_by
        or worker.key not in job.member_keys(job.plans[number])
    ):
        return False
    worker.generation = number
    if worker.state in (WorkerState.SYNCING, WorkerState.SUSPECT, WorkerState.STANDBY, WorkerState.JOINING):
        worker.track.move(WorkerState.ACTIVE, f"formed generation {number}")
    job.formed_by[number].add(worker.key)
    if job.formed_by[number] >= set(job.member_keys(job.plans[number])):
        return _generation_formed(job, number)
    return False


def _generation_formed(job: JobState, number: int) -> bool:
    old = job.chain_keys()
    if job.pending is not None and job.pending.plan.number == number:
        job.current, job.pending = number, None
    elif number != job.current or job.current_formed:
        return False
    job.record(rec.GenerationWas(number))
    job.last_formed = number
    plan = job.plans[number]
    job.plans = {key: item for key, item in job.plans.items() if key >= number}
    job.past = {key: item for key, item in job.past.items() if key >= number}
    job.formed_by = {key: item for key, item in job.formed_by.items() if key >= number}
    job.current_formed = True
    leaving = {worker.key for worker in job.roster.alive() if worker.draining}  # of an earlier term's, too
    for worker in job.roster.get(sorted(old | leaving | set(job.member_keys(plan)))):
        job.tell(worker, msg.GenerationFormed(number=number))
    job.log("formed", number=number, members=[m[0] for m in plan.members], joiners=list(plan.joiners))
    job.move(JobPhase.RUNNING, f"generation {number} has formed")
    return True
