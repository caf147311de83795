"""The watchers themselves: what they let pass, and each thing they must not."""

from collections.abc import Callable

import pytest

from godmw.membership import records as rec
from godmw.membership.invariants import History, Said, Violation, check_wait
from godmw.protocol import messages as msg

PARTS = (("w0#1", (0, 1)), ("w1#1", (2,)))


@pytest.fixture
def history() -> History:
    """Operation 0 is committed by w0, with three shards in it."""
    made = History(lambda operation: 3)
    made.contributed("w0#1", 0, 1, "s0")
    made.committed("w0#1", 0, 1, PARTS, "s1")
    return made


def test_one_history_for_all(history: History) -> None:
    history.contributed("w1#1", 0, 1, "s0")
    history.committed("w1#1", 0, 1, PARTS, "s1")
    history.received("w2#1", 1, "s1")
    history.contributed("w2#1", 1, 4, "s1")
    history.committed("w2#1", 1, 4, (("w2#1", (0, 1, 2)),), "s2")
    history.check()
    assert [commit.generation for commit in history.commits] == [1, 4]


def test_what_only_the_dead_knew_was_not(history: History) -> None:
    history.committed("w1#1", 0, 1, PARTS, "s1")
    alone = (("w0#1", (0, 1, 2)),)
    history.committed("w0#1", 1, 2, alone, "s2")
    with pytest.raises(Violation, match="w0#1 lives and stands at 2, in abandoned generation 2"):
        history.abandon(2, alive=lambda worker: worker == "w0#1")
    history.abandon(2, alive=lambda worker: worker == "w1#1")
    history.committed("w1#1", 1, 4, (("w1#1", (0, 1, 2)),), "s3")
    history.check()
    assert [commit.generation for commit in history.commits] == [1, 4]


WRONG: dict[str, tuple[Callable[[History], None], str]] = {
    "another generation": (lambda h: h.committed("w1#1", 0, 2, PARTS, "s1"), "two histories"),
    "other parts": (lambda h: h.committed("w1#1", 0, 1, (("w0#1", (0, 1, 2)),), "s1"), "two histories"),
    "another state": (lambda h: h.committed("w1#1", 0, 1, PARTS, "sX"), "two histories"),
    "a shard twice": (
        lambda h: h.committed("w0#1", 1, 1, (("w0#1", (0, 1)), ("w1#1", (1, 2))), "s2"),
        r"the sum of shards \[0, 1, 1, 2\], not of \[0, 1, 2\]",
    ),
    "a shard missing": (lambda h: h.committed("w0#1", 1, 1, (("w0#1", (0, 2)),), "s2"), "sum of shards"),
    "a shard too many": (
        lambda h: h.committed("w0#1", 1, 1, (("w0#1", (0, 1, 2, 3)),), "s2"),
        "sum of shards",
    ),
    "an operation left out": (lambda h: h.committed("w0#1", 2, 1, PARTS, "s2"), "its next one is 1"),
    "an operation again": (lambda h: h.committed("w0#1", 0, 1, PARTS, "s1"), "its next one is 1"),
    "ahead of everybody": (lambda h: h.committed("w9#1", 2, 1, PARTS, "s2"), "history ends at 1"),
    "an older generation": (lambda h: h.committed("w0#1", 1, 0, PARTS, "s2"), "older than the one before"),
    "unequal states": (lambda h: h.contributed("w1#1", 0, 1, "sX"), "with state sX, w0#1 with s0"),
    "a state of nobody": (lambda h: h.contributed("w1#1", 1, 2, "sX"), "a state that is not history's"),
    "a wrong state received": (lambda h: h.received("w2#1", 1, "sX"), "history has s1"),
    "a state of the future": (lambda h: h.received("w2#1", 2, "s2"), "received state s2 for 2"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_history_does_not_bear(history: History, what: str) -> None:
    happens, words = WRONG[what]
    with pytest.raises(Violation, match=words):
        happens(history)


PLAN = rec.PlanMade(2, False, (("w0", 1, "a:1"),), (), 5, 3, (("w0", (1,)),), "because")
SENT = msg.Plan(
    number=2, planned=False, members=(msg.Member(worker="w0", incarnation=1, address="a:1"),), donors=(),
    start=5, shards=3, added=(msg.Share(worker="w0", shards=(1,)),), reason="because",
)  # fmt: skip
FINISH = msg.Finish(outcome="failed", code=1, reason="")


def test_what_is_journalled_may_be_said() -> None:
    said = Said()
    said.journalled(rec.TermBegan(1, "a:0", "j", "t"))
    said.journalled(rec.AbortMade(1))
    said.sent(msg.Abort(number=1, reason=""))
    said.journalled(PLAN)
    said.sent(SENT)
    said.journalled(rec.GenerationWas(2))
    said.sent(msg.GenerationFormed(number=2))
    said.journalled(rec.FinishMade("failed", 1, "", ""))
    said.sent(FINISH)
    said.written(4, 4)


@pytest.mark.parametrize(
    "message", [msg.Abort(number=1, reason=""), SENT, msg.GenerationFormed(number=2), FINISH]
)
def test_nothing_is_said_before_it_is_journalled(message: msg.Checked) -> None:
    with pytest.raises(Violation, match="sent and not journalled"):
        Said().sent(message)


def test_numbers_and_terms_only_rise() -> None:
    said = Said()
    said.journalled(PLAN)
    for again in (rec.AbortMade(2), rec.AbortMade(1), PLAN):
        with pytest.raises(Violation, match="was given again, or late"):
            said.journalled(again)
    said.journalled(rec.TermBegan(2, "a:0", "j", "t"))
    with pytest.raises(Violation, match="term 2 after term 2"):
        said.journalled(rec.TermBegan(2, "a:0", "j", "t"))
    with pytest.raises(Violation, match="formed without a plan"):
        said.journalled(rec.GenerationWas(9))
    with pytest.raises(Violation, match="the ledger gets operation 5, its next one is 4"):
        said.written(5, 4)


def test_a_plan_is_said_as_it_was_journalled() -> None:
    said = Said()
    said.journalled(PLAN)
    other = msg.Plan(
        number=2, planned=False, members=(), donors=(), start=5, shards=3, added=(), reason="because"
    )
    with pytest.raises(Violation, match="otherwise than journalled"):
        said.sent(other)


def test_nobody_waits_unnamed() -> None:
    check_wait("w0", waited_s=100.0, silence_s=5.0, limit_s=20.0)
    check_wait("w0", waited_s=5.0, silence_s=100.0, limit_s=20.0)
    with pytest.raises(
        Violation, match=r"w0 has waited for 30.0 s, and nobody has been told why for 25.0 s"
    ):
        check_wait("w0", waited_s=30.0, silence_s=25.0, limit_s=20.0)
