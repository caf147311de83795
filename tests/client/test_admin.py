"""The admin client answers, says what was answered, or says within two seconds that nobody does."""

import socket
import time
from pathlib import Path

import pytest

from godmw.client.admin import Admin
from godmw.config import JoinAddress
from godmw.errors import Refused, Unreachable, UsageError
from godmw.membership.actions import Log
from godmw.protocol import messages as msg
from tests.fakes.machine import TOKEN, Peer, Served, join


def test_a_request_is_answered(tmp_path: Path) -> None:
    with Served(tmp_path) as served, Admin(served.address) as admin:
        for _ in range(3):
            assert admin.request(msg.Status(token=TOKEN))["step"] == 5


def test_a_refusal_has_the_masters_words_code_and_hint(tmp_path: Path) -> None:
    with Served(tmp_path, real=True) as served, Admin(served.address) as admin:
        with pytest.raises(UsageError, match="no worker 'w7' is running") as refused:
            admin.request(msg.Drain(token=TOKEN, worker="w7"))
        assert refused.value.hint == "running: none"
        with pytest.raises(Refused, match="the token is not this job's") as denied:
            admin.request(msg.Status(token="x"))
        assert denied.value.code == 77


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begin = time.monotonic()
    with (
        Admin(JoinAddress("127.0.0.1", port, "t")) as admin,
        pytest.raises(Unreachable, match=rf"no master answers at godmw://127\.0\.0\.1:{port}: .*refused"),
    ):
        admin.request(msg.Status(token="t"))
    assert time.monotonic() - begin < 0.5


def test_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = JoinAddress("127.0.0.1", mute.getsockname()[1], "t")
        begin = time.monotonic()
        with (
            Admin(address, timeout_s=0.3) as admin,
            pytest.raises(Unreachable, match=r"did not answer within 0\.3 s"),
        ):
            admin.request(msg.Status(token="t"))
        assert 0.25 < time.monotonic() - begin < 1.0
        assert Admin(address)._timeout_s < 1.9, "and the default leaves time to start and to print"


def test_events_are_followed(tmp_path: Path) -> None:
    with (
        Served(tmp_path, lambda event: [Log("noise", {"reason": "heard"})]) as served,
        Admin(served.address) as admin,
    ):
        events = admin.follow(idle_s=5.0)
        first = next(events)
        assert first is not None
        assert first["run_dir"] == str(tmp_path)
        worker = Peer(served.address)
        worker.say(join(TOKEN))
        event = next(events)
        assert event is not None
        assert (event["kind"], event["reason"]) == ("noise", "heard")
        worker.close()
