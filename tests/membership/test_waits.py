"""Who is waited for: found along what the members say, named with what it was last doing, or given up."""

from typing import Any

import pytest

from godmw.config import JobSettings
from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.coordinator import Coordinator
from godmw.protocol import messages as msg
from godmw.protocol import wire

WORKERS = ("w0", "w1", "w2")
Doing = tuple[str, float, str]  # phase, seconds without progress, whom it waits for


class Job:
    """A formed generation of three workers started by hand, whose heartbeats the test says."""

    def __init__(self, stall_timeout_s: float = 60.0) -> None:
        self.now_s = 100.0
        settings = JobSettings(local_host="h", target=3, stall_timeout_s=stall_timeout_s)
        self.machine = Coordinator(settings, now_s=self.now_s)
        self.machine.start(self.now_s)
        self.seen: list[Any] = []
        for number, worker in enumerate(WORKERS):
            self.say(worker, msg.Join(
                token="", agent="", host="h", pid=number, address=f"h:{number}", generation=0, position=-1,
                abort=0, held=(), prepared=False, ended=False,
            ), sender="")  # fmt: skip
        for worker in WORKERS:
            self.say(worker, msg.Prepared(settings=b"", model=b"", data=b"", shards=8, seed=0, detail=""))
        for worker in WORKERS:
            self.say(worker, msg.Formed(number=1))
        assert self.machine.view()["phase"] == "RUNNING"

    def say(self, worker: str, message: Any, sender: str | None = None) -> None:
        header = wire.header_of(
            message, job="job", term=1, generation=1, sender=worker if sender is None else sender,
            incarnation=1 if sender is None else 0, sequence=1,
        )  # fmt: skip
        self.seen += self.machine.step(ev.Received(f"of {worker}", header, message), self.now_s)

    def beat(self, **doing: Doing) -> "Job":
        for worker, (phase, idle_s, waits_for) in doing.items():
            self.say(worker, msg.Heartbeat(
                position=3, progress=9, phase=phase, where=f"train.py:{worker[1:]}", waits_for=waits_for,
                idle_s=idle_s, limit_s=0.0, applied=0,
            ))  # fmt: skip
        self.seen += self.machine.step(ev.Tick(), self.now_s)
        return self

    def told(self, kind: str) -> list[str]:
        return [a.fields["reason"] for a in self.seen if isinstance(a, act.Log) and a.kind == kind]


CASES: dict[str, tuple[dict[str, Doing], list[str]]] = {
    "nobody has waited long": (
        {"w0": ("reduce", 9.9, "w1"), "w1": ("compute", 9.9, ""), "w2": ("reduce", 2.0, "w1")}, [],
    ),
    "one computes and stands": (
        {"w0": ("reduce", 11.0, "w1"), "w1": ("compute", 12.0, ""), "w2": ("reduce", 11.0, "w0")},
        ["waiting for w1 for 12 s: compute at train.py:1"],
    ),
    "one is about to have stood as long as the others wait": (
        {"w0": ("reduce", 10.1, "w1"), "w1": ("compute", 9.8, ""), "w2": ("reduce", 10.0, "w1")}, [],
    ),
    "one has stopped saying more": (
        {"w0": ("reduce", 11.1, "w1"), "w1": ("compute", 9.8, ""), "w2": ("reduce", 11.0, "w1")},
        ["w0 and w2 waited 11 s for w1: compute at train.py:1"],
    ),
    "one is at work for long and nobody waits": (
        {"w0": ("compute", 30.0, ""), "w1": ("compute", 30.0, ""), "w2": ("compute", 1.0, "")}, [],
    ),
    "one is slow and goes on": (
        {"w0": ("reduce", 14.0, "w2"), "w1": ("reduce", 13.0, "w0"), "w2": ("compute", 0.1, "")},
        ["w0 and w1 waited 14 s for w2: compute at train.py:2"],
    ),
    "all wait, at the end of the chain for nobody": (
        {"w0": ("reduce", 14.0, "w1"), "w1": ("reduce", 13.0, "w2"), "w2": ("reduce", 12.0, "")},
        ["waiting for w2 for 12 s: reduce at train.py:2"],
    ),
    "two wait for each other": (
        {"w0": ("reduce", 14.0, "w1"), "w1": ("reduce", 13.0, "w0"), "w2": ("compute", 0.5, "")},
        ["w1 waited 13 s for w0: reduce at train.py:0, which waits for w1",
         "w0 waited 14 s for w1: reduce at train.py:1, which waits for w0"],
    ),
    "the first step takes its time": (
        {"w0": ("reduce", 40.0, "w1"), "w1": ("first step", 41.0, ""), "w2": ("reduce", 40.0, "w1")},
        ["waiting for w1 for 41 s: first step at train.py:1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_culprit_is_named_in_events_and_status(case: str) -> None:
    doing, names = CASES[case]
    job = Job().beat(**doing)
    assert job.told("notice") == names
    assert job.machine.view()["reason"] == ("; ".join(names) or "generation 1 has formed")
    job.beat(w0=("compute", 0.0, ""), w1=("compute", 0.0, ""), w2=("compute", 0.0, ""))
    assert job.machine.view()["reason"] == "generation 1 has formed"


@pytest.mark.parametrize(
    ("phase", "evicted"), [("compute", True), ("reduce", True), ("first step", False), ("waiting", False)]
)
def test_who_stands_for_the_stall_timeout_is_given_up(phase: str, evicted: bool) -> None:
    job = Job().beat(w0=("reduce", 61.0, "w1"), w1=(phase, 61.0, ""), w2=("reduce", 61.0, "w1"))
    assert bool(job.told("verdict")) is evicted
    assert job.told("verdict") in ([], ["no progress for 61 s while others waited"])
