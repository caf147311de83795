"""A restarted master: what the journal says, who reports, and when an old generation may be adopted
(DESIGN 4).

The new term builds on its journal, not on the reports.  The base is the newest generation of the
journal together with a planned one announced after it; it is adopted only when all members of both
report and no Abort stops any of them. Otherwise an Abort round of this term is run: a registration is
not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from godmw.membership import change, ending, rounds, verdicts
from godmw.membership import records as rec
from godmw.membership.failure_detector import Cause
from godmw.membership.jobstate import Hearing, JobState, Pending
from godmw.membership.roster import Worker
from godmw.membership.states import JobPhase, WorkerState
from godmw.protocol import messages as msg


def restore(job: JobState, records: Sequence[rec.JournalRecord]) -> None:
    """Rebuild the memory from the journal; afterwards the job hears for one lease, or ends again."""
    formed = last_abort = 0
    in_force: rec.PlanMade | None = None
    for item in records:
        match item:
            case rec.TermBegan(term=term):
                job.term = max(job.term, term)
            case rec.JobSet(minimum=low, maximum=high, target=target, paused=paused):
                job.minimum, job.maximum, job.target, job.paused = low, high, target, paused
            case rec.OfferSet():
                job.offer = item
            case rec.WorkerSeen():
                _seen(job, item)
            case rec.WorkerGone():
                _gone(job, item)
            case rec.DrainAsked(worker=name, incarnation=incarnation):
                if (leaving := job.roster.workers.get((name, incarnation))) is not None:
                    leaving.draining = leaving.excused = True
            case rec.AbortMade(number=number):
                job.top, last_abort = max(job.top, number), number
            case rec.PlanMade():
                job.top = max(job.top, item.number)
                job.plans[item.number] = job.past[item.number] = item
                in_force = in_force if item.planned else item
            case rec.GenerationWas(number=number):
                _drained(job, in_force, job.past[number])
                formed, in_force = number, job.past[number]
            case rec.FinishMade():
                job.finish = item
            case rec.JobOver():
                job.over = True
            case _:
                raise ValueError(f"unknown journal record {item!r}")
    _rebase(job, formed)
    job.last_abort, job.last_formed = last_abort, formed
    lease_s = max((job.lease_s(worker) for worker in job.roster.alive()), default=job.settings.lease_s)
    job.hearing = Hearing(job.now_s + lease_s)
    if job.finish is not None:
        job.move(JobPhase(job.finish.outcome.upper()), job.finish.reason)


def _drained(job: JobState, before: rec.PlanMade | None, after: rec.PlanMade) -> None:
    """Whom a planned change left out, and nobody saw leave, may still wait for the word that it may."""
    if before is not None and after.planned:
        for worker in job.roster.get(set(job.member_keys(before)) - set(job.member_keys(after))):
            worker.draining = worker.excused = True


def _seen(job: JobState, item: rec.WorkerSeen) -> None:
    key = (item.worker, item.incarnation)
    worker = job.roster.workers.get(key) or job.roster.add(Worker(item.worker, item.incarnation))
    worker.agent, worker.slot, worker.host, worker.pid = item.agent, item.slot, item.host, item.pid
    if item.agent[1:].isdigit():
        job.roster.next_agent = max(job.roster.next_agent, int(item.agent[1:]) + 1)


def _gone(job: JobState, item: rec.WorkerGone) -> None:
    worker = job.roster.workers.get((item.worker, item.incarnation))
    if worker is None:
        return
    worker.certain = worker.certain or item.verdict in ("exited", "reset", "operator", "failed", "left")
    if not worker.gone:
        to = WorkerState.LEFT if item.verdict == "left" else WorkerState.DEAD
        worker.track.move(to, item.reason)


def _rebase(job: JobState, formed: int) -> None:
    """The base: the newest generation that an Abort round made or that has Formed, and a planned one
    after it.
    """
    solid = [number for number, plan in job.plans.items() if not plan.planned or number <= formed]
    job.current = max(solid, default=0)
    job.current_formed = job.current != 0 and formed >= job.current
    later = [number for number in job.plans if number > job.current]
    base = {job.current, *later}
    job.plans = {number: plan for number, plan in job.plans.items() if number in base}
    job.formed_by = {number: set() for number in job.plans}
    job.resend = job.plans[max(later)] if later else None


def register(job: JobState, worker: Worker, message: msg.Join) -> None:
    """A worker reported to this term while it hears; judged when all have, or the lease is over."""
    assert job.hearing is not None
    job.hearing.registered[worker.key] = message
    if worker.draining and worker.key not in job.base_keys():
        job.tell(worker, msg.GenerationFormed(number=job.last_formed))


def settle(job: JobState) -> None:
    """Adopt, or run an Abort round, once enough has been heard."""
    hearing = job.hearing
    if hearing is None:
        return
    late = job.now_s >= hearing.until_s
    if job.finish is not None:  # the job has ended: this term only says so, to all that may still live
        if late or all(worker.joined for worker in job.roster.alive()):
            job.hearing = None
            ending.tell_finish(job)
        return
    heard = all(worker.joined or worker.gone for worker in job.roster.get(job.base_keys()))
    if not job.current:
        if late:
            _end_hearing(job, late)
        return
    if _adoptable(job, hearing):
        _adopt(job, hearing)
    elif late or heard:
        job.pending = Pending(job.resend, set()) if job.resend else None
        _end_hearing(job, late)
        _ask(job)


def _adoptable(job: JobState, hearing: Hearing) -> bool:
    """All members of one generation of the base, and of every plan after it, report, and no Abort stops
    any.
    """
    reports = hearing.registered
    highest = max((join.generation for join in reports.values()), default=0)
    plan = job.plans.get(highest)
    if (
        plan is None
        or any(not p.planned and n > highest for n, p in job.plans.items())
        or job.last_abort > highest
    ):
        return False

    def clear(key: tuple[str, int], generation: int | None) -> bool:
        join, worker = reports.get(key), job.roster.workers.get(key)
        if join is None or worker is None or worker.gone:
            return False
        if join.generation == 0:
            return generation is None
        return join.abort <= join.generation and generation in (None, join.generation)

    later = [p for number, p in job.plans.items() if number > highest]
    return all(clear(key, highest) for key in job.member_keys(plan)) and all(
        clear(key, None) for p in later for key in job.member_keys(p)
    )


def _adopt(job: JobState, hearing: Hearing) -> None:
    highest = max(join.generation for join in hearing.registered.values())
    if highest != job.current:  # the planned one of the base has been entered by all of its members
        job.resend = None
    job.current, job.current_formed = highest, job.current_formed and highest == job.current
    resend = job.resend
    job.plans = {highest: job.plans[highest]}
    job.formed_by = {highest: job.formed_by.get(highest, set())}  # some said so while we heard
    for worker in job.roster.get(job.current_keys()):
        if worker.state is not WorkerState.ACTIVE:
            worker.track.move(WorkerState.ACTIVE, f"adopted with generation {highest}")
    job.log("adopted", number=highest, members=[key[0] for key in job.current_keys()])
    _end_hearing(job, late=False)
    job.move(
        JobPhase.RUNNING if job.current_formed else JobPhase.RECONFIGURING,
        f"term {job.term} adopted generation {highest}",
    )
    if resend is not None:
        change.announce(job, resend)


def _end_hearing(job: JobState, late: bool) -> None:
    """From here the ordinary verdicts hold.  Who did not report within the lease and holds no state is dead;
    a member that did not is in doubt (`_ask`)."""
    job.hearing = None
    members = job.base_keys()
    for worker in job.roster.alive():
        stray = not worker.agent or job.roster.agents.get(worker.agent) is None
        if not worker.joined and late and stray and worker.key not in members:
            verdicts.lose(job, worker, Cause.SILENT, "did not report to the restarted master")
        elif worker.joined and worker.key in members and worker.state is WorkerState.JOINING:
            if worker.generation > 0:
                worker.track.move(WorkerState.ACTIVE, f"reported to term {job.term}")


def _ask(job: JobState) -> None:
    """An Abort round of this term; members that have not reported are in doubt."""
    rounds.begin_round(job, f"term {job.term}: no common generation after hearing")
    for worker in job.roster.get(sorted(job.chain_keys())):
        if not worker.joined and not worker.gone:
            rounds.doubt(job, worker, "did not report to the restarted master")
