"""Links that break, or cannot be made, between workers that live: who goes so that the others go on.

A member only reports whom it cannot reach; what follows is decided here (DESIGN 5, "Verdicts").  Among
members the generation is formed once more, and a pair that breaks again within a minute costs one its place.
A joiner that keeps a generation from forming is forgotten after `JOINER_ATTEMPTS`; the others stop once.
"""

from __future__ import annotations

from godmw.membership import records as rec
from godmw.membership import rounds, verdicts
from godmw.membership.failure_detector import Cause
from godmw.membership.jobstate import Broken, JobState
from godmw.membership.roster import Worker
from godmw.protocol import messages as msg

GRACE_S = 0.4  # an exit that explains a broken link is known by then
MEMORY_S = 60.0
JOINER_ATTEMPTS = 2
JOINER_PATIENCE_S = 4.0  # for the next of them; then it is a broken link as any other
MAKING = frozenset({"rendezvous", "state"})  # stages at which a link is not yet made


def heard(job: JobState, worker: Worker, message: msg.LinkBroken, generation: int) -> None:
    """A worker cannot reach another.  An exit that explains it comes within the grace."""
    if job.round is not None or job.finish is not None or _plan(job, worker, generation) is None:
        return
    pair = (worker.id, message.peer)
    job.broken = {p: seen for p, seen in job.broken.items() if job.now_s - seen.last_s < MEMORY_S}
    times = 1 + (job.broken[pair].times if pair in job.broken else 0)
    job.broken[pair] = Broken(message.stage, job.now_s, times)
    if job.link_deadline_s is None:
        job.link_deadline_s = job.now_s + GRACE_S
    job.log("link_broken", worker=worker.id, peer=message.peer, reason=message.stage)


def _plan(job: JobState, worker: Worker, generation: int) -> rec.PlanMade | None:
    """The live generation that a report is about; a joiner speaks before it has entered its own."""
    for plan in job.chain():
        mine = worker.id in plan.joiners and worker.key in job.member_keys(plan)
        if plan.number == generation or (generation == 0 and mine):
            return plan
    return None


def formed(job: JobState) -> None:
    """A generation stands: what was said while its links were made is over."""
    job.broken = {pair: seen for pair, seen in job.broken.items() if seen.stage not in MAKING}
    if not job.broken:
        job.link_deadline_s = None


def judge(job: JobState) -> None:
    """Once the grace is over, for what was reported."""
    if job.link_deadline_s is None or job.now_s < job.link_deadline_s:
        return
    job.link_deadline_s = None
    if job.round is not None or job.hearing is not None or job.finish is not None:
        job.broken = {}
        return
    keys = [key for plan in job.chain() for key in job.member_keys(plan)]
    members = {worker.id: worker for worker in job.roster.get(keys) if not worker.gone}
    pairs = {(min(pair), max(pair)) for pair in job.broken if set(pair) <= members.keys()}
    joiner = _joiner_in_all(job, pairs)
    if joiner is not None:
        mine = [seen for pair, seen in job.broken.items() if joiner in pair]
        if max(seen.times for seen in mine) >= JOINER_ATTEMPTS:
            job.broken = {}
            _forget(job, members[joiner], sorted({one for pair in pairs for one in pair} - {joiner}))
            return
        if job.now_s - max(seen.last_s for seen in mine) < JOINER_PATIENCE_S:
            job.link_deadline_s = job.now_s + GRACE_S
            return
    _between_members(job, members, pairs)


def _joiner_in_all(job: JobState, pairs: set[tuple[str, str]]) -> str | None:
    """The joiner of a generation that has not formed, if every link that cannot be made is one of its."""
    plan = job.chain()[-1]
    if plan.number <= job.last_formed or not pairs:
        return None
    found = [one for one in plan.joiners if all(one in pair for pair in pairs)]
    return found[-1] if found else None


def _forget(job: JobState, joiner: Worker, others: list[str]) -> None:
    """It cannot be reached, or reaches nobody: the others form without it."""
    names = ", ".join(others)
    place = joiner.address or "its address"
    verdicts.lose(
        job,
        joiner,
        Cause.UNREACHED,
        f"no link between it ({place}) and {names} can be made, after {JOINER_ATTEMPTS} attempts",
        hint=f"let the hosts of {names} reach {place} and back (firewall, container network?), "
        "then start it again",
    )


def _between_members(job: JobState, members: dict[str, Worker], pairs: set[tuple[str, str]]) -> None:
    """The generation is formed once more; a pair that breaks again within a minute costs one its place."""
    broken, job.broken = job.broken, {}
    again = {pair for pair in pairs if job.now_s - job.reformed.get(pair, -MEMORY_S) < MEMORY_S}
    job.reformed = {pair: when for pair, when in job.reformed.items() if job.now_s - when < MEMORY_S}
    job.reformed.update(dict.fromkeys(pairs, job.now_s))
    if again:
        ranks = list(members)
        worst = max(ranks, key=lambda one: (sum(one in pair for pair in again), ranks.index(one)))
        unreached = ", ".join(sorted({one for pair in again if worst in pair for one in pair} - {worst}))
        reason = f"its link to {unreached} broke twice within a minute"
        verdicts.lose(job, members[worst], Cause.UNREACHED, reason)
    else:
        between = ", ".join(f"{a}–{b}" for a, b in sorted(pairs or broken))
        rounds.begin_round(job, f"a link broke between live members ({between})")
