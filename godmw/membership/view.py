"""The job as a person or a program sees it: the object of ``status --json`` (DESIGN 8).

A function of the coordinator's memory, asked at any time; it changes nothing and hides nothing.
After a master's restart the journalled members are shown until they report.
"""

from __future__ import annotations

from typing import Any

from godmw.membership.jobstate import JobState
from godmw.membership.roster import Worker
from godmw.membership.states import ENDED_PHASES, JobPhase

MOVING = frozenset({JobPhase.FORMING, JobPhase.RUNNING, JobPhase.RECONFIGURING})


def view(job: JobState) -> dict[str, Any]:
    """``job, phase, term, generation, step, world_size, min, max, target, workers`` and why the phase is
    what it is.
    """
    ranks = {key: rank for rank, key in enumerate(job.current_keys())}
    workers = [w for w in job.roster.workers.values() if not w.gone or w.key in ranks]
    workers.sort(key=lambda worker: (ranks.get(worker.key, len(ranks)), worker.id))
    ended = job.phase.state in ENDED_PHASES
    return {
        "job": job.settings.job,
        "phase": job.phase.state.value,
        "reason": _reason(job),
        "term": job.term,
        "generation": max(1, job.current),
        "step": job.step,
        "world_size": 0 if ended else len(ranks),
        "min": job.minimum,
        "max": job.maximum or max(job.target, job.offer.shards if job.offer else 0),
        "target": job.target,
        "workers": [_row(job, worker, ranks.get(worker.key)) for worker in workers],
    }


def _reason(job: JobState) -> str:
    """Why the phase is what it is; while it is a running one that stands still: who is waited for."""
    still = [wait.text for wait in job.awaited.values()]
    return "; ".join(still) if still and job.phase.state in MOVING else job.reason


def _row(job: JobState, worker: Worker, rank: int | None) -> dict[str, Any]:
    beat = worker.beat
    return {
        "id": worker.id,
        "rank": rank,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state.value,
        "step": max(0, worker.position),
        "phase": beat.phase if beat else "starting",
        "incarnation": worker.incarnation,
    }
