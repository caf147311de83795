"""The master's side of membership: one pure machine that decides who is in, dead, next, and what is said
to whom.

``step(event, now_s) -> actions``; the shell performs them in order, a ``Record`` durably before any
later ``Send``. Terms and identities are checked once, in ``_gate``; each kind of message has one
handler; after every event ``_settle`` asks what has become due (verdict of a round, first generation,
planned change, end).  No sockets, clocks, files or randomness; the modules beside this one hold the
rules, this one only routes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from godmw.config import JobSettings
from godmw.membership import actions as act
from godmw.membership import admin, brokenlinks, change, crew, ending, hearing, offer, rounds, verdicts
from godmw.membership import events as ev
from godmw.membership import records as rec
from godmw.membership.jobstate import JobState
from godmw.membership.roster import Agent, Key, Worker
from godmw.membership.states import WorkerState
from godmw.membership.view import view
from godmw.protocol import messages as msg

TICK_S = 0.05
REFUSED = 77


class Coordinator:
    """Who is in.  ``restored``: the journal of earlier terms, in order; ``settings.term`` is this one's
    number.
    """

    def __init__(
        self,
        settings: JobSettings,
        restored: Sequence[rec.JournalRecord] = (),
        now_s: float = 0.0,
        next_operation: int = 0,
        step: int = 0,
    ) -> None:
        self.job = JobState(settings, now_s)
        self.job.next_operation = self.job.durable = next_operation
        self.job.step = step
        if restored:
            hearing.restore(self.job, restored)
        self.job.term = settings.term

    def start(self, now_s: float) -> list[Any]:
        """What a master does before it hears anybody: journal its term and the bounds of the job."""
        job, settings = self.job, self.job.settings
        job.now_s = now_s
        job.record(rec.TermBegan(settings.term, settings.address, settings.job, settings.token))
        crew.journal_job(job)
        job.log("term", number=settings.term, address=settings.address)
        return self._flush()

    @property
    def term(self) -> int:
        return self.job.term

    @property
    def generation(self) -> int:
        return self.job.current

    def next_deadline(self) -> float:
        """When ``step(Tick)`` is wanted at the latest."""
        return self.job.now_s + TICK_S

    def view(self) -> dict[str, Any]:
        """The object of ``status --json``."""
        return view(self.job)

    def step(self, event: Any, now_s: float) -> list[Any]:
        """Digest one event; returns the actions, to be performed in order."""
        job = self.job
        job.now_s = now_s
        match event:
            case ev.Tick():
                verdicts.judge(job)
                brokenlinks.judge(job)
            case ev.Received(peer=peer, header=header, message=message):
                self._received(peer, header, message)
            case ev.PeerGone(peer=peer):
                verdicts.peer_gone(job, peer)
            case ev.LedgerDurable(below=below):
                self._durable(below)
            case ev.StopAsked(reason=reason):
                ending.end(job, "stopped", 75, reason)
            case _:
                raise TypeError(f"unknown event {event!r}")
        self._settle()
        return self._flush()

    def _flush(self) -> list[Any]:
        out, self.job.out = self.job.out, []
        return out

    def _settle(self) -> None:
        """What the event has made due."""
        job = self.job
        hearing.settle(job)
        if job.hearing is not None:
            return
        if job.round is not None:
            verdicts.condemn(job)
            rounds.decide(job)
            self._lost_for_ever()
        self._first_generation()
        rounds.hold_below_minimum(job)
        change.plan_change(job)
        ending.try_finish(job)
        crew.reconcile(job)
        ending.try_over(job)
        if job.round is None:
            self._forget()

    def _forget(self) -> None:
        """What only history needs is in the journal."""
        job = self.job
        job.roster.forget(job.chain_keys())
        if job.abandoned:
            known = job.roster.workers
            job.abandoned = {n: keys for n, keys in job.abandoned.items() if any(k in known for k in keys)}

    def _lost_for_ever(self) -> None:
        """Every worker that held state is certainly dead: there is nothing to wait for."""
        job = self.job
        current = job.round
        if current is None or current.missing():
            return
        best = rounds.within_reach(current.answers.values())
        silent = [key for key in job.chain_keys() if key not in current.answers]
        if (best >= 0 and best >= job.next_operation) or not rounds.all_certain(job, silent):
            return
        if best < 0:
            what = "every worker that held the job's state has died, and there is no checkpoint"
            ending.fail(job, what + ending.blame(job))
        else:
            ending.fail(
                job,
                f"every worker that held the job's state after operation {job.next_operation - 1} has died, "
                f"the others are at {best}, and there is no checkpoint",
            )

    def _first_generation(self) -> None:
        job = self.job
        if job.current or job.round or job.finish or job.paused:
            return
        ready = job.standby()
        if not ready or len(ready) < job.minimum:
            job.reason = f"{len(ready)} workers are prepared, the first generation needs {job.minimum}"
            return
        if job.first_prepared_s is None:
            job.first_prepared_s = job.now_s
        expected = [w for w in job.roster.alive() if w.agent or w.joined]
        announced = sum(len(agent.slots) for agent in job.roster.agents.values() if not agent.lost)
        complete = len(ready) >= len(expected) and len(ready) >= announced and len(ready) >= job.target
        if complete or job.now_s - job.first_prepared_s >= job.settings.start_timeout_s:
            job.first_prepared_s = None
            change.first_generation(job)

    # ------------------------------------------------------------------ the gate

    def _received(self, peer: str, header: msg.Header, message: Any) -> None:
        job = self.job
        if isinstance(message, admin.REQUESTS):
            admin.answer(job, peer, header.sequence, message)
        elif isinstance(message, msg.AgentHello):
            crew.hello(job, peer, header.sender, message)
            verdicts.vanished(job)
        elif isinstance(message, msg.Join):
            self._join(peer, header, message)
        elif (agent := job.roster.agent_of_peer(peer)) is not None:
            agent.gap.heard(job.now_s)
            if agent.lost:
                crew.returned(job, agent)
            if header.term == job.term:
                self._from_agent(agent, message)
        elif (worker := job.roster.of_peer(peer)) is not None and header.term == job.term:
            worker.gap.heard(job.now_s)
            rounds.heard(job, worker)
            handler = _WORKER_HANDLERS.get(type(message))
            if handler is not None and (
                not worker.gone or isinstance(message, (msg.Finished, msg.Committed))
            ):
                handler(self, worker, header, message)
            elif worker.state is WorkerState.DEAD and worker.told_out != peer:
                worker.told_out = peer  # once a connection; its records still count
                job.send(peer, verdicts.taken_out("it was silent, or evicted"))

    def _from_agent(self, agent: Agent, message: Any) -> None:
        if isinstance(message, msg.AgentBeat):
            crew.beat(self.job, agent, message)
        elif isinstance(message, msg.ChildExited):
            verdicts.child_exited(self.job, message)

    # ------------------------------------------------------------------ workers

    def _join(self, peer: str, header: msg.Header, message: msg.Join) -> None:
        job = self.job
        worker = self._whoever(header, message)
        if worker is None or worker.gone:
            self._refuse(
                peer,
                "this worker was taken out of the job while it was silent",
                "start it again to join as a new worker",
            )
            return
        lag = worker.draining and not job.round  # drained, and the word that it may leave was lost
        if message.generation > 0 and worker.key not in job.base_keys() and not lag:
            self._refuse(peer, "this worker's generation is over", "start it again to join as a new worker")
            worker.excused = True
            verdicts.left(job, worker, "its generation is over")
            return
        fresh = not worker.joined
        worker.peer, worker.address, worker.joined = peer, message.address, True
        worker.host, worker.pid, worker.agent = message.host, message.pid, message.agent or worker.agent
        worker.generation, worker.position, worker.abort = (
            message.generation,
            message.position,
            message.abort,
        )
        worker.ended = message.ended
        worker.gap.heard(job.now_s)
        job.roster.bind(peer, worker.key)
        if fresh:
            job.record(
                rec.WorkerSeen(
                    worker.id, worker.incarnation, worker.agent, worker.slot, worker.host, worker.pid
                )
            )
            job.log(
                "join", worker=worker.id, incarnation=worker.incarnation, host=worker.host, pid=worker.pid
            )
        settings = job.settings
        job.tell(
            worker,
            msg.Welcome(
                worker=worker.id,
                incarnation=worker.incarnation,
                run_dir=settings.run_dir,
                seed=job.offer.seed if job.offer else -1,
                lease_s=job.lease_s(worker),
                beat_s=settings.beat_s,
                orphan_s=settings.orphan_s,
            ),
        )
        job.tell(worker, msg.Recorded(below=job.durable))
        if job.finish is not None:
            job.tell(
                worker,
                msg.Finish(
                    outcome=job.finish.outcome, code=job.finish.code, reason=job.finish.reason[:1024]
                ),
            )
        elif job.hearing is not None:
            hearing.register(job, worker, message)
        else:
            self._remind(worker, message)

    def _remind(self, worker: Worker, message: msg.Join) -> None:
        """A worker registered again in mid-term: what it may have missed is said again."""
        job = self.job
        if job.round is not None and worker.key in job.round.targets and worker.key not in job.round.answers:
            job.round.doubtful.pop(worker.key, None)  # it lives
            job.tell(worker, msg.Abort(number=job.round.number, reason=job.round.reason[:1024]))
        elif job.round is None and worker.draining and worker.key not in job.chain_keys():
            job.tell(worker, msg.GenerationFormed(number=job.last_formed))
        elif job.round is None:
            change.remind(job, worker, message.held)

    def _whoever(self, header: msg.Header, message: msg.Join) -> Worker | None:
        job = self.job
        if header.sender:
            worker = job.roster.workers.get((header.sender, header.incarnation))
            known = worker is not None or job.roster.retired(header.sender, header.incarnation)
            if not known and message.agent:
                worker = job.roster.add(Worker(header.sender, header.incarnation, agent=message.agent))
            return worker
        again = job.roster.by_hand(message.host, message.pid, message.address)
        if again is not None:  # it says Join until it has been named
            return again
        worker = job.roster.add(Worker(job.roster.new_worker_id(), 1))
        crew.set_target(job, max(job.target, len(job.roster.alive())), f"{worker.id} came by itself")
        return worker

    def _refuse(self, peer: str, reason: str, hint: str, code: int = REFUSED) -> None:
        self.job.send(peer, msg.Refused(code=code, reason=reason[:1024], hint=hint[:1024]))
        self.job.log("refused", reason=reason)

    def _prepared(self, worker: Worker, header: msg.Header, message: msg.Prepared) -> None:
        """The checks at the door: everybody must bring what the first worker brought."""
        job = self.job
        if job.offer is None:
            job.offer = rec.OfferSet(
                message.settings.hex(),
                message.model.hex(),
                message.data.hex(),
                message.shards,
                max(0, message.seed),
                message.detail,
            )
            job.record(job.offer)
            if not job.maximum and message.shards:
                job.maximum = max(message.shards, job.target)
                crew.journal_job(job)
        difference = offer.difference(job.offer, message)
        if difference:
            self._refuse(
                worker.peer, difference, "every worker of one job must run the same script on the same data"
            )
            worker.failure = msg.Failed(kind="mismatch", code=REFUSED, traceback=difference[:4096], step=-1)
            verdicts.refuse_worker(job, worker, difference)
            return
        worker.prepared = message
        if worker.state is WorkerState.JOINING and worker.generation == 0:
            worker.track.move(WorkerState.STANDBY, "its checks passed")
            job.log("prepared", worker=worker.id, incarnation=worker.incarnation)

    def _heartbeat(self, worker: Worker, header: msg.Header, message: msg.Heartbeat) -> None:
        worker.beat = message
        if worker.position < message.position:
            worker.position = message.position

    def _link_broken(self, worker: Worker, header: msg.Header, message: msg.LinkBroken) -> None:
        brokenlinks.heard(self.job, worker, message, header.generation)

    def _stopped(self, worker: Worker, header: msg.Header, message: msg.Stopped) -> None:
        rounds.answered(self.job, worker, message)

    def _plan_held(self, worker: Worker, header: msg.Header, message: msg.PlanHeld) -> None:
        change.plan_held(self.job, worker, message.number)

    def _formed(self, worker: Worker, header: msg.Header, message: msg.Formed) -> None:
        if change.formed(self.job, worker, message.number):
            brokenlinks.formed(self.job)

    def _committed(self, worker: Worker, header: msg.Header, message: msg.Committed) -> None:
        """Take records in order, once each; any member's is as good as another's."""
        job = self.job
        worker.position = max(worker.position, message.operation + 1)
        if message.operation != job.next_operation or message.generation in job.abandoned:
            return
        job.next_operation += 1
        job.step = max(job.step, message.step + 1)
        job.out.append(act.WriteCommitted(message, job.redone.pop(message.operation, ())))
        job.redone = {number: shards for number, shards in job.redone.items() if number > message.operation}

    def _durable(self, below: int) -> None:
        job = self.job
        if below > job.durable:
            job.durable = below
            for worker in job.roster.get(job.current_keys()):
                job.tell(worker, msg.Recorded(below=below))

    def _loop_opened(self, worker: Worker, header: msg.Header, message: msg.LoopOpened) -> None:
        self.job.out.append(act.WriteLoop(message))

    def _finished(self, worker: Worker, header: msg.Header, message: msg.Finished) -> None:
        ending.finished(self.job, worker, message)

    def _leave(self, worker: Worker, header: msg.Header, message: msg.Leave) -> None:
        verdicts.left(self.job, worker, message.reason)

    def _failed(self, worker: Worker, header: msg.Header, message: msg.Failed) -> None:
        ending.failed(self.job, worker, message)


_Handler = Callable[[Coordinator, Worker, msg.Header, Any], None]
_WORKER_HANDLERS: dict[type, _Handler] = {
    msg.Prepared: Coordinator._prepared,
    msg.Heartbeat: Coordinator._heartbeat,
    msg.LinkBroken: Coordinator._link_broken,
    msg.Stopped: Coordinator._stopped,
    msg.PlanHeld: Coordinator._plan_held,
    msg.Formed: Coordinator._formed,
    msg.Committed: Coordinator._committed,
    msg.LoopOpened: Coordinator._loop_opened,
    msg.Finished: Coordinator._finished,
    msg.Leave: Coordinator._leave,
    msg.Failed: Coordinator._failed,
}
__all__ = ["Coordinator", "Key"]
