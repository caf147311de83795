"""What an operator may ask: status, scale, drain, evict, kill, pause, resume, stop (DESIGN 8).

Each answers at once with what was decided; nothing here waits.  A refusal says what was seen and what
to type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from godmw.membership import actions as act
from godmw.membership import crew, ending, rounds, verdicts
from godmw.membership.failure_detector import Cause
from godmw.membership.jobstate import JobState
from godmw.membership.roster import Worker
from godmw.membership.states import JobPhase
from godmw.membership.view import view
from godmw.protocol import messages as msg

USAGE, REFUSED = 64, 77


class AdminError(Exception):
    """A request that is not carried out."""

    def __init__(self, error: str, hint: str, code: int = USAGE) -> None:
        super().__init__(error)
        self.error, self.hint, self.code = error, hint, code


def answer(job: JobState, peer: str, request: int, message: Any) -> None:
    """Carry out one request and answer it."""
    try:
        if job.finish is not None and not isinstance(message, (msg.Status, msg.Stop)):
            raise AdminError(
                f"the job has ended: {job.finish.outcome}", "`godmw status` shows its final state"
            )
        body = _HANDLERS[type(message)](job, peer, message)
        job.out.append(act.Answer(peer, request, 0, body))
    except AdminError as error:
        body = {"error": error.error, "code": error.code, "hint": error.hint}
        job.out.append(act.Answer(peer, request, error.code, body))


def _status(job: JobState, peer: str, message: msg.Status) -> dict[str, Any]:
    return view(job)


def _scale(job: JobState, peer: str, message: msg.Scale) -> dict[str, Any]:
    limit = job.maximum
    if message.target < job.minimum or (limit and message.target > limit):
        bounds = f"{job.minimum} to {limit}" if limit else f"at least {job.minimum}"
        raise AdminError(
            f"scale {message.target}: {bounds} workers are allowed", "--min and --max of run or master"
        )
    crew.set_target(job, message.target, "asked for by an operator")
    return {"target": job.target}


def _worker(job: JobState, identity: str) -> Worker:
    worker = job.roster.current(identity)
    if worker is None or worker.gone:
        alive = ", ".join(sorted(w.id for w in job.roster.alive())) or "none"
        raise AdminError(f"no worker {identity!r} is running", f"running: {alive}")
    return worker


def _drain(job: JobState, peer: str, message: msg.Drain) -> dict[str, Any]:
    worker = _worker(job, message.worker)
    staying = [
        w for w in job.roster.get(job.current_keys()) if not w.draining and not w.gone and w is not worker
    ]
    if worker.key in job.chain_keys() and not staying:
        raise AdminError(
            f"{worker.id} is the last worker that holds the state of the job",
            "start another worker first, or end the job with `godmw stop`", REFUSED,
        )  # fmt: skip
    if not worker.draining:
        crew.set_target(job, max(0, job.target - 1), f"{worker.id} is drained")
        if worker.key in job.chain_keys():
            crew.drain(job, worker, "asked for by an operator")
        else:
            crew.dismiss(job, worker, "asked for by an operator")
    return {"worker": worker.id, "target": job.target}


def _evict(job: JobState, peer: str, message: msg.Evict) -> dict[str, Any]:
    members = job.roster.get(sorted(job.chain_keys()))
    silent = [w for w in members if w.id == message.worker and w.gone and not w.certain]
    for worker in silent:
        verdicts.certainly_dead(job, worker, Cause.OPERATOR, "an operator says so")
    if silent:
        return {"worker": message.worker, "target": job.target}
    worker = _worker(job, message.worker)
    crew.set_target(job, max(0, job.target - 1), f"{worker.id} is evicted")
    worker.excused = worker.draining = True
    verdicts.lose(job, worker, Cause.OPERATOR, "evicted by an operator")
    return {"worker": worker.id, "target": job.target}


def _kill(job: JobState, peer: str, message: msg.Kill) -> dict[str, Any]:
    worker = _worker(job, message.worker)
    agent = job.roster.agents.get(worker.agent)
    if agent is None or agent.lost:
        raise AdminError(
            f"{worker.id} has no agent that could send it a signal", f"kill -{message.signal} {worker.pid}"
        )
    worker.excused = True
    crew.terminate(job, worker, message.signal)
    return {"worker": worker.id, "pid": worker.pid, "signal": message.signal}


def _pause(job: JobState, peer: str, message: msg.Pause) -> dict[str, Any]:
    if not job.paused:
        job.paused = True
        crew.journal_job(job)
        if job.round is None and job.current and job.hearing is None:
            rounds.begin_round(job, "paused by the operator")
    return {"phase": JobPhase.PAUSED.value}


def _resume(job: JobState, peer: str, message: msg.Resume) -> dict[str, Any]:
    if job.paused:
        job.paused = False
        crew.journal_job(job)
    return {"phase": job.phase.state.value}


def _stop(job: JobState, peer: str, message: msg.Stop) -> dict[str, Any]:
    ending.end(job, "stopped", 75, message.reason or "stopped by an operator")
    return {"phase": job.phase.state.value}


_HANDLERS: dict[type, Callable[[JobState, str, Any], dict[str, Any]]] = {
    msg.Status: _status,
    msg.Scale: _scale,
    msg.Drain: _drain,
    msg.Evict: _evict,
    msg.Kill: _kill,
    msg.Pause: _pause,
    msg.Resume: _resume,
    msg.Stop: _stop,
}
REQUESTS = tuple(_HANDLERS)
