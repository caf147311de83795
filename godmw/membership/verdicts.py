"""Judging lives: what was seen becomes *dead*, *stopped*, *busy*, *stalled*, each with its evidence
(DESIGN 5).

``lose`` is the only way a worker dies.  ``judge`` runs on every tick over at most all workers;
whoever is alive but slow is named to everybody and evicted only after the stall timeout.
"""

from __future__ import annotations

from godmw.membership import crew, ending, rounds
from godmw.membership import records as rec
from godmw.membership.failure_detector import Cause, host_silent, process_stopped
from godmw.membership.jobstate import JobState
from godmw.membership.roster import Worker
from godmw.membership.states import WorkerState
from godmw.membership.waits import NAMED_AFTER_S, Wait, waits
from godmw.protocol import messages as msg

NAMED_AGAIN_S = 30.0
LAST_WORDS_S = 10.0  # from a worker's last words to the end of its process
REFUSED = 77
# long by nature: named, and no stall; the engine says the first three, a script the others with job.busy
PATIENT_PHASES = frozenset({"starting", "joining", "first step", "compiling", "saving", "debugger"})
_CERTAIN = frozenset({Cause.EXITED, Cause.RESET, Cause.OPERATOR, Cause.FAILED})
KILLED = (2, 9, 15)  # SIGINT, SIGKILL, SIGTERM
CRASH_DUMP = "\n\nThread 0x"  # how Python's faulthandler goes on after what happened


def lose(
    job: JobState, worker: Worker, cause: Cause, reason: str, *, replace: bool = True, hint: str = ""
) -> None:
    """``worker`` is dead or evicted: end its process, stop its generation, replace it within the budget."""
    if worker.gone:
        return
    was_draining = worker.draining
    worker.certain = cause in _CERTAIN
    # one that nobody can kill learns that it is out
    job.tell(worker, taken_out(reason, hint) if hint else taken_out(reason))
    worker.track.move(WorkerState.DEAD, reason)
    job.record(rec.WorkerGone(worker.id, worker.incarnation, cause.value, reason))
    last_sign_s = worker.gap.last_s if worker.joined else worker.launched_s
    job.log("verdict", worker=worker.id, incarnation=worker.incarnation, cause=cause.value, reason=reason,
            detected_s=max(0.0, job.now_s - last_sign_s))  # fmt: skip
    if cause is not Cause.EXITED:
        crew.terminate(job, worker, crew.SIGKILL)
    agent = job.roster.agents.get(worker.agent)
    within = crew.counted_death(job, worker)
    lowered = was_draining or (agent is not None and agent.lost)  # the target is without it already
    if agent is None or lowered or not replace:
        crew.set_target(job, max(0, job.target - (0 if lowered else 1)), f"{worker.id} is gone")
    elif not within:
        if worker.failure is not None or (cause is Cause.EXITED and reason.startswith("exit code")):
            ending.fail(job, f"{worker.id} failed more than {job.settings.restarts} times: {reason}")
            return
        crew.give_up_slot(job, worker, f"{worker.id} died more than {job.settings.restarts} times")
    touch_generations(job, worker, f"{worker.id} is dead: {reason}")


def silent(job: JobState, worker: Worker, reason: str) -> None:
    """Silence is death, unless it is the silence of all who know the job's state: then it is a pause."""
    if worker.key in job.chain_keys():
        rounds.doubt(job, worker, reason)
    else:
        lose(job, worker, Cause.SILENT, reason)


def condemn(job: JobState) -> None:
    """The round can be decided without its doubtful ones: from here they are dead."""
    if job.round is not None and rounds.undecided(job) == "":
        for key, reason in list(job.round.doubtful.items()):
            lose(job, job.roster.workers[key], Cause.SILENT, reason)


def certainly_dead(job: JobState, worker: Worker, cause: Cause, reason: str) -> None:
    """Its silence was taken for death, and is no evidence; this is (DESIGN 4, "One decider")."""
    worker.certain = True
    job.record(rec.WorkerGone(worker.id, worker.incarnation, cause.value, reason))
    job.log("certain", worker=worker.id, incarnation=worker.incarnation, reason=reason)


