"""A joiner whose data port cannot be reached: named, given up after two attempts, and the others go on."""

import pytest

from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.participant import Participant
from godmw.membership.selfportrait import Identity
from godmw.protocol import messages as msg
from godmw.protocol.wire import header_of
from godmw.testing import Cluster


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_joiner_that_no_member_can_reach_is_forgotten(workers: int) -> None:
    job = Cluster(workers=workers, shards=6, steps=400, seed=7)
    job.run_until(step=2)
    job.add_worker("elsewhere")
    name = f"w{workers}"
    job.run_until(said=f"Welcome worker={name}")
    for member in range(workers):
        job.cut(f"w{member}", name)
    before = len({abort.number for abort in job.sent(msg.Abort)})
    job.run_until(said=f"{name}: exits 77")
    (told,) = job.sent(msg.Refused, to=name)[:1]
    others = ", ".join(f"w{member}" for member in range(workers))
    assert told.reason.endswith(f") and {others} can be made, after 2 attempts")
    assert told.hint.startswith(f"let the hosts of {others} reach elsewhere:")
    step = job.step
    job.run_until(step=step + 5)
    assert len(job.members) == workers
    assert len({abort.number for abort in job.sent(msg.Abort)}) == before + 1
    job.check()


def test_it_is_taken_in_when_it_can_be_reached_before_that() -> None:
    job = Cluster(workers=2, shards=6, steps=400, seed=7)
    job.run_until(step=2)
    job.add_worker("elsewhere")
    job.run_until(said="Welcome worker=w2")
    job.cut("w0", "w2")
    job.run_until(said="LinkBroken peer=w2")
    job.mend("w0", "w2")
    job.run_until(step=10)
    assert job.members == ("w0", "w1", "w2")
    assert job.sent(msg.Abort) == []
    job.check()


def test_a_joiner_says_that_it_can_reach_no_donor() -> None:
    who = Identity(worker="w2", incarnation=1, agent="", host="h", pid=7, address="h:3", token="t")
    joiner = Participant(who, beat_s=0.25, orphan_s=60.0, now_s=0.0)
    members = tuple(msg.Member(worker=w, incarnation=1, address=f"h:{w}") for w in ("w0", "w2"))
    plan = msg.Plan(
        number=4, planned=True, members=members, donors=members[:1], start=-1, shards=0, added=(), reason="",
    )  # fmt: skip
    welcome = msg.Welcome(
        worker="w2", incarnation=1, run_dir="", seed=0, lease_s=2.0, beat_s=0.25, orphan_s=60.0
    )
    joiner.step(ev.MasterBack(), 0.0)
    joiner.prepare(msg.Prepared(settings=b"", model=b"", data=b"", shards=8, seed=-1, detail=""))
    for message in (welcome, plan):
        header = header_of(message, job="j", term=1, generation=0, sender="", incarnation=0, sequence=1)
        joiner.step(ev.Received("", header, message), 0.1)
    said = act.Send("", msg.LinkBroken(peer="w0", stage="state"))
    assert joiner.step(ev.LinksBroken(4, "w0", "state"), 0.2) == [said]
    assert joiner.step(ev.LinksBroken(3, "w0", "state"), 0.2) == []  # of a plan that is not held
