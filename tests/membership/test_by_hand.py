"""A worker that was started by hand has no name until it is welcomed, and says Join until then."""

from godmw.config import JobSettings
from godmw.membership import actions as act
from godmw.membership import events as ev
from godmw.membership.coordinator import Coordinator
from godmw.protocol import messages as msg
from godmw.protocol.wire import header_of


def join(pid: int, address: str) -> msg.Join:
    return msg.Join(
        token="t", agent="", host="here", pid=pid, address=address, generation=0, position=-1, abort=0,
        held=(), prepared=False, ended=False,
    )  # fmt: skip


def welcomed(master: Coordinator, peer: str, message: msg.Join) -> str:
    """The name that a nameless Join over this connection is answered with."""
    header = header_of(message, job="", term=0, generation=0, sender="", incarnation=0, sequence=1)
    actions = master.step(ev.Received(peer, header, message), 0.0)
    names = [
        a.message.worker for a in actions if isinstance(a, act.Send) and isinstance(a.message, msg.Welcome)
    ]
    assert len(names) == 1
    return names[0]


def test_it_is_one_worker_however_often_it_says_join() -> None:
    master = Coordinator(JobSettings(token="t"))
    master.start(0.0)
    assert welcomed(master, "peer-1", join(11, "127.0.0.1:5001")) == "w0"
    assert welcomed(master, "peer-1", join(11, "127.0.0.1:5001")) == "w0"
    assert welcomed(master, "peer-2", join(11, "127.0.0.1:5001")) == "w0"  # over another connection
    assert welcomed(master, "peer-3", join(12, "127.0.0.1:5002")) == "w1"
    assert welcomed(master, "peer-4", join(13, "127.0.0.1:5001")) == "w2"  # another process at its address
    assert [worker["id"] for worker in master.view()["workers"]] == ["w0", "w1", "w2"]
