"""How a job ends: finished, stopped or failed; nobody is told before the ledger and the journal are
durable.

The end is journalled, then said to everybody; the run directory is *over* when every member has
confirmed or its exit was seen (DESIGN 4, "The end").
"""

from __future__ import annotations

from godmw.membership import actions as act
from godmw.membership import records as rec
from godmw.membership.jobstate import JobState
from godmw.membership.roster import Worker
from godmw.membership.states import JobPhase
from godmw.protocol import messages as msg

_PHASES = {"finished": JobPhase.FINISHED, "stopped": JobPhase.STOPPED, "failed": JobPhase.FAILED}
INTERNAL = 70
ERROR = "error: "
FATAL_KINDS = frozenset({"nonfinite", "mismatch", "engine"})


def script_failed(job: JobState, worker: Worker, code: int, last_words: str) -> bool:
    """A worker's script ended badly or early.  True: that ends the job.  Before the first commit nothing
    is retried.
    """
    failure = worker.failure
    if failure is None:
        failure = msg.Failed(
            kind="exit" if code else "early_end", code=code, traceback=last_words[-60000:], step=job.step
        )
        worker.failure = failure
    if failure.kind in FATAL_KINDS or job.next_operation == 0:
        fail(job, _in_words(worker, failure))
        return True
    return False


def _in_words(worker: Worker, failure: msg.Failed) -> str:
    last = last_line(failure.traceback)
    what = {
        "exception": f"its script raised: {last}",
        "early_end": "its script ended inside a loop or before one",
        "exit": f"its script exited with {failure.code}" + (f": {last}" if last else ""),
    }.get(failure.kind, last or failure.kind)
    return f"{worker.id}: {what}"[:3000]


def last_line(words: str) -> str:
    """What last words come down to: the error that was written for people, else their last line."""
    lines = words.strip().splitlines()
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    return (errors or lines or [""])[-1]


def failed(job: JobState, worker: Worker, failure: msg.Failed) -> None:
    """Last words of a worker, before its exit is seen."""
    worker.failure, worker.failed_s = failure, job.now_s
    job.log(
        "failed", worker=worker.id, reason=_in_words(worker, failure), traceback=failure.traceback[-8000:]
    )
    if job.finish is None and (failure.kind in FATAL_KINDS or job.next_operation == 0):
        fail(job, _in_words(worker, failure))
    elif job.finish is None:
        job.notice(_in_words(worker, failure))


def blame(job: JobState) -> str:
    """What to add to the reason of an end that followed from a script's failure."""
    failed = [worker for worker in job.roster.workers.values() if worker.failure is not None]
    if not failed:
        return ""
    first = min(failed, key=lambda worker: worker.failed_s)
    return f"; {_in_words(first, first.failure)}" if first.failure is not None else ""


def finished(job: JobState, worker: Worker, message: msg.Finished) -> None:
    """A worker's script has ended, or (``confirmed``) it has heard Finish and goes."""
    if message.digest and worker.digest != message.digest:  # one told Finish before it was needed has none
        job.log("ended", worker=worker.id, incarnation=worker.incarnation, digest=message.digest.hex())
    worker.ended, worker.position, worker.digest = True, message.position, message.digest
    if message.summary and worker.key in job.current_keys()[:1]:
        job.summary = message.summary
    if message.confirmed:
        worker.confirmed = True


def try_finish(job: JobState) -> bool:
    """All members of the generation in force have ended, the last operation is committed by all and
    durable.
    """
    if job.finish is not None or job.round is not None or job.hearing is not None or not job.current_formed:
        return False
    members = job.roster.get(job.current_keys())
    if not members or not all(worker.ended and not worker.gone for worker in members):
        return False
    positions = {worker.position for worker in members}
    if len(positions) != 1 or job.durable < positions.pop():
        return False
    digests = {worker.digest for worker in members}
    if len(digests) > 1:
        which = ", ".join(f"{worker.id} {worker.digest.hex()[:12]}" for worker in members)
        end(job, "failed", INTERNAL, f"the workers ended with different weights: {which}")
        return True
    end(job, "finished", 0, "every worker's script has ended")
    return True


def fail(job: JobState, reason: str) -> None:
    """The job cannot go on."""
    end(job, "failed", 1, reason)


def end(job: JobState, outcome: str, code: int, reason: str) -> None:
    """Journal the end, then say it to everybody."""
    if job.finish is not None:
        return
    job.finish = rec.FinishMade(outcome, code, reason, job.summary)
    job.record(job.finish)
    job.round = None
    job.move(_PHASES[outcome], reason)
    job.log("end", outcome=outcome, code=code, reason=reason)
    tell_finish(job)


def tell_finish(job: JobState) -> None:
    """To members, joiners, pending and drained ones, and to the agents."""
    assert job.finish is not None
    message = msg.Finish(outcome=job.finish.outcome, code=job.finish.code, reason=job.finish.reason[:1024])
    for worker in job.roster.alive():
        if not worker.confirmed:
            job.tell(worker, message)
    for agent in job.roster.agents.values():
        if not agent.lost:
            job.send(agent.peer, message)


def seen_out(job: JobState, worker: Worker) -> None:
    """An exit was seen after the end, or of somebody already judged."""
    worker.confirmed = True


def try_over(job: JobState) -> None:
    """When everybody has confirmed or is gone, the run directory is finished."""
    if job.finish is None or job.over or job.hearing is not None:
        return
    members = [worker for worker in job.roster.alive() if worker.joined or worker.agent]
    waiting = [worker for worker in members if not worker.confirmed and not _unreachable(job, worker)]
    if not waiting:
        job.over = True
        job.record(rec.JobOver())
        job.out.append(act.EndJob(job.finish.outcome, job.finish.code, job.finish.reason))


def _unreachable(job: JobState, worker: Worker) -> bool:
    """Nothing was heard of it or its agent for a lease: it will learn of the end from a later master, if
    it lives.
    """
    agent = job.roster.agents.get(worker.agent)
    if worker.stopped_since_s is not None:
        return True
    mute = not worker.joined or worker.gap.silent(job.lease_s(worker), job.now_s)
    return mute and (agent is None or agent.lost or agent.gap.silent(job.lease_s(worker), job.now_s))
