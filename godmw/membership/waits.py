"""Who waits for whom, and what the one waited for was last doing: pure questions to the last heartbeats.

A member that waits says for whom (``waits_for``); the chain is followed to its end, which is the culprit.
One that cannot say waits for every member that is at work of its own.  Nothing is named before
`NAMED_AFTER_S`.
"""

from __future__ import annotations

import dataclasses

from godmw.membership.jobstate import JobState
from godmw.membership.roster import Worker
from godmw.protocol import messages as msg

NAMED_AFTER_S = 10.0
BEATS_APART_S = 1.0  # what two members say of the same moment differs by less
WAITING_PHASES = frozenset({"waiting", "reduce", "ended"})  # for others, and not at its own work


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """Members `by` wait for one worker, the first of them for `waited_s`.

    `stands`: how long its own progress has stood, 0 while it goes on or waits itself.
    """

    by: tuple[str, ...]
    waited_s: float
    stands_s: float
    text: str


def waits(job: JobState) -> dict[str, Wait]:
    """By culprit.  Empty in calm times, at the price of one look at each member."""
    members = [w for w in job.roster.get(sorted(job.chain_keys())) if w.beat is not None and not w.gone]
    if not any(_beat(worker).idle_s >= NAMED_AFTER_S for worker in members):
        return {}
    found: dict[str, list[Worker]] = {}
    for worker in members:
        if _beat(worker).phase in WAITING_PHASES:
            for culprit in _culprits(worker, members):
                found.setdefault(culprit.id, []).append(worker)
    named = {worker.id: _wait(worker, found[worker.id]) for worker in members if worker.id in found}
    return {one: wait for one, wait in named.items() if _due(wait)}


def _due(wait: Wait) -> bool:
    """Has it lasted?  One that is about to have stood as long is not first named as one that goes on."""
    if wait.stands_s >= NAMED_AFTER_S:
        return True
    about_to = wait.stands_s >= NAMED_AFTER_S - BEATS_APART_S
    return wait.waited_s >= NAMED_AFTER_S + about_to * BEATS_APART_S


def _beat(worker: Worker) -> msg.Heartbeat:
    assert worker.beat is not None
    return worker.beat


def _culprits(worker: Worker, members: list[Worker]) -> list[Worker]:
    """The end of the chain of waits that begins with `worker`."""
    by_id = {member.id: member for member in members}
    seen = [worker]
    while _beat(seen[-1]).phase in WAITING_PHASES:
        after = by_id.get(_beat(seen[-1]).waits_for)
        if after is None or after in seen:
            break
        seen.append(after)
    if len(seen) > 1:
        return [seen[-1]] if _beat(seen[-1]).phase != "ended" else []
    return [member for member in members if _beat(member).phase not in WAITING_PHASES]


def _wait(culprit: Worker, by: list[Worker]) -> Wait:
    beat = _beat(culprit)
    names = tuple(worker.id for worker in by)
    waited_s = max(_beat(worker).idle_s for worker in by)
    doing = f"{beat.phase} at {beat.where or 'start'}"
    if beat.phase not in WAITING_PHASES:
        stands_s = beat.idle_s
    else:
        stands_s = min(beat.idle_s, waited_s) if beat.phase == "reduce" and not beat.waits_for else 0.0
    if stands_s >= NAMED_AFTER_S:
        text = f"waiting for {culprit.id} for {stands_s:.0f} s: {doing}"
    else:
        goes_on = f", which waits for {beat.waits_for}" if beat.waits_for else ""
        text = f"{' and '.join(names)} waited {waited_s:.0f} s for {culprit.id}: {doing}{goes_on}"
    return Wait(names, waited_s, stands_s, text)
