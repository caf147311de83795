"""What an agent decides, told as conversations with a clock in the test's hand."""

import itertools
import signal
from typing import Any

import pytest

from godmw.errors import InternalError
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked
from godmw.protocol.wire import header_of
from godmw.worker.agent import supervision as sup
from godmw.worker.agent.facts import (
    Action,
    Connected,
    Disconnected,
    End,
    Event,
    Exited,
    Heard,
    MasterEnded,
    Observed,
    OtherVersion,
    Say,
    Send,
    Signal,
    Signalled,
    SignalMaster,
    Start,
    Started,
    StartFailed,
    Sweep,
    Tick,
    order,
)
from godmw.worker.agent.standing import EDGES, Cause, Link, moved


class Story:
    """One agent with two slots; ``at`` is the time, ``did`` what the last event led to."""

    def __init__(self, *, owns_master: bool = False, connect_s: float = 20.0) -> None:
        self.at = 100.0
        self.machine = sup.Supervision(
            token="secret", host="here", pid=7, slots=2, where="m:1", owns_master=owns_master, now_s=self.at,
            connect_s=connect_s,
        )  # fmt: skip
        self.did: list[Action] = []
        self.term = 1

    def tell(self, event: Event, *, after_s: float = 0.0) -> list[Action]:
        self.at += after_s
        self.did = self.machine.step(event, self.at)
        return self.did

    def hear(self, message: Checked, *, job: str = "j", term: int | None = None) -> list[Action]:
        header = header_of(
            message, job=job, term=self.term if term is None else term, generation=0, sender="",
            incarnation=0,
            sequence=1,
        )  # fmt: skip
        return self.tell(Heard(header, message))

    def register(self) -> "Story":
        self.tell(Connected())
        self.hear(welcome())
        return self

    def launch(self, worker: str, incarnation: int = 1, slot: int = 0, pid: int = 50) -> None:
        start = Start(worker, incarnation, slot, 0, 2)
        assert self.hear(launch(worker, incarnation, slot)) == [start]
        self.tell(Started(worker, incarnation, pid))

    def wait(self, seconds: float) -> list[Action]:
        """Tick whenever it is due; all that was done meanwhile."""
        done, until = [], self.at + seconds
        for _ in range(10_000):
            due = self.machine.next_deadline()
            if due > until:
                break
            self.at = max(self.at, due)
            done += self.tell(Tick())
            if self.machine.over:
                return done
        else:
            raise AssertionError("next_deadline never moves on: the shell would spin")
        self.at = until
        return done + self.tell(Tick())


def welcome() -> msg.AgentWelcome:
    return msg.AgentWelcome(run_dir="/runs/x", lease_s=2.0, beat_s=0.25, orphan_s=30.0)


def launch(worker: str, incarnation: int = 1, slot: int = 0) -> msg.Launch:
    return msg.Launch(worker=worker, incarnation=incarnation, slot=slot, rank_hint=0, world_hint=2)


def child(worker: str, pid: int = 50, process: str = "R", incarnation: int = 1) -> msg.Child:
    return msg.Child(worker=worker, incarnation=incarnation, pid=pid, process=process)


def gone(
    worker: str, code: int = 0, signum: int = 0, words: str = "", incarnation: int = 1
) -> msg.ChildExited:
    return msg.ChildExited(
        worker=worker, incarnation=incarnation, code=code, signal=signum, last_words=words
    )


def finish(code: int = 0, outcome: str = "finished", reason: str = "done") -> msg.Finish:
    return msg.Finish(outcome=outcome, code=code, reason=reason)


def sent(actions: list[Action], kind: type[Any]) -> list[Any]:
    return [item.message for item in actions if isinstance(item, Send) and isinstance(item.message, kind)]


# ---------------------------------------------------------------- registering


def test_hello_is_said_on_connecting_and_again_until_it_is_answered() -> None:
    story = Story()
    hello = msg.AgentHello(token="secret", host="here", pid=7, slots=2, children=())
    assert story.tell(Connected()) == [Send(hello)]
    assert sent(story.wait(0.9), msg.AgentHello) == []
    assert sent(story.wait(0.2), msg.AgentHello) == [hello]
    assert len(sent(story.wait(10.0), msg.AgentHello)) == 2  # at 3 and 7 s; the next is due at 12 s
    story.hear(welcome())
    assert sent(story.wait(20.0), msg.AgentHello) == []


