"""Which workers should run: agents and their slots, launches, replacements, and the restart budget
(DESIGN 5, "Size").

The target is what people asked for; ``reconcile`` moves the crew towards it.  A slot keeps its worker
id, a replacement gets the next incarnation.  Only agents start processes; a worker that came by hand
is counted, not owned.
"""

from __future__ import annotations

from godmw.membership import records as rec
from godmw.membership.jobstate import JobState
from godmw.membership.roster import Agent, Key, Worker
from godmw.membership.states import WorkerState
from godmw.protocol import messages as msg

SIGKILL = 9


def hello(job: JobState, peer: str, agent_id: str, message: msg.AgentHello) -> None:
    """An agent registers, new or again; what it runs already is kept, what should not run is ended."""
    agent = job.roster.agents.get(agent_id) if agent_id else None
    if agent is None:
        agent = Agent(agent_id or job.roster.new_agent_id())
        job.roster.agents[agent.id] = agent
        job.roster.next_agent = max(job.roster.next_agent, _serial(agent.id) + 1)
    was_lost = agent.lost
    agent.peer, agent.host, agent.pid, agent.lost = peer, message.host, message.pid, False
    agent.gap.heard(job.now_s)
    job.roster.bind(peer, agent.id)
    settings = job.settings
    job.send(peer, msg.AgentWelcome(
        run_dir=settings.run_dir, lease_s=settings.lease_s if message.host == settings.local_host
        else settings.remote_lease_s, beat_s=settings.beat_s, orphan_s=settings.orphan_s,
    ))  # fmt: skip
    if job.finish is not None:
        job.send(
            peer,
            msg.Finish(outcome=job.finish.outcome, code=job.finish.code, reason=job.finish.reason[:1024]),
        )
        return
    if not agent.slots:
        children = {child.worker for child in message.children}
        known = sorted(children | {w.id for w in job.roster.alive() if w.agent == agent.id}, key=_serial)
        met = any(worker.agent == agent.id for worker in job.roster.workers.values())
        agent.slots = known + [job.roster.new_worker_id() for _ in range(message.slots - len(known))]
        if not met:  # one that an earlier term knew is in the journalled target already
            _announce_slots(job, agent, message.slots)
    elif was_lost:
        returned(job, agent)
    for child in message.children:
        worker = job.roster.workers.get((child.worker, child.incarnation))
        if worker is None or worker.gone:
            job.send(peer, msg.Terminate(worker=child.worker, incarnation=child.incarnation, signal=SIGKILL))
    _settle_children(job, agent, {(child.worker, child.incarnation) for child in message.children})


def returned(job: JobState, agent: Agent) -> None:
    """An agent that was given up is heard again: its slots count, what became of its workers stands."""
    agent.lost = False
    job.log("agent_back", agent=agent.id)
    set_target(job, job.target + agent.took, f"agent {agent.id} is back")
    agent.took = 0


def _settle_children(job: JobState, agent: Agent, running: set[Key]) -> None:
    """What the agent does not run: never started, or gone while nobody listened."""
    for worker in list(job.roster.alive()):
        if worker.agent != agent.id or worker.key in running:
            continue
        if worker.pid == 0 and not worker.joined:
            _start(job, agent, worker)
        else:
            job.vanished.append(worker.key)


def _announce_slots(job: JobState, agent: Agent, slots: int) -> None:
    announced = sum(len(other.slots) for other in job.roster.agents.values() if not other.lost)
    if announced > job.target:
        set_target(job, announced, f"agent {agent.id} brings {slots} slots")


def _serial(identity: str) -> int:
    return int(identity[1:]) if identity[1:].isdigit() else 0


def set_target(job: JobState, target: int, reason: str) -> None:
    if target != job.target:
        job.target = target
        journal_job(job)
        job.log("target", target=target, reason=reason)


def journal_job(job: JobState) -> None:
    job.record(rec.JobSet(job.minimum, job.maximum, job.target, job.paused))


def beat(job: JobState, agent: Agent, message: msg.AgentBeat) -> None:
    """What an agent sees of its children; only the process state is evidence, the rest is bookkeeping."""
    agent.gap.heard(job.now_s)
    for child in message.children:
        worker = job.roster.workers.get((child.worker, child.incarnation))
        if worker is None:
            continue
        if worker.state is WorkerState.DEAD:  # it was judged while its agent could not be told
            terminate(job, worker, SIGKILL)
        worker.process = child.process
        worker.pid = worker.pid or child.pid
        if child.process != "T":
            worker.stopped_since_s = None
        elif worker.stopped_since_s is None:
            worker.stopped_since_s = job.now_s


def reconcile(job: JobState) -> None:
    """Start what is missing, let go what is too much."""
    if job.finish is not None or job.hearing is not None:
        return
    lost = {agent.id for agent in job.roster.agents.values() if agent.lost}  # the target is without these
    alive = [worker for worker in job.roster.alive() if not worker.draining and worker.agent not in lost]
    missing = job.target - len(alive)
    for agent in job.roster.agents.values():
        if agent.lost:
            continue
        for worker_id in agent.slots:
            current = job.roster.current(worker_id)
            if missing > 0 and (current is None or current.gone):
                missing -= 1
                _launch(job, agent, worker_id)
    agents = [agent for agent in job.roster.agents.values() if not agent.lost]
    while missing > 0 and agents and _may_grow(job):
        agent = min(agents, key=lambda item: len(item.slots))
        agent.slots.append(job.roster.new_worker_id())
        _launch(job, agent, agent.slots[-1])
        missing -= 1
    if missing < 0:
        _shed(job, alive, -missing)


