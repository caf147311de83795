"""The workers' door: framing under bounds, the token, order, deadlines, and an end that waits for nobody."""

import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from godmw.collectives.endpoint import MAX_HELLO_BYTES, Endpoint
from godmw.collectives.frames import MAX_FRAME_BYTES, Connection, Message, PeerError, decode, encode, resolve

TOKEN = "the job's own"


@pytest.fixture
def door() -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", TOKEN).start()
    yield endpoint
    endpoint.close()


@pytest.fixture
def other() -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", TOKEN).start()
    yield endpoint
    endpoint.close()


def raw(address: str) -> socket.socket:
    family, where = resolve(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(5)
    sock.connect(where)
    return sock


def test_a_frame_is_its_length_and_a_map() -> None:
    assert encode({"a": 1}) == b"\x00\x00\x00\x04\x81\xa1a\x01"
    assert decode(b"\x81\xa1a\x01") == {"a": 1}
    for body in (b"\x01", b"\x93\x01\x02\x03", b"\x81\xa1a", b"", b"\xc1", b"\x81\x01\x01"):
        with pytest.raises(PeerError):
            decode(body)
    with pytest.raises(ValueError, match="at most"):
        encode({"a": b"x" * MAX_FRAME_BYTES})


def test_posts_arrive_in_order(door: Endpoint, other: Endpoint) -> None:
    heard: queue.Queue[Message] = queue.Queue()
    door.hear("note", heard.put)
    for number in range(200):
        other.post(door.address, "note", {"number": number, "padding": b"x" * 5000})
    assert [heard.get(timeout=5)["number"] for _ in range(200)] == list(range(200))


def test_a_post_to_nobody_is_dropped_and_others_hear(door: Endpoint, other: Endpoint) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, so that nobody else listens there
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        heard: queue.Queue[Message] = queue.Queue()
        other.hear("note", heard.put)
        for number in range(5):
            door.post(address, "note", {"number": number})
            door.post(other.address, "note", {"number": number})
        assert [heard.get(timeout=5)["number"] for _ in range(5)] == list(range(5))


def test_a_peer_that_hangs_up_is_reached_again(door: Endpoint, other: Endpoint) -> None:
    """Garbage makes the peer close the connection; once forgotten, the next post goes over a new one."""
    heard: queue.Queue[Message] = queue.Queue()
    other.hear("note", heard.put)
    door.post(other.address, "nonsense", {})
    deadline = time.monotonic() + 5
    while heard.empty():
        assert time.monotonic() < deadline
        door.forget(other.address)
        door.post(other.address, "note", {})
        time.sleep(0.01)


def test_a_request_is_served_on_a_thread_of_its_own_with_bulk_data(door: Endpoint, other: Endpoint) -> None:
    data = bytes(range(256)) * 4096

    def serve(connection: Connection, message: Message) -> None:
        assert message == {"want": "all"}
        connection.send({"bytes": len(data), "thread": threading.current_thread().name})
        connection.send_bytes(data)

    door.on("state", serve)
    with other.request(door.address, "state", {"want": "all"}, 5) as connection:
        head = connection.receive(5)
        assert head == {"bytes": len(data), "thread": "godmw-serve-state"}
        target = bytearray(len(data))
        connection.receive_into(memoryview(target), 5)
        assert target == data
        with pytest.raises(PeerError, match="closed"):
            connection.receive(5)


def test_without_the_token_nothing_is_heard(door: Endpoint) -> None:
    heard: queue.Queue[Message] = queue.Queue()
    door.hear("note", heard.put)
    note = encode({"kind": "note"})
    for hello in (
        encode({"token": "another's"}),
        encode({"token": 7}),
        encode({}),
        note,
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with raw(door.address) as sock:
            sock.sendall(hello + note)
            assert ended(sock)
    assert heard.empty()
    with raw(door.address) as sock:
        sock.sendall(encode({"token": TOKEN}) + note)
        heard.get(timeout=5)


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_lengths_are_bounded_before_they_are_believed(door: Endpoint) -> None:
    with raw(door.address) as sock:
        sock.sendall((MAX_HELLO_BYTES + 1).to_bytes(4, "big"))
        assert ended(sock)
    with raw(door.address) as sock:
        sock.sendall(encode({"token": TOKEN}) + (MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
        assert ended(sock)


def test_a_message_in_pieces_is_one_message(door: Endpoint) -> None:
    heard: queue.Queue[Message] = queue.Queue()
    door.hear("note", heard.put)
    with raw(door.address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in encode({"token": TOKEN}) + encode({"kind": "note", "x": 1}):
            sock.sendall(bytes([byte]))
        assert heard.get(timeout=5) == {"x": 1}


def test_unknown_kinds_end_the_connection_not_the_door(door: Endpoint, other: Endpoint) -> None:
    with other.request(door.address, "nonsense", {}, 5) as connection, pytest.raises(PeerError):
        connection.receive(5)
    heard: queue.Queue[Message] = queue.Queue()
    door.hear("note", heard.put)
    other.post(door.address, "note", {})
    heard.get(timeout=5)


def test_a_silent_server_is_named_at_the_deadline(door: Endpoint, other: Endpoint) -> None:
    held = threading.Event()
    door.on("state", lambda connection, message: held.wait(10) and None)
    with other.request(door.address, "state", {}, 5) as connection:
        began = time.monotonic()
        with pytest.raises(PeerError, match=door.address):
            connection.receive(0.1)
        assert time.monotonic() - began < 2
    held.set()


def test_closing_ends_what_is_being_served_and_waits_for_nobody(door: Endpoint, other: Endpoint) -> None:
    began: queue.Queue[int] = queue.Queue()
    failed: queue.Queue[PeerError] = queue.Queue()

    def serve(connection: Connection, message: Message) -> None:
        began.put(1)
        try:
            connection.receive(30)
        except PeerError as error:
            failed.put(error)

    door.on("state", serve)
    with other.request(door.address, "state", {}, 5) as connection:
        began.get(timeout=5)
        before = time.monotonic()
        door.close()
        assert time.monotonic() - before < 0.5
        failed.get(timeout=5)
        with pytest.raises(PeerError):
            connection.receive(5)


def test_an_address_that_is_none_says_so(door: Endpoint) -> None:
    for address in ("nowhere", "127.0.0.1:http:x", "127.0.0.1:"):
        with pytest.raises(PeerError, match="no such address"):
            door.post(address, "note", {})
    with pytest.raises(PeerError, match="no connection"):
        door.request("127.0.0.1:1", "state", {}, 1)
