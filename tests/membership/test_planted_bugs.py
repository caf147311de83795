"""The net is fine enough: every reading of the law that is known to break it is planted, and a story catches
each, for the reason that is written beside it.

`READINGS` are those that an exhaustive model of the law was run with; the first value of each is the law.  A
reading without a row in `PLANTED` or `SAME` fails a test.  `test_transcripts` replays the same stories
without a plant.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from godmw.membership import rounds
from godmw.membership.events import MasterBack, Received
from godmw.membership.inhand import ParticipantFault
from godmw.membership.jobstate import JobState, Round
from godmw.membership.participant import Participant
from godmw.membership.rounds import LawBroken
from godmw.membership.selfportrait import Identity
from godmw.membership.states import BrokenTransition
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked
from godmw.protocol.wire import header_of
from godmw.simulate import scenario
from tests.fakes import planted_master as master
from tests.fakes import planted_worker as worker
from tests.fakes.conversation import Conversation, replay, stories

FOLDER = Path(__file__).parents[1] / "transcripts"
Patch = pytest.MonkeyPatch
Value = int | str
CAUGHT = (  # a Violation and a Stalled are the first
    AssertionError,
    ParticipantFault,
    LawBroken,
    BrokenTransition,
)

READINGS: dict[str, tuple[Value, ...]] = {
    "late_ready": (0, 1),
    "begin_after_answer": (0, 1),
    "move": (0, 1),
    "previous": ("chain", "formed", "newest"),
    "abort_to": ("chain", "cur"),
    "survivors": ("state", "all"),
    "report": ("abort", "gen"),
    "round": (1, 0),
    "fence": (1, 0),
    "base": ("journal", "reports"),
    "hear": ("all", "adopted"),
    "journal_abort": (1, 0),
    "resend": (1, 0),
    "leave": ("formed", "boundary", "receipt"),
    "drainer": ("stay", "go"),
    "joiner_first": (1, 0),
    "finish_serve": (1, 0),
    "finish_over": ("formed", "newest"),
    "finish_joiner": (1, 0),
    "end_snapshot": (1, 0),
    "overlap": (0, 1),
    "keep": ("all", "last"),
    "lag": ("out", "counts"),
    "donor": ("kept", "top"),
}


def an_older_term() -> None:
    """Connections keep their order, so only the machine itself can show this one: one gate, before any
    handler.
    """
    identity = Identity(worker="w0", incarnation=1, agent="", host="h", pid=1, address="h:1", token="t")
    one = Participant(identity, beat_s=0.25, orphan_s=600.0, now_s=0.0)
    welcome = msg.Welcome(
        worker="w0", incarnation=1, run_dir="", seed=0, lease_s=2.0, beat_s=0.25, orphan_s=600.0
    )

    def hear(message: Checked, term: int) -> list[Any]:
        head = header_of(message, job="j", term=term, generation=0, sender="", incarnation=0, sequence=1)
        return one.step(Received("", head, message), 1.0)

    one.step(MasterBack(), 0.5)
    hear(welcome, 2)
    obeyed = hear(msg.Abort(number=7, reason="said by the dead"), 1)
    assert obeyed == [], "an older term is obeyed"
    assert hear(msg.Abort(number=8, reason="said by the living"), 2)
    assert one.abort == 8


@dataclasses.dataclass(frozen=True)
class Planted:
    """`plant` spoils `story` (a transcript, or a conversation in code): `reason` is in what is raised then,
    and what was said before has `shows`.
    """

    plant: Callable[[Patch], None]
    story: str | Callable[[], None]
    reason: str
    shows: str = ""


WAITS = "has waited for .* nobody has been told why"  # a job that stands still
TWICE = r"is the sum of shards \[0, 1, 2, 2, "
TWO = "two histories: "
NOT_HELD = r"must switch to plan 2, which is not held \(held: \[3\]\)"
PLANTED: dict[tuple[str, Value], Planted] = {
    ("late_ready", 1): Planted(worker.late_ready, "nothing_is_ready_after_an_answer", TWO),
    ("begin_after_answer", 1): Planted(worker.begin_after_answer, "nothing_is_begun_after_an_answer", TWICE),
    ("move", 1): Planted(master.move, "a_plan_moves_no_shard_of_the_living", TWICE),
    ("previous", "formed"): Planted(
        master.previous_formed,
        "the_newest_generation_must_answer",
        "lives and stands at 13, in abandoned generation 3",
        "w1 → master: Stopped abort=4 generation=2 .*\n(.*\n)*.*MASTER: abandons generation 3",
    ),
    ("abort_to", "cur"): Planted(
        master.abort_to_current,
        "a_joiner_with_state_is_a_survivor",
        WAITS,
        "w2: enters generation 2\n(.*\n)*.*w1: switches to 5",  # w2 is taken for a joiner, and is none
    ),
    ("survivors", "all"): Planted(master.survivors_all, "the_joiner_is_asked_too", TWO),
    ("report", "gen"): Planted(
        master.report_generation,
        "a_paused_job_survives_its_master",
        WAITS,
        "starts, term 2\n(.*\n)*.*w0 → master: Join .*generation=1 position=3 abort=1 ",
    ),
    ("round", 0): Planted(master.no_round, "a_report_is_no_answer", "plan 4 goes back to 2 from 3"),
    ("fence", 0): Planted(worker.no_fence, an_older_term, "an older term is obeyed"),
    ("base", "reports"): Planted(master.base_of_reports, "the_evicted_are_out_after_a_restart_too", TWO),
    ("hear", "adopted"): Planted(
        master.members_heard,
        "a_joiner_that_nobody_saw_die",
        "said='journals abort' did not come",
        "starts, term 2\n(.*\n)*.*master → w0: Welcome",
    ),
    ("journal_abort", 0): Planted(
        master.unjournalled_abort,
        "an_abort_is_journalled_before_it_is_said",
        "Abort 2 was sent and not journalled",
    ),
    ("resend", 0): Planted(
        master.no_resend,
        "a_plan_half_said_is_said_again",
        NOT_HELD,
        "starts, term 2\n(.*\n)*.*journals plan 3",
    ),
    ("leave", "boundary"): Planted(
        worker.leave_at_boundary,
        "the_drained_may_be_the_last_that_know",
        "FAILED: every worker that held the job's state has died",
        "w1: exits 0: drained at once\n.*w1: is drained at the boundary",
    ),
    ("leave", "receipt"): Planted(
        worker.leave_on_receipt,
        "a_drained_worker_is_let_go_by_the_next_term",
        "step=5 did not come in .* step 2, AWAY",
        "w2: exits 0: drained at once",
    ),
    ("drainer", "go"): Planted(
        master.drainers_go,
        "asked_to_leave_it_answers_first",
        "said='w2: exits 0: drained' did not come",
        "w2: exits 77: this worker was taken out of the job: w0 is dead",
    ),
    ("joiner_first", 0): Planted(
        master.joiner_not_first,
        "the_joiner_hears_of_its_plan_first",
        WAITS,
        "CUT: master -/-> w2\n(.*\n)*.*w0: switches to 2",
    ),
    ("finish_serve", 0): Planted(
        master.finish_not_served,
        "the_end_outlives_the_master",
        "phase='FINISHED' did not come",
        "starts, term 2\n(.*\n)*.*MASTER: the job is over",
    ),
    ("finish_over", "newest"): Planted(
        master.finish_by_newest,
        "the_end_does_not_wait_for_a_joiner",
        "said='the end' did not come in .* step 16, RUNNING",
    ),
    ("finish_joiner", 0): Planted(
        master.finish_members_only,
        "the_end_is_said_to_joiners_too",
        "phase='FINISHED' did not come",
        "w1 → master: Finished position=20 confirmed",
    ),
    ("end_snapshot", 0): Planted(
        worker.no_snapshot_at_the_end,
        "a_joiner_at_the_end_gets_its_state",
        WAITS,
        "w0: is drained at the boundary before 16",
    ),
    ("overlap", 1): Planted(
        master.overlap,
        "a_plan_half_said_is_said_again",
        NOT_HELD,
        "journals plan 3 .*\n(.*\n)*.*starts, term 2",
    ),
    ("keep", "last"): Planted(worker.keep_last, "a_second_change_waits_for_the_first", NOT_HELD),
    ("lag", "counts"): Planted(
        master.lag_counts, "the_lagging_drained_worker_does_not_count", "plan 4 goes back to 3 from 4"
    ),
    ("donor", "top"): Planted(
        worker.snapshot_on_request,
        "a_joiner_takes_state_at_a_boundary",
        WAITS,
        "w0: switches to 2 at the boundary before 8\n.*w0: begins shard 0 of 8",
    ),
}
# readings that cannot be told from the law, and the test that would fail once they could
SAME: dict[tuple[str, Value], str] = {
    ("previous", "newest"): (
        "at most one planned change is pending, so whoever answers with state is of the generation in force "
        "or of that change: test_the_newest_generation_is_the_only_one_to_ask"
    ),
}


@pytest.fixture
def patch() -> Iterator[Patch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


def tell(story: str | Callable[[], None], talk: Conversation | None = None) -> None:
    """Replay a story as it goes now.  Raises what it breaks."""
    if callable(story):
        story()
    else:
        replay((FOLDER / f"{story}.txt").read_text(encoding="utf-8"), talk)


def named(reading: tuple[str, Value]) -> str:
    return f"{reading[0]}={reading[1]}"


def test_every_reading_has_its_plant() -> None:
    broken = {(name, value) for name, values in READINGS.items() for value in values[1:]}
    assert PLANTED.keys() | SAME.keys() == broken
    assert not PLANTED.keys() & SAME.keys()


@pytest.mark.parametrize("reading", PLANTED, ids=named)
def test_a_planted_bug_spoils_its_story(reading: tuple[str, Value], patch: Patch) -> None:
    planted, talk = PLANTED[reading], Conversation()
    tell(planted.story)
    planted.plant(patch)
    with pytest.raises(CAUGHT) as caught:
        tell(planted.story, talk)
    assert re.search(planted.reason, str(caught.value)), str(caught.value)[:2000]
    said = talk.job.transcript(detail=True) if talk.job is not None else ""
    assert re.search(planted.shows, said), said[-4000:]


@pytest.mark.parametrize(
    ("half", "reading"),
    [(worker.obedient_move, ("begin_after_answer", 1)), (master.overlap, ("keep", "last"))],
    ids=["begin_after_answer", "keep"],
)
def test_what_a_reading_needs_beside_it_is_not_what_breaks(
    half: Callable[[Patch], None], reading: tuple[str, Value], patch: Patch
) -> None:
    """Two of the plants need another to show; that other alone leaves their story whole."""
    half(patch)
    tell(PLANTED[reading].story)


def test_the_newest_generation_is_the_only_one_to_ask(patch: Patch) -> None:
    """``previous=newest`` lets a verdict be made whenever somebody with state and somebody of the newest
    generation has answered: so does the law, in every story and in fifty random runs.
    """
    may_decide = rounds._may_decide
    asked: list[bool] = []

    def both(job: JobState, current: Round, stateful: dict[Any, msg.Stopped]) -> str:
        law = may_decide(job, current, stateful)
        newest = job.member_keys(job.chain()[-1])
        best = rounds.within_reach(stateful.values())
        lost = rounds.all_certain(job, newest) and job.next_operation <= best
        reading = bool(stateful) and (lost or not current.answers.keys().isdisjoint(newest))
        assert reading == (law == ""), f"the law says {law or 'yes'!r}, the reading {reading}"
        asked.append(reading)
        return law

    patch.setattr(rounds, "_may_decide", both)
    for path in stories(FOLDER):
        tell(path.stem)
    for seed in range(50):
        scenario.play(scenario.random_world(seed))
    assert asked.count(True) > 50
    assert asked.count(False) > 10
