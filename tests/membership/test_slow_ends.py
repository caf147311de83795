"""Workers that are slow to come, and slow to go: named, and in the end given up, each for its own reason."""

from typing import Any

from godmw.config import JobSettings
from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.coordinator import Coordinator
from godmw.protocol import messages as msg
from godmw.protocol import wire

SETTINGS = JobSettings(local_host="h", stall_timeout_s=25.0)
BEAT = msg.Heartbeat(
    position=0, progress=1, phase="compute", where="", waits_for="", idle_s=0.0, limit_s=0.0, applied=0
)


class Master:
    """A coordinator with one agent of two slots, which beats, and workers whose words the test says."""

    def __init__(self, next_operation: int = 0) -> None:
        self.now_s = 100.0
        self.machine = Coordinator(SETTINGS, now_s=self.now_s, next_operation=next_operation)
        self.machine.start(self.now_s)
        self.seen: list[Any] = []
        self.say("agent", "a", msg.AgentHello(token="", host="h", pid=9, slots=2, children=()))

    def say(self, peer: str, sender: str, message: Any, incarnation: int = 1) -> None:
        header = wire.header_of(
            message, job="job", term=1, generation=0, sender=sender, incarnation=incarnation, sequence=1
        )
        self.seen += self.machine.step(ev.Received(peer, header, message), self.now_s)

    def advance(self, seconds: float, *workers: str) -> None:
        """Time passes, the agent and these workers beat."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            self.say("agent", "a", msg.AgentBeat(children=()))
            for worker in workers:
                self.say(f"of {worker}", worker, BEAT)
            self.seen += self.machine.step(ev.Tick(), self.now_s)

    def join(self, worker: str, agent: str = "a") -> None:
        message = msg.Join(
            token="", agent=agent, host="h", pid=8, address="h:1", generation=0, position=-1, abort=0,
            held=(), prepared=False, ended=False,
        )  # fmt: skip
        self.say(f"of {worker}", worker, message)

    def told(self, kind: str) -> list[str]:
        return [
            f"{action.fields.get('worker', '')}|{action.fields['reason']}"
            for action in self.seen
            if isinstance(action, act.Log) and action.kind == kind
        ]


def test_a_script_that_does_not_come_is_named_and_ends_a_job_that_has_not_begun() -> None:
    master = Master()
    master.join("w0")
    master.advance(9.5, "w0")
    assert master.told("notice") == []
    master.advance(1.0, "w0")
    assert master.told("notice") == ["|waiting for w1: its script has not called godmw.join for 10 s"]
    master.advance(14.5, "w0")
    assert master.told("end") == []
    master.advance(1.0, "w0")
    assert master.told("end") == ["|w1: its script has not called godmw.join for 26 s (--stall-timeout 25)"]


def test_in_a_job_that_has_begun_another_is_started_in_its_place() -> None:
    master = Master(next_operation=5)
    master.join("w0")
    master.advance(26.0, "w0")
    assert master.told("verdict") == ["w1|its script has not called godmw.join for 26 s"]
    sent = [action.message for action in master.seen if isinstance(action, act.Send)]
    assert msg.Terminate(worker="w1", incarnation=1, signal=9) in sent
    launches = [(m.worker, m.incarnation) for m in sent if isinstance(m, msg.Launch)]
    assert launches == [("w0", 1), ("w1", 1), ("w1", 2)]


def test_a_process_that_hangs_after_its_last_words_is_ended_and_not_called_busy() -> None:
    master = Master(next_operation=5)
    master.join("w0")
    master.join("w1")
    master.say("of w1", "w1", msg.Failed(kind="exception", code=1, traceback="ValueError: x", step=5))
    master.advance(10.0, "w0")
    assert master.told("verdict") == []
    assert master.told("notice") == ["|w1: its script raised: ValueError: x"]
    master.advance(0.5, "w0")
    assert master.told("verdict") == ["w1|its script failed and its process does not end"]
    sent = [action.message for action in master.seen if isinstance(action, act.Send)]
    assert msg.Terminate(worker="w1", incarnation=1, signal=9) in sent


def test_an_agent_that_is_lost_before_its_workers_are_costs_nobody_elses() -> None:
    """The target falls by its slots at once; that its workers are not yet judged makes no other too many."""
    master = Master()
    master.say("agent b", "b", msg.AgentHello(token="", host="h", pid=10, slots=2, children=()))
    for worker, agent in (("w0", "a"), ("w1", "a"), ("w2", "b"), ("w3", "b")):
        master.join(worker, agent)
    master.seen.clear()
    master.seen += master.machine.step(ev.PeerGone("agent"), master.now_s)
    assert master.told("target") == ["|agent a is gone"]
    assert master.told("left") == master.told("drain") == []
    for worker in ("w0", "w1"):
        master.seen += master.machine.step(ev.PeerGone(f"of {worker}"), master.now_s)
    assert [line.partition("|")[0] for line in master.told("verdict")] == ["w0", "w1"]
    assert master.told("left") == master.told("drain") == []
    assert master.machine.view()["target"] == 2
