"""The net is fine enough: readings of the law that are known to break it are planted, and a story catches
each.

The readings are those that an exhaustive model of the law was run with.  `test_transcripts` replays the
same stories without a plant.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from godmw.membership import actions as act
from godmw.membership import change, hearing, rounds
from godmw.membership import records as rec
from godmw.membership.events import MasterBack, Received
from godmw.membership.inhand import ParticipantFault
from godmw.membership.jobstate import JobState
from godmw.membership.participant import Participant
from godmw.membership.rounds import LawBroken
from godmw.membership.selfportrait import Identity
from godmw.membership.states import BrokenTransition
from godmw.protocol import messages as msg
from godmw.protocol.wire import header_of
from tests.fakes.conversation import replay

FOLDER = Path(__file__).parents[1] / "transcripts"
Patch = pytest.MonkeyPatch


def late_ready(patch: Patch) -> None:
    """After an answered Abort the communication thread may still become whole and send its ready word."""
    on_abort = Participant._on_abort

    def whole(self: Participant, operation: int, generation: int) -> int | None:
        if generation != self.generation or operation != self.hand.position or self.hand.todo():
            return None
        self.hand.whole = True
        return max([*self.held, self.generation])

    def keeps_links(self: Participant, *args: Any) -> list[Any]:
        return [action for action in on_abort(self, *args) if not isinstance(action, act.Abandon)]

    patch.setattr(Participant, "whole", whole)
    patch.setattr(Participant, "_on_abort", keeps_links)
    patch.setitem(_handlers(), msg.Abort, keeps_links)


def _handlers() -> dict[type, Callable[..., list[Any]]]:
    from godmw.membership import participant

    return participant._HANDLERS


def move(patch: Patch) -> None:
    """A plan may give an assigned but unbegun shard of a live member to another."""
    make = rounds._make_unplanned

    def forgets(job: JobState, current: Any, survivors: dict[Any, msg.Stopped], joiners: list[Any]) -> None:
        only_begun = {k: dataclasses.replace(answer, assigned=()) for k, answer in survivors.items()}
        make(job, current, only_begun, joiners)

    patch.setattr(rounds, "_make_unplanned", forgets)


def previous_formed(patch: Patch) -> None:
    """An answer of the generation in force is enough, whatever was announced after it."""

    def may_decide(job: JobState, current: Any, stateful: dict[Any, Any]) -> str:
        return "" if set(stateful) & set(job.member_keys(job.chain()[0])) else "nobody"

    patch.setattr(rounds, "_may_decide", may_decide)


def abort_to_current(patch: Patch) -> None:
    """Abort goes to the generation in force only, not to pending joiners."""
    begin = rounds.begin_round

    def begin_round(job: JobState, reason: str) -> None:
        pending, job.pending = job.pending, None
        begin(job, reason)
        job.pending = pending

    patch.setattr(rounds, "begin_round", begin_round)


def survivors_all(patch: Patch) -> None:
    """A joiner without state counts as a survivor that is not whole."""
    make = rounds._make_unplanned

    def all_count(
        job: JobState, current: Any, survivors: dict[Any, msg.Stopped], joiners: list[Any]
    ) -> None:
        if any(answer.generation == 0 for answer in current.answers.values()):
            survivors = {k: dataclasses.replace(answer, whole=False) for k, answer in survivors.items()}
        make(job, current, survivors, joiners)

    patch.setattr(rounds, "_make_unplanned", all_count)


def report_generation(patch: Patch) -> None:
    """A registration tells the generation in force, not the Abort answered; the journal's Aborts are not
    counted.
    """
    told = Participant._join
    restore = hearing.restore

    def join(self: Participant) -> msg.Join:
        return dataclasses.replace(told(self), abort=min(self.abort, self.generation))

    def forgets(job: JobState, records: Any) -> None:
        restore(job, records)
        job.last_abort = 0

    patch.setattr(Participant, "_join", join)
    patch.setattr(hearing, "restore", forgets)


def unjournalled_abort(patch: Patch) -> None:
    """The number of an Abort is not journalled."""
    record = JobState.record

    def skips(self: JobState, item: rec.JournalRecord) -> None:
        if not isinstance(item, rec.AbortMade):
            record(self, item)

    patch.setattr(JobState, "record", skips)


def no_resend(patch: Patch) -> None:
    """A restarted master drops a journalled planned change and numbers a new one."""
    adopt = hearing._adopt

    def drops(job: JobState, heard: Any) -> None:
        job.resend = None
        adopt(job, heard)

    patch.setattr(hearing, "_adopt", drops)


def leave_at_boundary(patch: Patch) -> None:
    """A drained worker leaves at its boundary, without waiting until the new generation has formed."""
    boundary = Participant.boundary

    def leaves(self: Participant, enterable: bool) -> list[Any]:
        actions = boundary(self, enterable)
        return [*actions, act.Exit(0, "drained at once", "")] if actions and self.drained_by else actions

    patch.setattr(Participant, "boundary", leaves)


def joiner_not_first(patch: Patch) -> None:
    """A planned change goes to members and joiners at once."""
    announce = change.announce

    def at_once(job: JobState, plan: rec.PlanMade) -> None:
        announce(job, plan)
        if job.pending is not None:
            job.pending.holds = set(job.pending.joiners)
            change._tell_members(job)

    patch.setattr(change, "announce", at_once)
    patch.setattr(hearing.change, "announce", at_once)


def finish_not_served(patch: Patch) -> None:
    """A master restarted on a job whose end is journalled is over at once."""
    settle = hearing.settle

    def over(job: JobState) -> None:
        if job.finish is not None:
            job.hearing = None
        settle(job)

    patch.setattr(hearing, "settle", over)


def finish_members_only(patch: Patch) -> None:
    """Finish is sent to the members alone."""
    tell = JobState.tell

    def members(self: JobState, worker: Any, message: Any) -> None:
        if not isinstance(message, msg.Finish) or worker.key in self.current_keys():
            tell(self, worker, message)

    patch.setattr(JobState, "tell", members)


def lag_counts(patch: Patch) -> None:
    """A drained worker that has not heard of the commit takes part in the verdict."""
    member_keys = JobState.member_keys
    decide = rounds.decide

    def everybody(job: JobState) -> bool:
        current = job.round
        keys = list(current.answers) if current is not None else []

        def wide(plan: rec.PlanMade) -> list[Any]:
            return sorted({*member_keys(job, plan), *keys})

        job.member_keys = wide  # type: ignore[method-assign]
        try:
            return decide(job)
        finally:
            del job.member_keys

    patch.setattr(rounds, "decide", everybody)


def begin_after_answer(patch: Patch) -> None:
    """A worker goes on beginning shards after its answer, and a plan moves what it had not reported as
    begun.
    """
    move(patch)

    def begin(self: Participant, shards: Any) -> bool:
        return self.hand.begin(shards, False)

    patch.setattr(Participant, "begin", begin)


# plant -> the story that it spoils
PLANTS: dict[Callable[[Patch], None], str] = {
    late_ready: "nothing_is_ready_after_an_answer",
    begin_after_answer: "a_plan_moves_no_shard_of_the_living",
    move: "a_plan_moves_no_shard_of_the_living",
    previous_formed: "the_newest_generation_must_answer",
    abort_to_current: "an_operators_word_ends_the_wait",
    survivors_all: "the_joiner_is_asked_too",
    report_generation: "a_paused_job_survives_its_master",
    unjournalled_abort: "an_abort_is_journalled_before_it_is_said",
    no_resend: "the_master_dies_between_plan_and_boundary",
    leave_at_boundary: "a_drained_worker_answers_an_abort",
    joiner_not_first: "the_joiner_hears_of_its_plan_first",
    finish_not_served: "the_end_outlives_the_master",
    finish_members_only: "the_end_is_said_to_joiners_too",
    lag_counts: "the_lagging_drained_worker_does_not_count",
}
CAUGHT = (
    AssertionError,
    ParticipantFault,
    LawBroken,
    BrokenTransition,
)  # a Violation and a Stalled are the first


@pytest.fixture
def patch() -> Iterator[Patch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_spoils_its_story(plant: Callable[[Patch], None], patch: Patch) -> None:
    told = (FOLDER / f"{PLANTS[plant]}.txt").read_text(encoding="utf-8")
    plant(patch)
    with pytest.raises(CAUGHT):
        replay(told)


def test_an_older_term_is_not_obeyed() -> None:
    """Connections keep their order, so only the machine itself can show this one: one gate, before any
    handler.
    """
    identity = Identity(worker="w0", incarnation=1, agent="", host="h", pid=1, address="h:1", token="t")
    one = Participant(identity, beat_s=0.25, orphan_s=600.0, now_s=0.0)
    welcome = msg.Welcome(
        worker="w0", incarnation=1, run_dir="", seed=0, lease_s=2.0, beat_s=0.25, orphan_s=600.0
    )

    def hear(message: msg.Checked, term: int) -> list[Any]:
        head = header_of(message, job="j", term=term, generation=0, sender="", incarnation=0, sequence=1)
        return one.step(Received("", head, message), 1.0)

    one.step(MasterBack(), 0.5)
    hear(welcome, 2)
    assert hear(msg.Abort(number=7, reason="said by the dead"), 1) == []
    assert one.abort == 0
    assert hear(msg.Abort(number=8, reason="said by the living"), 2)
    assert one.abort == 8