def test_nobody_answers_until_the_deadline() -> None:
    story = Story(connect_s=20.0)
    said = story.wait(19.9)
    assert said == [Say("waiting for the master at m:1 (gives up in 18 s)")]
    (end,) = story.wait(0.2)
    assert isinstance(end, End)
    assert (end.code, end.reason) == (69, "no master at m:1 for 20 s")
    assert "godmw master" in end.hint
    assert story.tell(Connected()) == []


@pytest.mark.parametrize("code", [76, 77])
def test_refused(code: int) -> None:
    story = Story()
    story.tell(Connected())
    assert story.hear(msg.Refused(code=code, reason="no", hint="do this")) == [End(code, "no", "do this")]


def test_another_version_ends_a_new_agent_and_not_a_registered_one() -> None:
    (end,) = Story().tell(OtherVersion("version 9"))
    assert isinstance(end, End)
    assert (end.code, end.reason) == (76, "m:1: version 9")
    assert Story().register().tell(OtherVersion("version 9")) == []


def test_a_lower_term_and_another_job_are_not_heard() -> None:
    story = Story()
    story.term = 3
    story.register()
    assert story.hear(launch("w0"), term=2) == []
    assert story.hear(launch("w0"), job="other") == []
    assert story.hear(finish(), job="other") == []
    assert story.machine.end is None
    assert story.hear(launch("w0"), term=3) == [Start("w0", 1, 0, 0, 2)]


# ---------------------------------------------------------------- children


def test_a_child_is_started_beaten_for_and_its_exit_told_at_once() -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    assert story.did == [Send(msg.AgentBeat(children=(child("w0"),)))]
    assert story.wait(0.2) == []
    assert story.wait(0.1) == [Send(msg.AgentBeat(children=(child("w0"),)))]
    report = gone("w0", signum=9, words="Killed")
    assert story.tell(Exited("w0", 1, 0, 9, "Killed")) == [Send(report), Sweep("w0", 1, 50)]
    assert story.machine.children == {}


def test_beats_keep_their_rhythm() -> None:
    story = Story().register()
    assert len(sent(story.wait(10.0), msg.AgentBeat)) == 40  # 10 s / 0.25 s


def test_a_stopped_child_is_told_at_once_and_sleeping_is_not_news() -> None:
    story = Story().register()
    story.launch("w0")
    assert story.tell(Observed({"w0": "S"})) == []
    assert story.tell(Observed({"w0": "T"})) == [Send(msg.AgentBeat(children=(child("w0", process="T"),)))]
    assert story.tell(Observed({"w0": "T"})) == []
    assert story.tell(Observed({"w0": "S"})) == [Send(msg.AgentBeat(children=(child("w0", process="S"),)))]
    assert story.tell(Observed({"w0": "t"})) == []  # a debugger


def test_a_launch_said_twice_starts_one_process() -> None:
    story = Story().register()
    story.launch("w0", incarnation=2)
    beat = Send(msg.AgentBeat(children=(child("w0", incarnation=2),)))
    assert story.hear(launch("w0", 2)) == [beat]
    assert story.hear(launch("w0", 1)) == [beat]
    story.tell(Exited("w0", 2, 1, 0, "bad"))
    assert story.hear(launch("w0", 2)) == [Send(gone("w0", 1, 0, "bad", 2))]


def test_the_next_incarnation_waits_for_the_last_one_to_be_gone() -> None:
    story = Story().register()
    story.launch("w0", pid=50)
    assert story.hear(launch("w0", 2)) == [Signal(50, signal.SIGKILL)]
    assert story.tell(Exited("w0", 1, 0, 9, "")) == [
        Send(gone("w0", signum=9)), Sweep("w0", 1, 50), Start("w0", 2, 0, 0, 2),
    ]  # fmt: skip


def test_a_slot_that_is_taken_gives_way_to_the_lowest_free_one() -> None:
    story = Story().register()
    story.launch("w0", slot=0, pid=50)
    story.launch("w1", slot=1, pid=51)
    assert story.hear(launch("w5", 1, 0)) == [Start("w5", 1, 2, 0, 2)]


