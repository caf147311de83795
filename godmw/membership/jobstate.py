"""Everything the coordinator remembers, and the few ways in which it speaks.

``JobState`` is data: numbers, generations, the roster, the offer, the pending change, the Abort
round.  The modules beside it (``change``, ``verdicts``, ``crew``, ``hearing``, ``ending``, ``admin``)
are functions over it; each appends actions to ``out``.  Order matters there: a record stands before
what it permits to be said.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from godmw.config import MAX_WORKERS, JobSettings
from godmw.membership import actions as act
from godmw.membership import records as rec
from godmw.membership.roster import Key, Roster, Worker
from godmw.membership.states import JOB_EDGES, JobPhase, Track
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked

if TYPE_CHECKING:
    from godmw.membership.waits import Wait


@dataclasses.dataclass(slots=True)
class Round:
    """An Abort round: who was asked, who answered, since when.

    ``doubtful``: silent for a lease, with the reason.  The round does not wait for them, and they are dead
    once the others may decide; until then whoever speaks again answers (silence of all is not death).
    """

    number: int
    reason: str
    targets: set[Key]
    answers: dict[Key, msg.Stopped] = dataclasses.field(default_factory=dict)
    doubtful: dict[Key, str] = dataclasses.field(default_factory=dict)
    verdict: str = ""  # why it cannot be decided yet, for people

    def missing(self) -> set[Key]:
        return self.targets - set(self.answers) - set(self.doubtful)


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """A link that a worker has reported broken, or not to be made: at which stage, when last, how often."""

    stage: str
    last_s: float
    times: int


@dataclasses.dataclass(slots=True)
class Pending:
    """The one announced planned change that has not formed."""

    plan: rec.PlanMade
    joiners: set[Key]
    holds: set[Key] = dataclasses.field(default_factory=set)
    told: bool = False  # the members have been sent it


@dataclasses.dataclass(slots=True)
class Hearing:
    """A restarted master listens for one lease before it judges (DESIGN 4, "Master restart")."""

    until_s: float
    registered: dict[Key, msg.Join] = dataclasses.field(default_factory=dict)


class JobState:
    """The coordinator's memory; see the module's text for who may change what."""

    def __init__(self, settings: JobSettings, now_s: float) -> None:
        self.settings = settings
        self.now_s = now_s
        self.out: list[Any] = []
        self.term = settings.term
        self.phase: Track[JobPhase] = Track("job", JobPhase.WAITING, JOB_EDGES)
        self.reason = ""
        self.roster = Roster()
        # numbers and generations
        self.top = 0
        self.plans: dict[int, rec.PlanMade] = {}
        self.past: dict[int, rec.PlanMade] = {}  # every plan that an answering worker may still be in
        self.current = 0
        self.current_formed = False
        self.formed_by: dict[int, set[Key]] = {}
        self.pending: Pending | None = None
        self.round: Round | None = None
        self.hearing: Hearing | None = None
        self.resend: rec.PlanMade | None = None  # restored: a planned change that had not formed
        self.last_abort = 0  # restored: the newest Abort number
        self.last_formed = 0  # the newest generation that all its members have formed
        self.through = -1  # the operation that too few may finish, so that joiners find a place to stand
        self.abandoned: dict[int, set[Key]] = {}  # all their members died; what nobody else knew is redone
        # the job
        self.target = settings.target
        self.minimum = settings.minimum
        self.maximum = settings.maximum
        self.paused = False
        self.offer: rec.OfferSet | None = None
        self.first_prepared_s: float | None = None
        self.next_operation = 0  # records taken so far
        self.durable = 0
        self.step = 0
        self.redone: dict[int, tuple[int, ...]] = {}
        self.finish: rec.FinishMade | None = None
        self.over = False
        self.summary = ""
        self.deaths: dict[str, list[float]] = {}  # per slot (worker id): counted deaths in the window
        self.broken: dict[tuple[str, str], Broken] = {}  # (who says so, whom it cannot reach)
        self.reformed: dict[tuple[str, str], float] = {}  # pairs whose link broke, and when it was made anew
        self.link_deadline_s: float | None = None
        self.awaited: dict[str, Wait] = {}  # for whom others have waited long, as last looked
        self.vanished: list[Key] = []  # children that a returning agent does not run any more

    # ------------------------------------------------------------------ speaking

    def send(self, peer: str, message: Checked) -> None:
        if peer:
            self.out.append(act.Send(peer, message))

    def tell(self, worker: Worker, message: Checked) -> None:
        if not worker.gone:
            self.send(worker.peer, message)

    def record(self, item: rec.JournalRecord) -> None:
        self.out.append(act.Record(item))

    def log(self, kind: str, **fields: Any) -> None:
        self.out.append(
            act.Log(kind, {"term": self.term, "generation": self.current, "step": self.step, **fields})
        )

    def move(self, phase: JobPhase, reason: str) -> None:
        self.reason = reason
        if self.phase.move(phase, reason):
            self.log("phase", phase=phase.value, reason=reason)

    def notice(self, text: str) -> None:
        self.log("notice", reason=text)
        for worker in self.roster.alive():
            self.tell(worker, msg.Notice(text=text[:1024]))

    # ------------------------------------------------------------------ questions

    def limit(self) -> int:
        """The most members a generation may have."""
        return self.maximum or MAX_WORKERS

    def number(self) -> int:
        """The next number of the one sequence that orders plans and Aborts."""
        self.top += 1
        return self.top

    def chain(self) -> list[rec.PlanMade]:
        """The generations somebody may be in: the one in force and a planned one announced after it."""
        chain = [self.plans[self.current]] if self.current else []
        return [*chain, self.pending.plan] if self.pending else chain

    def chain_keys(self) -> set[Key]:
        return {(worker, incarnation) for plan in self.chain() for worker, incarnation, _ in plan.members}

    def member_keys(self, plan: rec.PlanMade) -> list[Key]:
        return [(worker, incarnation) for worker, incarnation, _ in plan.members]

    def current_keys(self) -> list[Key]:
        return self.member_keys(self.plans[self.current]) if self.current else []

    def base_keys(self) -> set[Key]:
        """Members of every generation that may still count: after a restart those of the journal's base."""
        return {key for plan in self.plans.values() for key in self.member_keys(plan)}

    def in_doubt(self, worker: Worker) -> bool:
        """Is it a member whose silence is not yet taken for its death?"""
        return self.round is not None and worker.key in self.round.doubtful

    def standby(self) -> list[Worker]:
        """Prepared workers that are in no live generation, oldest first."""
        taken = self.chain_keys()
        return [
            worker
            for worker in self.roster.alive()
            if worker.joined
            and worker.prepared is not None
            and worker.key not in taken
            and worker.generation == 0
        ]

    def lease_s(self, worker: Worker) -> float:
        local = worker.host == self.settings.local_host
        return self.settings.lease_s if local else self.settings.remote_lease_s

    def plan_message(self, plan: rec.PlanMade, donors: tuple[msg.Member, ...]) -> msg.Plan:
        return msg.Plan(
            number=plan.number, planned=plan.planned,
            members=tuple(msg.Member(worker=w, incarnation=i, address=a) for w, i, a in plan.members),
            donors=donors, start=plan.start, shards=plan.shards,
            added=tuple(msg.Share(worker=w, shards=tuple(s)) for w, s in plan.added), reason=plan.reason,
        )  # fmt: skip
