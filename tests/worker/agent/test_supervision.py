"""What an agent decides, told as conversations: registering, children, a master that goes and comes back."""

import signal

import pytest

from godmw.protocol import messages as msg
from godmw.worker.agent.facts import (
    Connected,
    Disconnected,
    End,
    Exited,
    Observed,
    OtherVersion,
    Say,
    Send,
    Signal,
    Start,
    Started,
    StartFailed,
    Sweep,
    Tick,
    order,
)
from tests.fakes.agent_story import Story, child, finish, gone, launch, sent, welcome


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
