"""How membership changes: Abort rounds with their verdict, and planned changes at a boundary (DESIGN 4).

One decider, one sequence of numbers, at most one planned change pending.  ``decide`` is the law of
the interrupted operation: all whole → commit, otherwise it is reduced again from kept contributions;
shards are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable

from godmw.membership import records as rec
from godmw.membership.assignment import spread
from godmw.membership.jobstate import JobState, Pending, Round
from godmw.membership.roster import Key, Worker
from godmw.membership.states import JobPhase, WorkerState
from godmw.protocol import messages as msg


class LawBroken(Exception):
    """The answers contradict the law; a fault of ours (exit 70), told with the answers."""


# ---------------------------------------------------------------- unplanned


def begin_round(job: JobState, reason: str) -> None:
    """Stop every member of every live generation; a change of mind about a pending plan comes here too."""
    number = job.number()
    job.record(rec.AbortMade(number))
    targets = {worker.key for worker in job.roster.get(job.chain_keys()) if not worker.gone}
    job.round = Round(number, reason, job.now_s, targets)
    job.link_deadline_s = None  # whatever was broken, it is of a generation that is over
    for worker in job.roster.get(sorted(targets)):
        job.tell(worker, msg.Abort(number=number, reason=reason[:1024]))
    job.log("abort", number=number, reason=reason, workers=[key[0] for key in sorted(targets)])
    if job.phase.state not in (JobPhase.PAUSED, JobPhase.WAITING):
        job.move(JobPhase.RECONFIGURING, reason)


def answered(job: JobState, worker: Worker, answer: msg.Stopped) -> None:
    """One worker's frozen record; only the round in force listens."""
    current = job.round
    if current is None or answer.abort != current.number or worker.key not in current.targets:
        return
    current.answers[worker.key] = answer
    worker.generation, worker.position = answer.generation, answer.position
    worker.ended = answer.ended
    if worker.state is WorkerState.SYNCING:
        worker.track.move(WorkerState.STANDBY, f"Abort {answer.abort} overtook its plan")


def lost_in_round(job: JobState, key: Key) -> None:
    """A target of the round is dead: its answer does not count any more."""
    if job.round is not None:
        job.round.targets.discard(key)
        job.round.answers.pop(key, None)


def decide(job: JobState) -> bool:
    """Try to end the round with a plan.  False, with ``round.verdict`` set, while nobody may decide."""
    current = job.round
    if current is None or current.missing() or job.finish is not None:
        return False
    if job.paused:
        return _hold(job, "paused by the operator")
    stateful = {
        key: answer
        for key, answer in current.answers.items()
        if answer.position >= 0 and answer.generation > 0
    }
    if (
        not stateful
        and current.answers
        and job.next_operation == 0
        and not any(p.planned for p in job.plans.values())
    ):
        return _anew(job, current)
    why = _may_decide(job, current, stateful)
    if why:
        return _hold(job, why)
    highest = max(answer.generation for answer in stateful.values())
    entered = set(job.member_keys(_plan(job, highest)))
    survivors = {key: answer for key, answer in stateful.items() if key in entered}
    joiners: list[Worker] = []
    if len(survivors) < job.minimum:
        joiners = job.standby()[: max(0, job.limit() - len(survivors))]
        if len(survivors) + len(joiners) < job.minimum:
            return _hold(job, f"{len(survivors) + len(joiners)} workers, {job.minimum} are the least")
    _make_unplanned(job, current, survivors, joiners)
    return True


def _plan(job: JobState, number: int) -> rec.PlanMade:
    plan = job.plans.get(number) or job.past.get(number)
    if plan is None:
        raise LawBroken(f"generation {number} was reported but never announced")
    return plan


def _anew(job: JobState, current: Round) -> bool:
    """Members of the first generation answer, none with state: nothing can have been committed; begin
    again.
    """
    for worker in job.roster.get(current.answers):
        if worker.state is WorkerState.SYNCING:
            worker.track.move(WorkerState.STANDBY, "the first generation is made again")
    job.round, job.current, job.pending = None, 0, None
    job.log("anew", reason=current.reason)
    return True


def _hold(job: JobState, why: str) -> bool:
    assert job.round is not None
    if job.round.verdict != why:
        job.round.verdict = why
        job.move(JobPhase.PAUSED, why)
        job.notice(f"paused: {why}")
    return False


def _may_decide(job: JobState, current: Round, stateful: dict[Key, msg.Stopped]) -> str:
    """Empty when the answers suffice (DESIGN 4, "One decider"); otherwise what is missing, in words."""
    if not stateful:
        return "nobody with state has answered"
    highest = max(answer.generation for answer in stateful.values())
    best = within_reach(stateful.values())
    chain = job.chain()
    if highest < chain[0].number and not set(stateful) & set(job.member_keys(chain[0])):
        return f"no member of generation {chain[0].number} has answered"
    for plan in chain:
        members = job.member_keys(plan)
        if plan.number <= highest or any(key in current.answers for key in members):
            continue
        if not (all_certain(job, members) and job.next_operation <= best):
            return f"no member of the announced generation {plan.number} has answered"
    return ""


def within_reach(answers: Iterable[msg.Stopped]) -> int:
    """How many operations those who answered have committed, or can: they are whole for the last one."""
    return max((answer.position + answer.whole for answer in answers), default=-1)


def all_certain(job: JobState, members: list[Key]) -> bool:
    """Are all of them dead beyond doubt (an exit was seen, or an operator said so)?  Silence is no
    evidence.
    """
    known = [job.roster.workers.get(key) for key in members]
    return all(worker is None or (worker.gone and worker.certain) for worker in known)


