"""The worker's side of membership: its place in the job, and how messages and facts change it.

Pure: given events and time, returns actions; no socket, thread, clock or tensor.  One lock of the shell
serialises ``step`` and the questions of the data plane; that lock makes the answer to an Abort and the
sending of *ready* exclude each other (DESIGN 4).  Life of an operation: ``step(OperationOpened)`` →
``todo()`` → ``begin(shards)`` → ``whole(op, generation)`` → the ready word travels → ``commit(op,
generation, lowest)`` → ``boundary()``.  Any of them may answer "not now": then the shell waits until
``generation`` or ``position`` changes, and goes on from ``todo()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.inhand import ParticipantFault
from godmw.membership.place import Place
from godmw.membership.selfportrait import answer, heartbeat, join
from godmw.membership.states import GONE, WorkerState
from godmw.protocol import messages as msg

Action = Any


class Participant(Place):
    """One worker process in the job: its place, and how events change it."""

    def boundary(self, enterable: bool) -> list[Action]:
        """The main thread stands between two operations; at one where a joiner's script can stand,
        switch.

        All members run the same script and saw the same ``lowest`` in the last ready, so all switch
        here or none.
        """
        if self.hand.position >= 0:
            self.hand.standing, self.hand.enterable = True, enterable
        if self.stopped:
            return self._restate()
        if not enterable or self.agreed <= self.generation:
            return []
        plan = self.held[self.agreed]
        if self._rank_in(plan) >= 0:
            return self._enter(plan)
        self.drained_by = self.abort = plan.number
        self.held = {number: item for number, item in self.held.items() if number > plan.number}
        self.track.move(WorkerState.DRAINING, f"plan {plan.number} drains it")
        keep: list[Action] = [act.KeepSnapshot(plan.number)] if plan.donors else []
        return [act.Abandon(self.generation), *keep]

    def record(self, record: msg.Committed | msg.LoopOpened) -> list[Action]:
        """Keep a record until the master acknowledges it; the leader sends it."""
        kept = self.records.keep(record)
        return [act.Send("", record)] if kept and self.rank == 0 and self.registered else []

    def unrecorded(self) -> tuple[msg.Committed | msg.LoopOpened, ...]:
        """What goes with a state to a joiner: the records that the master has not acknowledged here."""
        return tuple(self.records.all())

    def prepare(self, offer: msg.Prepared) -> list[Action]:
        """The script stands at its first operation; the checks of the master are next."""
        self.prepared = offer
        if self.state is WorkerState.JOINING:
            self.track.move(WorkerState.STANDBY, "its checks passed")
        return [act.Send("", offer)] if self.registered else []

    def next_deadline(self) -> float:
        """When ``step(Tick)`` wants to be called at the latest."""
        return self._next_beat_s

    # ------------------------------------------------------------------ events

    def step(self, event: Any, now_s: float) -> list[Action]:
        """Digest one event; the actions are to be performed in order."""
        match event:
            case ev.Tick():
                return self._tick(now_s)
            case ev.Received(header=header, message=message):
                return self._received(header, message, now_s)
            case ev.MasterGone():
                self.connected = self.registered = False
                if self._master_lost_s is None:
                    self._master_lost_s = now_s
                return []
            case ev.MasterBack():
                self.connected = True
                return [act.Send("", self._join())]
            case ev.OperationOpened(operation=operation, shards=shards):
                return self._open(operation, shards)
            case ev.LinksFormed(generation=generation):
                return self._links_formed(generation)
            case ev.LinksBroken(generation=generation, peer=peer, stage=stage):
                if self.generation == 0 and generation in self.held and self.registered:
                    return [act.Send("", msg.LinkBroken(peer=peer[:64], stage=stage[:64]))]  # no donor
                if generation != self.generation or self.stopped:
                    return []
                self.links_ready, self.broken = False, msg.LinkBroken(peer=peer[:64], stage=stage[:64])
                return [act.Send("", self.broken)] if self.registered else []
            case ev.StateApplied():
                return self._state_applied(event)
            case ev.ScriptEnded(summary=summary, digest=digest):
                self.ended, self.digest = summary, digest
                again = self._restate() if self.stopped else []
                return [self._finished(False), *again] if self.registered else []
        raise ParticipantFault(f"unknown event {event!r}")

    def _tick(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self.beat_s
            if self.registered:
                actions.append(
                    act.Send("", heartbeat(self.activity, self.hand.position, self.records.below, now_s))
                )
            elif self.connected:
                actions.append(act.Send("", self._join()))
        if self.orphaned(now_s) and self.finish is None:
            if self.drained_by:
                actions.append(act.Exit(0, "drained; no master was there to see it", ""))
            elif self.ended is not None and not self.hand.opened:
                actions.append(
                    act.Exit(0, "the script has ended and all is committed; no master was there", "")
                )
        return actions

    def _join(self) -> msg.Join:
        held = tuple(sorted(self.held))
        return join(
            self.identity,
            self.generation,
            self.hand.position,
            self.abort,
            held,
            self.prepared is not None,
            self.ended is not None,
        )

    def _finished(self, confirmed: bool) -> Action:
        return act.Send(
            "",
            msg.Finished(
                position=self.hand.position,
                confirmed=confirmed,
                digest=self.digest,
                summary=self.ended or "",
            ),
        )

    # ------------------------------------------------------------------ messages

    def _received(self, header: msg.Header, message: Any, now_s: float) -> list[Action]:
        if header.term < self.term:
            return []  # the one gate: a worker that has registered with a term refuses everything older
        handler = _HANDLERS.get(type(message))
        return [] if handler is None else handler(self, header, message, now_s)

    def _welcome(self, header: msg.Header, message: msg.Welcome, now_s: float) -> list[Action]:
        fresh = header.term > self.term or not self.registered
        self.term, self.registered, self._master_lost_s = header.term, True, None
        self.worker, self.incarnation = message.worker, message.incarnation
        self.run_dir, self.beat_s, self.orphan_s = message.run_dir, message.beat_s, message.orphan_s
        if message.seed >= 0:
            self.seed = message.seed
        if not fresh:
            return []
        actions: list[Action] = []
        if self.prepared is not None:
            actions.append(act.Send("", self.prepared))
        actions += [act.Send("", msg.PlanHeld(number=number)) for number in sorted(self.held)]
        if self.links_ready and not self.stopped:
            actions.append(act.Send("", msg.Formed(number=self.generation)))
        if self.broken is not None and not self.stopped:
            actions.append(act.Send("", self.broken))
        actions += self._resend_records()
        if self.ended is not None:
            actions.append(self._finished(self.finish is not None))
        return actions

    def _refused(self, header: msg.Header, message: msg.Refused, now_s: float) -> list[Action]:
        return self._leave(message.code, message.reason, message.hint)

    def _on_abort(self, header: msg.Header, message: msg.Abort, now_s: float) -> list[Action]:
        if self._answer is not None and message.number == self._answer.abort:
            return [act.Send("", self._answer)]  # said again: the answer was lost with a connection
        if message.number <= self.abort or message.number <= self.generation:
            return []
        self.abort, self.agreed, self.broken = message.number, 0, None
        self.held = {number: plan for number, plan in self.held.items() if number > message.number}
        if self.state is WorkerState.SYNCING:
            self.track.move(WorkerState.STANDBY, f"Abort {message.number} overtook its plan")
        self._answer = self._portrait()
        actions: list[Action] = [act.Send("", self._answer), act.DropSnapshot(message.number)]
        if self.generation > 0:
            actions.append(act.Abandon(self.generation))
            self.links_ready = False
        return actions

    def _on_plan(self, header: msg.Header, plan: msg.Plan, now_s: float) -> list[Action]:
        if plan.number < self.abort or plan.number <= self.generation or plan.number in self.held:
            return [act.Send("", msg.PlanHeld(number=plan.number))] if plan.number in self.held else []
        if self.finish is not None:
            return []
        if plan.planned or self.generation == 0:
            return self._hold(plan)
        if self._rank_in(plan) < 0 and self.drained_by:
            return self._leave(0, "drained", "")
        if self._rank_in(plan) < 0:
            return self._leave(
                77,
                f"this worker was taken out of the job: {plan.reason}",
                "start it again to join as a new worker",
            )
        return self._install(plan)

    def _hold(self, plan: msg.Plan) -> list[Action]:
        self.held[plan.number] = plan
        actions: list[Action] = [act.Send("", msg.PlanHeld(number=plan.number))]
        if self.generation == 0 and self._rank_in(plan) >= 0:
            donates = not plan.donors or any(donor.worker == self.worker for donor in plan.donors)
            if (
                plan.start == 0 and not plan.planned and donates
            ):  # the job's first generation begins with its state
                self.hand.position = 0
                return actions + self._enter(plan)
            self.track.move(WorkerState.SYNCING, f"plan {plan.number} takes it in")
            donors = tuple((donor.worker, donor.address) for donor in plan.donors)
            actions.append(act.FetchState(plan.number, donors))
        return actions

    def _install(self, plan: msg.Plan) -> list[Action]:
        if self.hand.position < plan.start:
            if self.hand.position != plan.start - 1 or not self.hand.whole:
                raise ParticipantFault(
                    f"plan {plan.number} starts at operation {plan.start}; this worker stands at "
                    f"{self.hand.position} and {'is' if self.hand.whole else 'is not'} whole"
                )
            self.hand.advance()
        elif self.hand.position > plan.start:
            raise ParticipantFault(f"plan {plan.number} goes back to {plan.start} from {self.hand.position}")
        return self._enter(plan)

    def _state_applied(self, event: ev.StateApplied) -> list[Action]:
        plan = self.held.get(event.generation)
        if plan is None or self.abort > event.generation or self.generation > 0:
            return []  # an Abort came first: on STANDBY again, without state
        if not plan.planned and event.position != plan.start:
            raise ParticipantFault(f"state of {event.position} for a plan that starts at {plan.start}")
        self.hand.position = event.position
        for record in event.records:
            self.records.keep(record)
        return self._enter(plan)

    def _enter(self, plan: msg.Plan) -> list[Action]:
        old = self.generation
        self.generation = plan.number
        self.members = plan.members
        self.rank = self._rank_in(plan)
        self.held = {number: item for number, item in self.held.items() if number > plan.number}
        self.links_ready = False
        self.drained_by = self.agreed = 0
        self.broken = None
        given: tuple[int, ...] | None = None
        if not plan.planned and plan.start == self.hand.position and plan.shards > 0:
            given = next((share.shards for share in plan.added if share.worker == self.worker), ())
        self.hand.give(given)
        self.hand.assign(self.world_size, self.rank)
        if self.state is not WorkerState.ACTIVE:
            self.track.move(WorkerState.ACTIVE, f"entered generation {plan.number}")
        actions: list[Action] = [act.Abandon(old), act.DropSnapshot(old)] if old else []
        members = tuple((member.worker, member.address) for member in plan.members)
        actions.append(act.FormLinks(plan.number, self.rank, members))
        if any(donor.worker == self.worker for donor in plan.donors):
            actions.append(act.KeepSnapshot(plan.number))
        return actions + (self._resend_records() if self.registered else [])

    def _links_formed(self, generation: int) -> list[Action]:
        if generation != self.generation or self.stopped:
            return []
        self.links_ready = True
        return [act.Send("", msg.Formed(number=generation))] if self.registered else []

    def _generation_formed(
        self, header: msg.Header, message: msg.GenerationFormed, now_s: float
    ) -> list[Action]:
        self.formed = max(self.formed, message.number)
        actions: list[Action] = [act.DropSnapshot(message.number)]
        if self.drained_by and message.number >= self.drained_by:
            actions += self._leave(0, "drained", "")
        return actions

    def _on_recorded(self, header: msg.Header, message: msg.Recorded, now_s: float) -> list[Action]:
        self.records.acknowledge(message.below)
        return []

    def _notice(self, header: msg.Header, message: msg.Notice, now_s: float) -> list[Action]:
        return [act.Say(message.text)]

    def _on_finish(self, header: msg.Header, message: msg.Finish, now_s: float) -> list[Action]:
        self.finish = message
        reason = message.reason
        if message.outcome == "finished" and self.generation == 0:
            reason = "the job ended before this worker was needed"
        return [self._finished(True), act.Exit(message.code, reason, "")]

    # ------------------------------------------------------------------ small parts

    def _leave(self, code: int, reason: str, hint: str) -> list[Action]:
        if self.state not in GONE:
            self.track.move(WorkerState.LEFT, reason)
        goodbye: list[Action] = [act.Send("", msg.Leave(reason=reason[:1024]))] if self.registered else []
        return [*goodbye, act.Exit(code, reason, hint)]

    def _portrait(self) -> msg.Stopped:
        held = tuple(sorted(self.held))
        return answer(self.abort, self.generation, self.hand, held, self.ended is not None)

    def _restate(self) -> list[Action]:
        """The main thread has come to where it stops: the master may have waited to hear that."""
        told = self._answer
        if told is None or told.abort != self.abort or (seen := self._portrait()) == told:
            return []
        self._answer = seen
        return [act.Send("", seen)] if self.registered else []

    def _open(self, operation: int, shards: int) -> list[Action]:
        self.hand.open(operation, shards)
        if not self.stopped:
            self.hand.assign(self.world_size, self.rank)
        return []

    def _rank_in(self, plan: msg.Plan) -> int:
        me = (self.worker, self.incarnation)
        ranks = [
            rank for rank, member in enumerate(plan.members) if (member.worker, member.incarnation) == me
        ]
        return ranks[0] if ranks else -1

    def _resend_records(self) -> list[Action]:
        return [act.Send("", item) for item in self.records.all()] if self.rank == 0 else []


_HANDLERS: dict[type, Callable[[Participant, msg.Header, Any, float], list[Action]]] = {
    msg.Welcome: Participant._welcome,
    msg.Refused: Participant._refused,
    msg.Abort: Participant._on_abort,
    msg.Plan: Participant._on_plan,
    msg.GenerationFormed: Participant._generation_formed,
    msg.Recorded: Participant._on_recorded,
    msg.Notice: Participant._notice,
    msg.Finish: Participant._on_finish,
}
