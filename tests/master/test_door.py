"""Who is heard, who is answered, and what is only counted."""

import json
import logging

import pytest

from godmw.master.door import Door, Let, Turned
from godmw.protocol import messages as msg
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from tests.fakes.machine import TOKEN, join

BEAT = msg.Heartbeat(
    position=0, progress=0, phase="step", where="", waits_for="", idle_s=0.0, limit_s=0.0, applied=0
)


def frame(message: Checked, sequence: int = 4) -> bytes:
    header = wire.header_of(
        message, job="", term=1, generation=0, sender="w0", incarnation=1, sequence=sequence
    )
    return wire.encode(header, message)


def test_a_worker_with_the_token_is_heard_from_then_on() -> None:
    door = Door(TOKEN)
    assert door.judge("aa", frame(BEAT)) == Turned()
    introduced = door.judge("aa", frame(join(TOKEN)))
    assert isinstance(introduced, Let)
    assert introduced.message == join(TOKEN)
    assert isinstance(door.judge("aa", frame(BEAT)), Let)
    assert door.judge("bb", frame(BEAT)) == Turned(), "another connection has shown nothing"
    door.forget("aa")
    assert door.judge("aa", frame(BEAT)) == Turned()
    assert door.counts == {"stranger": 3}


def test_an_admin_shows_the_token_with_every_request() -> None:
    door = Door(TOKEN)
    assert isinstance(door.judge("aa", frame(msg.Status(token=TOKEN))), Let)
    assert door.judge("aa", frame(BEAT)) == Turned(), "a request introduces nobody"


def test_a_wrong_token_is_refused_with_77() -> None:
    door = Door(TOKEN)
    turned = door.judge("aa", frame(join(TOKEN + "x")))
    assert isinstance(turned, Turned)
    assert isinstance(turned.answer, msg.Refused)
    assert turned.answer.code == 77
    assert door.judge("aa", frame(BEAT)) == Turned()


def test_an_admin_with_a_wrong_token_gets_its_reply() -> None:
    turned = Door(TOKEN).judge("aa", frame(msg.Stop(token="", reason="no"), sequence=9))
    assert isinstance(turned, Turned)
    assert isinstance(turned.answer, msg.Reply)
    assert (turned.answer.request, turned.answer.code) == (9, 77)
    assert json.loads(turned.answer.body)["error"] == "the token is not this job's"


def test_another_version_is_answered_with_76() -> None:
    data = bytearray(frame(join(TOKEN)))
    assert data[3] == msg.VERSION  # array 16 with its length, then the version
    data[3] = msg.VERSION + 1
    turned = Door(TOKEN).judge("aa", bytes(data))
    assert isinstance(turned, Turned)
    assert isinstance(turned.answer, msg.Refused)
    assert turned.answer.code == 76


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n", b"\xc1" * 100, frame(join(TOKEN))[:-3]])
def test_junk_is_counted_and_logged_once_a_connection(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(TOKEN)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert door.judge("aa", data) == Turned()
        door.judge("bb", data)
    assert sum(door.counts.values()) == 6
    assert len(caplog.records) == 2
    assert TOKEN not in caplog.text


def test_what_the_master_says_is_not_heard_from_outside() -> None:
    door = Door(TOKEN)
    door.judge("aa", frame(join(TOKEN)))
    assert door.judge("aa", frame(msg.Abort(number=1, reason=""))) == Turned()
    assert door.counts == {"kind": 1}