def taken_out(reason: str, hint: str = "start it again to join as a new worker") -> msg.Refused:
    """What a worker is told that is not in the job any more."""
    return msg.Refused(
        code=REFUSED,
        reason=f"this worker was taken out of the job: {reason}"[:1024],
        hint=hint[:1024],
    )


def touch_generations(job: JobState, worker: Worker, reason: str) -> None:
    """A worker that is no more was in a live generation: an Abort round, or one fewer to wait for."""
    if job.hearing is not None or job.finish is not None:
        return
    if job.round is not None:
        rounds.lost_in_round(job, worker.key)
    elif worker.key in job.chain_keys():
        rounds.begin_round(job, reason)


def judge(job: JobState) -> None:
    """All evidence that time alone produces."""
    if job.hearing is not None or job.finish is not None:
        return
    for agent in list(job.roster.agents.values()):
        if not agent.lost and agent.gap.silent(_agent_lease(job, agent.host), job.now_s):
            workers = [worker for worker in job.roster.alive() if worker.agent == agent.id and worker.joined]
            if all(worker.gap.silent(job.lease_s(worker), job.now_s) for worker in workers):
                crew.lose_agent(job, agent, "silent for one lease")
    crew.forget_agents(job)
    job.awaited = waits(job)
    for worker in list(job.roster.alive()):
        _judge_worker(job, worker)


def _agent_lease(job: JobState, host: str) -> float:
    return job.settings.lease_s if host == job.settings.local_host else job.settings.remote_lease_s


def _judge_worker(job: JobState, worker: Worker) -> None:
    agent = job.roster.agents.get(worker.agent)
    if process_stopped(worker.stopped_since_s, job.now_s):
        lose(job, worker, Cause.STOPPED, "its process is stopped (state T)")
        return
    if job.in_doubt(worker):
        return
    if agent is not None and agent.lost and not worker.joined:
        lose(job, worker, Cause.SILENT, "its agent is gone", replace=False)
        return
    if not worker.joined:
        _judge_start(job, worker)
        return
    lease_s = job.lease_s(worker)
    if host_silent(worker.gap, None if agent is None or agent.lost else agent.gap, lease_s, job.now_s):
        silent(job, worker, f"nothing heard from its host for {lease_s:g} s")
        return
    if worker.failure is not None:  # it has said its last words and is on its way out
        if job.now_s - worker.failed_s > LAST_WORDS_S:
            lose(job, worker, Cause.FAILED, "its script failed and its process does not end")
    elif worker.gap.silent(lease_s, job.now_s):
        _name(
            job,
            worker,
            "silence",
            f"{worker.id} is alive but its control thread is silent (a long call that holds the GIL?)",
        )
        _evict_stalled(job, worker, job.now_s - worker.gap.last_s, 0.0)
    elif worker.beat is not None and worker.id in job.awaited:
        _judge_wait(job, worker, worker.beat, job.awaited[worker.id])


def _judge_start(job: JobState, worker: Worker) -> None:
    """Its process was started and its script does not come: named, and given up after the stall timeout."""
    worker.launched_s = worker.launched_s or job.now_s  # of an earlier term: from now on
    waited_s = job.now_s - worker.launched_s
    late = f"its script has not called godmw.join for {waited_s:.0f} s"
    if waited_s >= NAMED_AFTER_S:
        _name(job, worker, "start", f"waiting for {worker.id}: {late}")
    limit = job.settings.stall_timeout_s
    if limit is None or waited_s <= limit:
        return
    if job.next_operation == 0:
        ending.fail(job, f"{worker.id}: {late} (--stall-timeout {limit:g})")
    else:
        lose(job, worker, Cause.STALLED, late)


def _judge_wait(job: JobState, worker: Worker, beat: msg.Heartbeat, wait: Wait) -> None:
    """Others wait for it: named, and given up when its own progress has stood for the stall timeout."""
    _name(job, worker, "progress", wait.text)
    if beat.phase not in PATIENT_PHASES:
        _evict_stalled(job, worker, wait.stands_s, beat.limit_s)


