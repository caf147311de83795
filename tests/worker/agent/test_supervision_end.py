"""How an agent ends, told as conversations: Finish, signals, drains, and whose failure is remembered."""

import itertools
import signal

import pytest

from godmw.errors import InternalError
from godmw.protocol import messages as msg
from godmw.worker.agent.facts import (
    Connected,
    Disconnected,
    End,
    Exited,
    MasterEnded,
    Say,
    Send,
    Signal,
    Signalled,
    SignalMaster,
    Sweep,
    Tick,
)
from godmw.worker.agent.standing import EDGES, Cause, Link, moved
from tests.fakes.agent_story import Story, finish, gone, launch, sent, welcome


@pytest.mark.parametrize("code", [0, 1, 75])
def test_finish_waits_for_the_children_and_ends_with_its_code(code: int) -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    assert story.hear(finish(code)) == []
    assert story.hear(launch("w1", 1, 1)) == []
    story.wait(1.0)
    assert story.tell(Exited("w0", 1, 0, 0, "")) == [
        Send(gone("w0")), Sweep("w0", 1, 50), End(code, "done", ""),
    ]  # fmt: skip
    assert story.tell(Tick()) == []


def test_children_that_do_not_leave_are_asked_then_killed_then_left() -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    story.hear(finish())
    signals = [(item.signal) for item in story.wait(4.5) if isinstance(item, Signal)]
    assert signals == [signal.SIGTERM, signal.SIGKILL]
    assert story.machine.over is False
    assert story.wait(3.0)[-1] == End(0, "done", "")


def test_finish_without_children_ends_at_once() -> None:
    assert Story().register().hear(finish(1, "failed", "w0 raised")) == [End(1, "w0 raised", "")]


def test_the_first_signal_drains_within_ten_seconds() -> None:
    story = Story().register()
    story.launch("w0", slot=0, pid=50)
    story.launch("w1", slot=1, pid=51)
    did = story.tell(Signalled(signal.SIGTERM))
    assert sent(did, msg.Drain) == [msg.Drain(token="secret", worker=w) for w in ("w0", "w1")]
    assert story.hear(msg.Reply(request=1, code=0, body="{}")) == []
    assert [item for item in story.wait(7.9) if not isinstance(item, Send)] == []
    story.tell(Exited("w0", 1, 0, 0, ""))
    killed = [item for item in story.wait(0.2) if isinstance(item, Signal)]
    assert killed == [Signal(51, signal.SIGKILL)]
    assert story.tell(Exited("w1", 1, 0, 9, ""))[-1] == End(75, "left after SIGTERM", "")


def test_a_drain_that_the_old_master_did_not_hear_is_asked_of_the_new_one() -> None:
    story = Story().register()
    story.launch("w0")
    story.tell(Signalled(signal.SIGINT))
    story.tell(Disconnected())
    story.tell(Connected())
    assert sent(story.hear(welcome()), msg.Drain) == [msg.Drain(token="secret", worker="w0")]


def test_a_refused_drain_is_not_waited_for() -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    story.tell(Signalled(signal.SIGTERM))
    refused = msg.Reply(request=3, code=77, body='{"error": "the last one"}')
    say, term = story.hear(refused)
    assert isinstance(say, Say)
    assert "the last one" in say.text
    assert term == Signal(50, signal.SIGTERM)
    assert story.hear(refused) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_kills(signum: int, code: int) -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    story.tell(Signalled(signal.SIGINT))
    assert Signal(50, signal.SIGKILL) in story.tell(Signalled(signum))
    end = story.tell(Exited("w0", 1, 0, 9, ""))[-1]
    assert isinstance(end, End)
    assert end.code == code


def test_a_signal_without_a_master_terminates_the_children() -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    story.tell(Disconnected())
    assert story.tell(Signalled(signal.SIGTERM)) == [Signal(50, signal.SIGTERM)]
    assert Story().tell(Signalled(signal.SIGINT)) == [End(75, "left after SIGINT", "")]


def test_under_run_the_first_signal_stops_the_master_and_the_job_with_it() -> None:
    story = Story(owns_master=True).register()
    story.launch("w0", pid=50)
    say, stop = story.tell(Signalled(signal.SIGINT))
    assert isinstance(say, Say)
    assert stop == SignalMaster(signal.SIGTERM)
    assert story.hear(launch("w1", 1, 1)) == []
    story.hear(finish(75, "stopped", "SIGINT"))
    assert story.tell(Exited("w0", 1, 0, 0, ""))[-1] == End(75, "SIGINT", "")


def test_under_run_a_master_that_does_not_stop_is_not_waited_for() -> None:
    story = Story(owns_master=True).register()
    story.launch("w0", pid=50)
    story.tell(Signalled(signal.SIGTERM))
    assert Signal(50, signal.SIGKILL) in story.wait(8.1)
    end = story.tell(Exited("w0", 1, 0, 9, ""))[-1]
    assert isinstance(end, End)
    assert end.code == 75


def test_the_masters_own_end_ends_run() -> None:
    story = Story(owns_master=True).register()
    story.launch("w0", pid=50)
    assert story.tell(MasterEnded(1, "it failed", "hint")) == []
    assert story.tell(Exited("w0", 1, 0, 0, ""))[-1] == End(1, "it failed", "hint")


def test_the_first_failure_is_remembered_and_the_exits_of_the_end_are_not() -> None:
    story = Story().register()
    story.launch("w0", slot=0)
    story.launch("w1", slot=1)
    story.tell(Exited("w1", 1, 3, 0, "first"))
    story.tell(Exited("w0", 1, 1, 0, "second"))
    assert story.machine.first_failure == gone("w1", 3, 0, "first")
    other = Story().register()
    other.launch("w0")
    other.hear(finish())
    other.tell(Exited("w0", 1, 0, 15, ""))
    assert other.machine.first_failure is None


# ---------------------------------------------------------------- the table


def test_every_state_has_a_row_and_a_missing_edge_raises() -> None:
    assert EDGES.keys() == set(Link)
    for link, cause in itertools.product(Link, Cause):
        if cause in EDGES[link]:
            assert moved(link, cause) in Link
        else:
            with pytest.raises(InternalError, match=f"{cause.value} while {link.value}"):
                moved(link, cause)