def _make_unplanned(
    job: JobState, current: Round, survivors: dict[Key, msg.Stopped], joiners: list[Worker]
) -> None:
    """The verdict over the survivors, and the plan that carries it."""
    low = min(answer.position for answer in survivors.values())
    top = max(answer.position for answer in survivors.values())
    commit = all(answer.position > low or answer.whole for answer in survivors.values())
    if not commit and top != low:
        story = [(key, answer.position, answer.whole) for key, answer in sorted(survivors.items())]
        raise LawBroken(f"a survivor committed operation {low} and another is not whole: {story}")
    start = low + 1 if commit else low
    order = _rank_order(job, survivors)
    held = {
        key[0]: frozenset(answer.begun) | frozenset(answer.assigned)
        if answer.position == start
        else frozenset()
        for key, answer in survivors.items()
    }
    shards = max((answer.shards for answer in survivors.values() if answer.position == start), default=0)
    ids = [key[0] for key in order] + [worker.id for worker in joiners]
    added = spread(shards, held, ids) if shards else {}
    workers = [*job.roster.get(order), *joiners]
    plan = rec.PlanMade(
        number=job.number(),
        planned=False,
        members=tuple((worker.id, worker.incarnation, worker.address) for worker in workers),
        joiners=tuple(worker.id for worker in joiners),
        start=start,
        shards=shards,
        added=tuple(sorted(added.items())),
        reason=current.reason,
    )
    if shards and any(held.values()):
        again = {shard for given in added.values() for shard in given}
        job.redone[start] = tuple(sorted(again | set(job.redone.get(start, ()))))
    out = [worker for worker in job.roster.get(current.answers) if worker.key not in set(order)]
    install(job, plan)
    message = job.plan_message(plan, _donors(job, plan))
    for worker in workers:
        if worker in joiners:
            worker.track.move(WorkerState.SYNCING, f"plan {plan.number} takes it in")
        job.tell(worker, message)
    for worker in out:  # those that had state learn that they are out; a joiner is on STANDBY again
        if worker.generation > 0:
            job.tell(worker, message)
    verdict = f"commit operation {low}" if commit else f"reduce operation {low} again"
    log_plan(job, plan, verdict)


def _rank_order(job: JobState, survivors: dict[Key, msg.Stopped]) -> list[Key]:
    """Survivors keep their order; those only the pending plan knows come last."""
    order: list[Key] = []
    for plan in job.chain():
        order += [key for key in job.member_keys(plan) if key in survivors and key not in order]
    return order + sorted(set(survivors) - set(order))


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


# ---------------------------------------------------------------- first and planned


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
    message = job.plan_message(plan, _donors(job, plan))
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
        job.tell(worker, job.plan_message(plan, _donors(job, plan)))
    log_plan(job, plan, "")
    _tell_members(job)


def _donors(job: JobState, plan: rec.PlanMade) -> tuple[msg.Member, ...]:
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
        job.tell(worker, job.plan_message(plan, _donors(job, plan)))
    elif job.current_formed and worker.generation == job.current:
        job.tell(worker, msg.GenerationFormed(number=job.current))
    pending = job.pending
    if pending is not None and pending.plan.number not in held:
        if worker.key in pending.joiners or (pending.told and worker.key in job.current_keys()):
            job.tell(worker, job.plan_message(pending.plan, _donors(job, pending.plan)))


def _tell_members(job: JobState) -> None:
    pending = job.pending
    if pending is None or pending.told or pending.joiners - pending.holds:
        return
    pending.told = True
    message = job.plan_message(pending.plan, _donors(job, pending.plan))
    for worker in job.roster.get(job.current_keys()):
        job.tell(worker, message)


def plan_held(job: JobState, worker: Worker, number: int) -> None:
    """A worker holds a plan; when it is the last joiner the members are told."""
    if job.pending is not None and job.pending.plan.number == number:
        job.pending.holds.add(worker.key)
        _tell_members(job)


def formed(job: JobState, worker: Worker, number: int) -> None:
    """A worker stands in generation ``number`` with its links up."""
    if (
        job.round is not None
        or job.finish is not None
        or number not in job.formed_by
        or worker.key not in job.member_keys(job.plans[number])
    ):
        return
    worker.generation = number
    if worker.state in (WorkerState.SYNCING, WorkerState.SUSPECT, WorkerState.STANDBY, WorkerState.JOINING):
        worker.track.move(WorkerState.ACTIVE, f"formed generation {number}")
    job.formed_by[number].add(worker.key)
    if job.formed_by[number] >= set(job.member_keys(job.plans[number])):
        _generation_formed(job, number)


def _generation_formed(job: JobState, number: int) -> None:
    old = job.chain_keys()
    if job.pending is not None and job.pending.plan.number == number:
        job.current, job.pending = number, None
    elif number != job.current or job.current_formed:
        return
    job.record(rec.GenerationWas(number))
    plan = job.plans[number]
    job.plans = {key: item for key, item in job.plans.items() if key >= number}
    job.past = {key: item for key, item in job.past.items() if key >= number}
    job.formed_by = {key: item for key, item in job.formed_by.items() if key >= number}
    job.current_formed = True
    for worker in job.roster.get(sorted(old | set(job.member_keys(plan)))):
        job.tell(worker, msg.GenerationFormed(number=number))
    job.log("formed", number=number, members=[m[0] for m in plan.members], joiners=list(plan.joiners))
    job.move(JobPhase.RUNNING, f"generation {number} has formed")
