"""Bytes against a real master: what is no message is dropped, and the master goes on."""

from pathlib import Path

import pytest

from godmw.protocol import messages as msg
from godmw.protocol import wire
from godmw.testing import RawPeer
from tests.fakes.machine import Served

RUBBISH = [b"", b"\xc1", b"\x91" * 1000, b"\xdd\xff\xff\xff\xff", b"\x9a\x01\x16", bytes(range(256))]


@pytest.mark.timeout(30)
def test_rubbish_is_dropped_and_the_master_goes_on(tmp_path: Path) -> None:
    with Served(tmp_path, real=True) as served, RawPeer(served.address.format()) as peer:
        for data in RUBBISH:
            peer.send_bytes(data)
        peer.send_bytes(b"two", b"frames")
        number = peer.send(msg.Status(token=peer.token), sender="raw")
        answer = peer.receive()
        assert answer is not None
        header, reply = answer
        assert isinstance(reply, msg.Reply)
        assert (reply.request, reply.code, header.term) == (number, 0, 1)
        assert peer.receive_bytes(patience_s=0.05) is None, "rubbish is not answered"


@pytest.mark.timeout(30)
def test_another_version_is_told_so(tmp_path: Path) -> None:
    with Served(tmp_path, real=True) as served, RawPeer(served.address.format()) as peer:
        status = msg.Status(token=peer.token)
        header = wire.header_of(
            status, job="", term=0, generation=0, sender="raw", incarnation=0, sequence=1
        )
        frame = bytearray(wire.encode(header, status))
        assert frame[1] == msg.VERSION
        frame[1] = 99
        peer.send_bytes(bytes(frame))
        answer = peer.receive()
        assert answer is not None
        assert isinstance(answer[1], msg.Refused)
        assert answer[1].code == 76
