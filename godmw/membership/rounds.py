"""Abort rounds and their verdict: how membership changes when somebody dies (DESIGN 4, "Unplanned change").

One decider, one sequence of numbers.  ``decide`` is the law of the interrupted operation: all whole →
commit, otherwise it is reduced again from kept contributions; shards are only ever added.  A silent
member is doubted, not dead, until the others may decide without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from godmw.membership import change
from godmw.membership import records as rec
from godmw.membership.assignment import default_share, spread
from godmw.membership.jobstate import JobState, Round
from godmw.membership.roster import Key, Worker
from godmw.membership.states import JobPhase, WorkerState
from godmw.protocol import messages as msg


class LawBroken(Exception):
    """The answers contradict the law; a fault of ours (exit 70), told with the answers."""


def begin_round(job: JobState, reason: str) -> None:
    """Stop every member of every live generation; a change of mind about a pending plan comes here too."""
    number = job.number()
    job.record(rec.AbortMade(number))
    targets = {worker.key for worker in job.roster.get(job.chain_keys()) if not worker.gone}
    job.round = Round(number, reason, targets)
    job.link_deadline_s, job.broken = None, {}  # whatever was broken, it is of a generation that is over
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
    current.doubtful.pop(worker.key, None)
    worker.generation, worker.position = answer.generation, answer.position
    worker.ended = answer.ended
    if worker.state is WorkerState.SYNCING:
        worker.track.move(WorkerState.STANDBY, f"Abort {answer.abort} overtook its plan")
    elif worker.state is WorkerState.SUSPECT:
        worker.track.move(WorkerState.ACTIVE, f"it answers Abort {answer.abort}")


def lost_in_round(job: JobState, key: Key) -> None:
    """A target of the round is dead: its answer does not count any more."""
    if job.round is not None:
        job.round.targets.discard(key)
        job.round.answers.pop(key, None)
        job.round.doubtful.pop(key, None)


def doubt(job: JobState, worker: Worker, reason: str) -> None:
    """A member is silent: the others are asked, and it is dead once they may decide."""
    if job.round is None:
        begin_round(job, f"{worker.id} is silent: {reason}")
    assert job.round is not None
    job.round.doubtful[worker.key] = reason
    if worker.state is WorkerState.ACTIVE:
        worker.track.move(WorkerState.SUSPECT, reason)


def heard(job: JobState, worker: Worker) -> None:
    """A silent member speaks again before the round was decided: its answer is awaited again."""
    current = job.round
    if current is not None and current.doubtful.pop(worker.key, None) is not None:
        job.tell(worker, msg.Abort(number=current.number, reason=current.reason[:1024]))


def _stateful(current: Round) -> dict[Key, msg.Stopped]:
    return {key: a for key, a in current.answers.items() if a.position >= 0 and a.generation > 0}


def undecided(job: JobState) -> str | None:
    """Why the round cannot end: in words; None while answers are awaited; empty when it can."""
    current = job.round
    if current is None or current.missing() or job.finish is not None:
        return None
    if job.paused:
        return "paused by the operator"
    return "" if _begins_anew(job, current) else _may_decide(job, current, _stateful(current))


def _begins_anew(job: JobState, current: Round) -> bool:
    """Members of the first generation answer, none with state: nothing can have been committed."""
    planned = any(plan.planned for plan in job.plans.values())
    return bool(current.answers) and not _stateful(current) and job.next_operation == 0 and not planned


def decide(job: JobState) -> bool:
    """Try to end the round with a plan.  False, with ``round.verdict`` set, while nobody may decide."""
    why, current = undecided(job), job.round
    if why is None or current is None:
        return False
    if why:
        return _hold(job, why)
    if _begins_anew(job, current):
        return _anew(job, current)
    stateful = _stateful(current)
    highest = max(answer.generation for answer in stateful.values())
    entered = set(job.member_keys(_plan(job, highest)))
    survivors = {key: answer for key, answer in stateful.items() if key in entered}
    joiners: list[Worker] = []
    if len(survivors) < job.minimum:
        joiners = job.standby()[: max(0, job.limit() - len(survivors))]
        if len(survivors) + len(joiners) < job.minimum:
            return _hold(job, f"{len(survivors) + len(joiners)} workers, {job.minimum} are the least")
        if not any(a.enterable for a in survivors.values() if a.position == judge(survivors)[2]):
            return _go_through(job, current, survivors)
    _make_unplanned(job, current, survivors, joiners)
    return True


def judge(survivors: dict[Key, msg.Stopped]) -> tuple[int, bool, int]:
    """The lowest operation in hand, whether it is committed, and the first operation of the plan."""
    low = min(answer.position for answer in survivors.values())
    top = max(answer.position for answer in survivors.values())
    commit = all(answer.position > low or answer.whole for answer in survivors.values())
    if not commit and top != low:
        story = [(key, answer.position, answer.whole) for key, answer in sorted(survivors.items())]
        raise LawBroken(f"a survivor committed operation {low} and another is not whole: {story}")
    return low, commit, low + 1 if commit else low


def _go_through(job: JobState, current: Round, survivors: dict[Key, msg.Stopped]) -> bool:
    """Too few members, and joiners enough, but their scripts cannot stand where the members do.

    The survivors are let go on by themselves: to commit what they are whole for, or through one operation
    in the body of a loop; then they are asked again.  One that is between two operations is waited for.
    """
    low, commit, start = judge(survivors)
    if commit:
        _make_unplanned(job, current, survivors, [])
        begin_round(job, current.reason)
        return False
    if not any(answer.standing for answer in survivors.values()):
        names = ", ".join(key[0] for key in sorted(survivors))
        return _hold(job, f"waiting until {names} comes to operation {low}, where a joiner can be taken in")
    job.through = start
    _make_unplanned(job, current, survivors, [])
    return True


def hold_below_minimum(job: JobState) -> None:
    """Fewer members than allowed, by a drain or on their way to where joiners can stand: stopped."""
    if job.round or job.hearing or job.finish or not job.current or (job.pending and job.pending.told):
        return
    members = [worker for worker in job.roster.get(job.current_keys()) if not worker.gone]
    if len(members) >= job.minimum or all(worker.ended for worker in members):
        return
    if max(worker.position for worker in members) > job.through:
        begin_round(job, f"{len(members)} workers, {job.minimum} are the least")


def _plan(job: JobState, number: int) -> rec.PlanMade:
    plan = job.plans.get(number) or job.past.get(number)
    if plan is None:
        raise LawBroken(f"generation {number} was reported but never announced")
    return plan


def _anew(job: JobState, current: Round) -> bool:
    """The first generation is made again of those who answered and those who have come since."""
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
    low, commit, start = judge(survivors)
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
    again = {shard for given in added.values() for shard in given} - _unbegun(job, survivors, start, shards)
    if again:
        job.redone[start] = tuple(sorted(again | set(job.redone.get(start, ()))))
    _abandon(job, current, max(answer.generation for answer in survivors.values()))
    out = [worker for worker in job.roster.get(current.answers) if worker.key not in set(order)]
    change.install(job, plan)
    message = job.plan_message(plan, change.donors(job, plan))
    for worker in workers:
        if worker in joiners:
            worker.track.move(WorkerState.SYNCING, f"plan {plan.number} takes it in")
        job.tell(worker, message)
    for worker in out:  # those that had state learn that they are out; a joiner is on STANDBY again
        if worker.generation > 0:
            job.tell(worker, message)
    verdict = f"commit operation {low}" if commit else f"reduce operation {low} again"
    change.log_plan(job, plan, verdict)


def _unbegun(job: JobState, survivors: dict[Key, msg.Stopped], start: int, shards: int) -> set[int]:
    """Shards of ``start`` that were to be the survivors' and that they had not come to: no work is lost
    with them.  What the dead had begun of theirs nobody knows; it counts as all.
    """
    entered = _plan(job, max(answer.generation for answer in survivors.values()))
    given = dict(entered.added) if entered.start == start and entered.shards else None
    members = job.member_keys(entered)
    unbegun: set[int] = set()
    for rank, key in enumerate(members):
        if key in survivors:
            share = default_share(shards, len(members), rank) if given is None else given.get(key[0], ())
            unbegun.update(share)
    return unbegun


def _abandon(job: JobState, current: Round, highest: int) -> None:
    """An announced generation whose members are all certainly dead: what they alone committed never was."""
    for plan in job.chain():
        members = job.member_keys(plan)
        if plan.number > highest and not any(key in current.answers for key in members):
            job.abandoned[plan.number] = set(members)
            reason = "all its members have died: what they alone had committed is done again"
            job.log("abandoned", number=plan.number, members=[key[0] for key in members], reason=reason)


def _rank_order(job: JobState, survivors: dict[Key, msg.Stopped]) -> list[Key]:
    """Survivors keep their order; those only the pending plan knows come last."""
    order: list[Key] = []
    for plan in job.chain():
        order += [key for key in job.member_keys(plan) if key in survivors and key not in order]
    return order + sorted(set(survivors) - set(order))