def _may_grow(job: JobState) -> bool:
    return sum(len(agent.slots) for agent in job.roster.agents.values() if not agent.lost) < job.target


def _launch(job: JobState, agent: Agent, worker_id: str) -> None:
    worker = job.roster.add(Worker(worker_id, job.roster.latest.get(worker_id, 0) + 1, agent=agent.id))
    worker.slot, worker.host, worker.launched_s = agent.slots.index(worker_id), agent.host, job.now_s
    job.record(rec.WorkerSeen(worker.id, worker.incarnation, agent.id, worker.slot, agent.host, 0))
    _start(job, agent, worker)
    job.log("launch", worker=worker.id, incarnation=worker.incarnation, agent=agent.id)


def _start(job: JobState, agent: Agent, worker: Worker) -> None:
    job.send(agent.peer, msg.Launch(worker=worker.id, incarnation=worker.incarnation, slot=worker.slot,
                                    rank_hint=worker.slot, world_hint=max(1, job.target)))  # fmt: skip


def _shed(job: JobState, alive: list[Worker], surplus: int) -> None:
    """Let ``surplus`` workers go: first those in no generation, then the newest ranks."""
    ranks = {key: rank for rank, key in enumerate(job.current_keys())}
    order = sorted(
        alive, key=lambda worker: ranks.get(worker.key, len(ranks) + _serial(worker.id)), reverse=True
    )
    taken = job.chain_keys()
    for worker in order[:surplus]:
        if worker.key in taken:
            drain(job, worker, "the target was lowered")
        else:
            dismiss(job, worker, "the target was lowered")


def drain(job: JobState, worker: Worker, reason: str) -> None:
    """Mark a member to leave at the next boundary that a plan can be made for."""
    if not worker.draining:
        job.record(rec.DrainAsked(worker.id, worker.incarnation))
    worker.draining = worker.excused = True
    if worker.state in (WorkerState.ACTIVE, WorkerState.SUSPECT):
        worker.track.move(WorkerState.DRAINING, reason)
    job.log("drain", worker=worker.id, reason=reason)


def dismiss(job: JobState, worker: Worker, reason: str) -> None:
    """A worker in no generation goes at once."""
    worker.draining = worker.excused = True
    if worker.joined:
        job.tell(worker, msg.Finish(outcome="finished", code=0, reason=reason))
    terminate(job, worker, 15 if worker.joined else SIGKILL)
    worker.track.move(WorkerState.LEFT, reason)
    job.record(rec.WorkerGone(worker.id, worker.incarnation, "left", reason))
    job.log("left", worker=worker.id, reason=reason)


def terminate(job: JobState, worker: Worker, signal: int) -> None:
    """Through its agent; nobody else can reach a process."""
    agent = job.roster.agents.get(worker.agent)
    if agent is not None and not agent.lost:
        job.send(agent.peer, msg.Terminate(worker=worker.id, incarnation=worker.incarnation, signal=signal))


def counted_death(job: JobState, worker: Worker) -> bool:
    """Count a death against its slot.  True: the budget still covers it."""
    settings = job.settings
    recent_s = job.now_s - settings.restart_window_s
    job.deaths = {slot: times for slot, times in job.deaths.items() if times and times[-1] > recent_s}
    times = [t for t in job.deaths.get(worker.id, []) if t > recent_s]
    if not worker.excused:
        times.append(job.now_s)
    job.deaths[worker.id] = times
    return settings.restarts is None or len(times) <= settings.restarts


def give_up_slot(job: JobState, worker: Worker, reason: str) -> None:
    """A slot that keeps failing is left empty; the target follows."""
    agent = job.roster.agents.get(worker.agent)
    if agent is not None and worker.id in agent.slots:
        agent.slots.remove(worker.id)
    set_target(job, max(0, job.target - 1), reason)


def lose_agent(job: JobState, agent: Agent, reason: str) -> None:
    """An agent is gone: its slots are, too."""
    if not agent.lost:
        agent.lost, agent.lost_s = True, job.now_s
        job.log("agent_lost", agent=agent.id, reason=reason)
        wanted = [w for w in job.roster.alive() if w.agent == agent.id and not w.draining]
        agent.took = min(job.target, len(wanted))
        set_target(job, job.target - agent.took, f"agent {agent.id} is gone")


def forget_agents(job: JobState) -> None:
    """One that has been lost for long, with all its workers, is a new one when it comes back."""
    before_s = job.now_s - job.settings.restart_window_s
    old = [agent for agent in job.roster.agents.values() if agent.lost and agent.lost_s < before_s]
    for agent in old:
        if not agent.peer and not any(worker.agent == agent.id for worker in job.roster.alive()):
            del job.roster.agents[agent.id]