def test_a_process_that_cannot_be_started_is_an_exit() -> None:
    story = Story().register()
    story.hear(launch("w0"))
    assert story.tell(StartFailed("w0", 1, "no such file")) == [Send(gone("w0", 127, 0, "no such file"))]
    assert story.hear(launch("w0", 2)) == [Start("w0", 2, 0, 0, 2)]


def test_terminate_reaches_the_incarnation_it_means() -> None:
    story = Story().register()
    story.launch("w0", incarnation=2, pid=50)
    assert story.hear(msg.Terminate(worker="w0", incarnation=1, signal=9)) == []
    assert story.hear(msg.Terminate(worker="w9", incarnation=1, signal=9)) == []
    assert story.hear(msg.Terminate(worker="w0", incarnation=2, signal=19)) == [Signal(50, 19)]
    story.tell(Exited("w0", 2, 0, 9, ""))
    assert story.hear(msg.Terminate(worker="w0", incarnation=2, signal=9)) == [
        Send(gone("w0", signum=9, incarnation=2))
    ]


def test_output_passes_from_the_lowest_worker_alive() -> None:
    story = Story().register()
    assert story.machine.passing(story.at) is None
    story.launch("w10", slot=0, pid=50)
    story.launch("w9", slot=1, pid=51)
    assert story.machine.passing(story.at) == "w9"
    story.tell(Exited("w9", 1, 0, 9, ""))
    assert story.machine.passing(story.at) == "w10"
    assert sorted(["x", "w10", "w2", "w9"], key=order) == ["w2", "w9", "w10", "x"]


def test_one_error_that_ends_all_scripts_is_shown_once() -> None:
    story = Story().register()
    story.launch("w0", slot=0, pid=50)
    story.launch("w1", slot=1, pid=51)
    story.tell(Exited("w0", 1, 1, 0, "Traceback"))
    assert story.machine.passing(story.at + 0.9) is None
    assert story.machine.passing(story.at + 1.1) == "w1"


# ---------------------------------------------------------------- the master away


def test_the_master_goes_and_comes_back_and_nothing_is_lost() -> None:
    story = Story().register()
    story.launch("w0", slot=0, pid=50)
    story.launch("w1", slot=1, pid=51)
    story.tell(Exited("w1", 1, 3, 0, "before"))
    (said,) = story.tell(Disconnected())
    assert said == Say("the master at m:1 is away; 1 worker(s) here go on, and it is tried again")
    assert story.wait(25.0) == []
    assert story.tell(Exited("w0", 1, 1, 0, "while away")) == [Sweep("w0", 1, 50)]
    story.hear(launch("w1", 2))  # over the dead connection: cannot be, and does no harm
    story.tell(Started("w1", 2, 52))
    hello = msg.AgentHello(
        token="secret", host="here", pid=7, slots=2, children=(child("w1", 52, incarnation=2),)
    )
    assert story.tell(Connected()) == [Send(hello)]
    story.term = 2
    assert story.hear(welcome()) == [
        Say("the master is back (term 2)"),
        Send(gone("w1", 3, 0, "before")),
        Send(gone("w0", 1, 0, "while away")),
        Send(msg.AgentBeat(children=(child("w1", 52, incarnation=2),))),
    ]


def test_an_agent_with_workers_waits_for_ever_and_one_without_for_orphan_s() -> None:
    story = Story().register()
    story.launch("w0")
    story.tell(Disconnected())
    assert story.wait(1000.0) == []
    *_, end = story.tell(Exited("w0", 1, 0, 0, ""))
    assert isinstance(end, End)
    assert (end.code, end.reason) == (69, "no master at m:1 for 1000 s")


def test_under_run_the_master_is_waited_for_without_end() -> None:
    story = Story(owns_master=True)
    assert story.wait(1000.0) == []
    story.register()
    story.tell(Disconnected())
    assert story.wait(1000.0) == []
    assert story.machine.end is None


def test_an_agent_that_stood_still_registers_again() -> None:
    story = Story().register()
    story.launch("w0")
    assert sent(story.tell(Tick(), after_s=1.9), msg.AgentHello) == []
    assert len(sent(story.tell(Tick(), after_s=2.1), msg.AgentHello)) == 1


# ---------------------------------------------------------------- the end


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