def _evict_stalled(job: JobState, worker: Worker, idle_s: float, limit_s: float) -> None:
    limit = job.settings.stall_timeout_s
    if limit is not None and idle_s > max(limit, limit_s):
        lose(job, worker, Cause.STALLED, f"no progress for {idle_s:.0f} s while others waited")


def _name(job: JobState, worker: Worker, why: str, text: str) -> None:
    if why != worker.named_for or job.now_s - worker.named_s >= NAMED_AGAIN_S:
        worker.named_s, worker.named_for = job.now_s, why
        job.notice(text)


def peer_gone(job: JobState, peer: str) -> None:
    """A connection was reset.  An agent's: its workers follow.  A worker's: a death only if its agent is
    gone too.
    """
    agent = job.roster.agent_of_peer(peer)
    if agent is not None:
        job.roster.peers.pop(peer, None)
        agent.peer = ""
        crew.lose_agent(job, agent, "its connection was reset")
        for worker in list(job.roster.alive()):
            if worker.agent == agent.id and (not worker.joined or not worker.peer):
                lose(
                    job, worker, Cause.RESET, "its connection was reset and its agent is gone", replace=False
                )
        return
    gone = job.roster.of_peer(peer)
    if gone is None:
        return
    job.roster.peers.pop(peer, None)
    gone.peer = ""
    owner = job.roster.agents.get(gone.agent)
    if owner is not None and owner.lost and not gone.gone:
        lose(job, gone, Cause.RESET, "its connection was reset and its agent is gone", replace=False)


def child_exited(job: JobState, message: msg.ChildExited) -> None:
    """An agent saw a worker's end: the strongest evidence there is."""
    worker = job.roster.workers.get((message.worker, message.incarnation))
    if worker is None:
        return
    worker.exited = True
    if worker.gone:
        if not worker.certain:
            certainly_dead(job, worker, Cause.EXITED, "its exit was seen")
        ending.seen_out(job, worker)
        return
    worker.certain = True
    how = f"signal {message.signal}" if message.signal else f"exit code {message.code}"
    # a killed process did not say why; a crashed one says it first, and then where all its threads stood
    words = "" if message.signal in KILLED else ending.last_line(message.last_words.split(CRASH_DUMP)[0])
    reason = how + (f": {words[:200]}" if words else "")
    if job.finish is not None:
        worker.track.move(WorkerState.LEFT, how)
        ending.seen_out(job, worker)
        return
    by_itself = not message.signal and not message.code
    if (worker.draining or (by_itself and worker.generation)) and worker.key not in job.chain_keys():
        left(job, worker, "drained")
        return
    if not message.signal and ending.script_failed(job, worker, message.code, message.last_words):
        worker.track.move(WorkerState.LEFT, how)
        ending.seen_out(job, worker)  # the end does not wait for whoever brought it about
        return
    lose(job, worker, Cause.EXITED, reason)


def vanished(job: JobState) -> None:
    """A returning agent does not run these any more: their exits were seen, by nobody who listened."""
    keys, job.vanished = job.vanished, []
    for worker in job.roster.get(keys):
        worker.exited = True
        if job.finish is not None:
            left(job, worker, "exited while the master was away")
        elif not worker.gone:
            lose(job, worker, Cause.EXITED, "exited while the master was away")


def refuse_worker(job: JobState, worker: Worker, reason: str) -> None:
    """It brought something else: it goes, its slot stays empty, the others go on."""
    job.log(
        "verdict",
        worker=worker.id,
        incarnation=worker.incarnation,
        cause="refused",
        reason=reason,
        detected_s=0.0,
    )
    worker.excused = True
    agent = job.roster.agents.get(worker.agent)
    if agent is not None:
        crew.give_up_slot(job, worker, f"{worker.id} was refused")
    else:
        crew.set_target(job, max(0, job.target - 1), f"{worker.id} was refused")
    left(job, worker, reason)


def left(job: JobState, worker: Worker, reason: str) -> None:
    """A worker is gone by consent."""
    if worker.gone:
        return
    worker.track.move(WorkerState.LEFT, reason)
    worker.certain = True
    job.record(rec.WorkerGone(worker.id, worker.incarnation, "left", reason))
    job.log("left", worker=worker.id, reason=reason)
    touch_generations(job, worker, f"{worker.id} left: {reason}")
