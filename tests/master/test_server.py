"""The loop on real sockets with a machine that does what is written here."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from godmw.membership import actions as act
from godmw.membership import records as rec
from godmw.membership.events import PeerGone, Received
from godmw.protocol import messages as msg
from tests.fakes.machine import TOKEN, Peer, Served, kinds

WELCOME = msg.Welcome(
    worker="w0", incarnation=1, run_dir="", seed=-1, lease_s=2.0, beat_s=0.25, orphan_s=600.0
)
LEAVE = msg.Leave(reason="done")


def welcome(event: Any) -> list[Any]:
    match event:
        case Received(peer, _, msg.Join()):
            return [act.Send(peer, WELCOME)]
    return []


def test_a_message_becomes_an_event_and_a_send_goes_back_under_the_masters_header(tmp_path: Path) -> None:
    with Served(tmp_path, welcome) as served:
        peer = Peer(served.address)
        peer.join()
        header, message = peer.receive()
        assert message == WELCOME
        assert (header.job, header.term, header.generation, header.sender) == ("scripted", 3, 7, "")
        (event,) = served.machine.heard(msg.Join)
        assert event.header.sender == "w0"
        peer.close()


def test_a_closed_connection_is_told_after_its_last_message_and_before_anything_times_out(
    tmp_path: Path,
) -> None:
    with Served(tmp_path, welcome) as served:
        peers = [Peer(served.address, f"w{number}") for number in range(3)]
        for peer in peers:
            peer.join()
            peer.receive()
        peers[1].say(LEAVE)
        assert served.machine.heard(msg.Leave)
        peers[1].close()
        (gone,) = served.machine.heard(PeerGone)
        middle = [event.peer for event in served.machine.heard(msg.Join, 3)][1]
        assert gone.peer == middle
        assert kinds(served.machine.events) == ["Join", "Join", "Join", "Leave", "PeerGone"]
        for peer in (peers[0], peers[2]):
            peer.say(LEAVE)
        served.machine.heard(msg.Leave, 3)
        again = Peer(served.address, "w1")
        again.join()
        joined = served.machine.heard(msg.Join, 4)[3]
        assert joined.peer != middle, "routing ids are not used again"
        for peer in (peers[0], peers[2], again):
            peer.close()
        assert {event.peer for event in served.machine.heard(PeerGone, 4)} == {
            event.peer for event in served.machine.heard(msg.Join, 4)
        }


def test_strangers_do_not_reach_the_machine_and_do_not_harm(tmp_path: Path) -> None:
    with Served(tmp_path, welcome) as served:
        stranger = Peer(served.address, "w9")
        for frames in ((b"junk",), (b"",), (b"a", b"b", b"c"), (b"\xdc\xff\xff",), (b"\xc1" * 70000,)):
            stranger.raw(*frames)
        stranger.say(LEAVE)
        stranger.join(token=TOKEN + "!")
        _, refused = stranger.receive()
        assert isinstance(refused, msg.Refused)
        assert refused.code == 77
        peer = Peer(served.address)
        peer.join()
        assert peer.receive()[1] == WELCOME
        assert kinds(served.machine.events) == ["Join"]
        peer.close()
        stranger.close()


def test_a_frame_over_the_limit_costs_its_sender_the_connection(tmp_path: Path) -> None:
    with Served(tmp_path, welcome) as served:
        flooder, peer = Peer(served.address, "w9"), Peer(served.address)
        flooder.raw(b"x" * (9 * 1024 * 1024))
        peer.join()
        assert peer.receive()[1] == WELCOME
        assert flooder.silent()
        flooder.close()
        peer.close()


def test_a_record_is_durable_before_the_send_behind_it(tmp_path: Path) -> None:
    seen: list[int] = []

    def script(event: Any) -> list[Any]:
        match event:
            case Received(peer, _, msg.Join()):
                return [act.Record(rec.AbortMade(4)), act.Send(peer, msg.Abort(number=4, reason="r"))]
        return []

    with Served(tmp_path, script) as served:
        send = served.router.send

        def spy(peer: str, data: bytes) -> bool:
            with sqlite3.connect(tmp_path / "journal.db") as file:
                seen.append(file.execute("SELECT count(*) FROM records").fetchone()[0])
            file.close()
            return send(peer, data)

        served.router.send = spy  # type: ignore[method-assign]
        peer = Peer(served.address)
        peer.join()
        assert peer.receive()[1] == msg.Abort(number=4, reason="r")
        assert seen == [1]
        peer.close()


def test_a_subscriber_gets_every_event_that_is_logged(tmp_path: Path) -> None:
    def script(event: Any) -> list[Any]:
        return [act.Log("left", {"worker": "w0", "reason": "done"})] if kinds([event]) == ["Leave"] else []

    with Served(tmp_path, script) as served:
        admin, worker = Peer(served.address, "admin-1"), Peer(served.address)
        number = admin.say(msg.Subscribe(token=admin.token))
        _, first = admin.receive()
        assert isinstance(first, msg.Reply)
        assert json.loads(first.body) == {"kind": "subscribed", "run_dir": str(tmp_path)}
        worker.join()
        worker.say(LEAVE)
        _, event = admin.receive()
        assert isinstance(event, msg.Reply)
        assert event.request == number
        body = json.loads(event.body)
        assert (body["kind"], body["worker"]) == ("left", "w0")
        assert 0 <= body["since_s"] < 10 < 1.6e9 < body["t"]
        line = json.loads((tmp_path / "events.jsonl").read_text())
        assert line == body
        worker.close()
        admin.close()


def test_a_peer_that_reads_nothing_is_given_up_and_costs_no_more_than_its_queue(tmp_path: Path) -> None:
    words = msg.Notice(text="x" * 4096)

    def script(event: Any) -> list[Any]:
        match event:
            case Received(peer, _, msg.Leave()):
                return [act.Send(peer, words) for _ in range(10_000)]
        return []

    with Served(tmp_path, script) as served:
        frozen, lively = Peer(served.address), Peer(served.address, "w1")
        frozen.join()
        frozen.say(LEAVE)
        served.machine.heard(PeerGone)
        lively.join()
        served.machine.heard(msg.Join, 2)
        frozen.close()
        lively.close()


def test_a_stop_from_outside_ends_the_loop(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.server.ask_stop("the master got SIGTERM")
        served.wait()
        assert served.ended == act.EndJob("stopped", 75, "the master got SIGTERM")


def test_what_no_coordinator_asks_for_is_an_error(tmp_path: Path) -> None:
    with Served(tmp_path) as served, pytest.raises(TypeError, match="does not ask for Abandon"):
        served.server.performer.perform([act.Abandon(1)])


def test_the_machine_is_told_the_time_however_much_is_heard(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        peer = Peer(served.address)
        peer.join()
        while len([kind for kind in kinds(served.machine.events) if kind == "Tick"]) < 3:
            for _ in range(50):
                peer.say(LEAVE)
            served.machine.heard(msg.Leave, 50)
        peer.close()
