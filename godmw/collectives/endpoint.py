"""A worker's door for other workers: one TCP listener, small framed messages, and blocking connections.

Members push rendezvous keys to each other through it (`post`, heard by `hear` handlers on the loop
thread) and a joiner fetches state through it (`request`, answered by `on` handlers, each on a thread of
its own). The first frame of a connection carries the job's token, and a connection without it is closed.
Nothing is bound before `start`, and closing never waits for a peer. The endpoint knows no generation, no
tensor, no training.
"""

import contextlib
import hmac
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from godmw.collectives.frames import (
    LENGTH,
    MAX_FRAME_BYTES,
    Connection,
    Message,
    PeerError,
    decode,
    encode,
    resolve,
)

log = logging.getLogger(__name__)

MAX_HELLO_BYTES = 1 << 10
MAX_STRANGERS = 64  # connections that have not shown the token yet
HELLO_DEADLINE_S = 5.0
MAX_QUEUED_BYTES = 8 << 20  # unsent bytes kept for one peer


class _Incoming:
    """An accepted connection that the loop reads: first the token, then messages."""

    def __init__(self, sock: socket.socket, peer: str, born_s: float) -> None:
        self.sock, self.peer, self.born_s = sock, peer, born_s
        self.buffer = bytearray()
        self.known = False

    def frame(self) -> bytes | None:
        """The next whole frame's body, None if it is not all there."""
        if len(self.buffer) < 4:
            return None
        (length,) = LENGTH.unpack_from(self.buffer)
        limit = MAX_FRAME_BYTES if self.known else MAX_HELLO_BYTES
        if length > limit:
            raise PeerError(f"a frame of {length} bytes, at most {limit} here")
        if len(self.buffer) < 4 + length:
            return None
        body = bytes(self.buffer[4 : 4 + length])
        del self.buffer[: 4 + length]
        return body


class _Outgoing:
    """A connection on which the loop sends what was posted; dropped, with its queue, at the first error."""

    def __init__(self, address: str, sock: socket.socket) -> None:
        self.address, self.sock = address, sock
        self.queue: deque[memoryview] = deque()
        self.queued_bytes = 0


class Endpoint:
    """The listener of one worker process and its loop thread. Nothing is bound before `start`."""

    def __init__(self, host: str, token: str, port: int = 0) -> None:
        self.host, self._token, self._port = host, token, port
        self._hearers: dict[str, Callable[[Message], None]] = {}
        self._servers: dict[str, Callable[[Connection, Message], None]] = {}
        self._outgoing: dict[str, _Outgoing] = {}
        self._serving: set[Connection] = set()
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self.address = ""

    # ---- any thread ----

    def start(self) -> "Endpoint":
        family, where = resolve(f"[{self.host}]:{self._port}")
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
        listener.setblocking(False)
        port = listener.getsockname()[1]
        self.address = f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
        self._listener = listener
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakes)
        threading.Thread(target=self._run, name="godmw-endpoint", daemon=True).start()
        return self

    def hear(self, kind: str, handler: Callable[[Message], None]) -> None:
        """`handler(message)` for each posted message of the kind, on the loop thread: it must not block."""
        self._hearers[kind] = handler

    def on(self, kind: str, handler: Callable[[Connection, Message], None]) -> None:
        """`handler(connection, message)` for each request of the kind, on a daemon thread of its own."""
        self._servers[kind] = handler

    def post(self, address: str, kind: str, message: Mapping[str, Any]) -> None:
        """One message, one way, in order per address, best effort; returns at once."""
        target = resolve(address)
        frame = memoryview(encode({**message, "kind": kind}))
        self._call(lambda: self._queue(address, target, frame))

    def forget(self, address: str) -> None:
        """Drops the connection kept for `post`, so that the next message goes over a fresh one."""
        self._call(lambda: self._drop(address))

    def request(self, address: str, kind: str, message: Mapping[str, Any], deadline_s: float) -> Connection:
        """Connects to a peer's `on` handler and sends the request; the caller receives and closes."""
        family, where = resolve(address)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline_s)
            sock.connect(where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(self._hello() + encode({**message, "kind": kind}))
        except OSError as error:
            sock.close()
            raise PeerError(f"{address}: no connection: {error}") from error
        return Connection(sock, address)

    def close(self) -> None:
        """Closes every socket, those of running handlers too; returns at once."""
        self._closed = True
        with self._lock:
            serving = list(self._serving)
        for connection in serving:
            connection.close()
        self._wake()

    # ---- the loop's own ----

    def _hello(self) -> bytes:
        return encode({"token": self._token})

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # full: it is awake; absent: not started
            self._waker.send(b"\0")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(timeout=HELLO_DEADLINE_S):
                key.data()
            while self._calls:
                self._calls.popleft()()
            self._dismiss_silent_strangers()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._waker.close()
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, peer = self._listener.accept()
                sock.setblocking(False)
                if sum(1 for _ in self._strangers()) >= MAX_STRANGERS:
                    sock.close()
                    continue
                incoming = _Incoming(sock, f"{peer[0]}:{peer[1]}", time.monotonic())
                self._selector.register(sock, selectors.EVENT_READ, _Reader(self._read, incoming))

    def _strangers(self) -> list[_Incoming]:
        readers = [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Reader)]
        return [reader.incoming for reader in readers if not reader.incoming.known]

    def _dismiss_silent_strangers(self) -> None:
        oldest_s = time.monotonic() - HELLO_DEADLINE_S
        for stranger in self._strangers():
            if stranger.born_s < oldest_s:
                self._hang_up(stranger, "silent")

    def _hang_up(self, incoming: _Incoming, why: str) -> None:
        log.debug("%s: connection closed: %s", incoming.peer, why)
        self._selector.unregister(incoming.sock)
        incoming.sock.close()

    def _read(self, incoming: _Incoming) -> None:
        try:
            data = incoming.sock.recv(1 << 16)
            if not data:
                raise PeerError("closed by the peer")
            incoming.buffer += data
            while (body := incoming.frame()) is not None:
                if self._take(incoming, decode(body)):
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._hang_up(incoming, str(error))

    def _take(self, incoming: _Incoming, message: Message) -> bool:
        """Handles one message; True when the connection has left the loop for a handler's thread."""
        if not incoming.known:
            token = message.get("token")
            given = token.encode() if isinstance(token, str) else b""
            if not hmac.compare_digest(given, self._token.encode()):
                log.warning("%s: a connection without this job's token was refused", incoming.peer)
                raise PeerError("wrong token")
            incoming.known = True
            return False
        kind = message.pop("kind", None)
        if not isinstance(kind, str):
            raise PeerError("a message without a kind")
        if kind in self._hearers:
            self._hearers[kind](message)
            return False
        if kind not in self._servers:
            raise PeerError(f"unknown kind {kind!r}")
        if incoming.buffer:
            raise PeerError("more than one request on a connection")
        self._selector.unregister(incoming.sock)
        connection = Connection(incoming.sock, incoming.peer)
        threading.Thread(
            target=self._serve, args=(kind, connection, message), name=f"godmw-serve-{kind}", daemon=True
        ).start()
        return True

    def _serve(self, kind: str, connection: Connection, message: Message) -> None:
        with self._lock:
            self._serving.add(connection)
        try:
            self._servers[kind](connection, message)
        except PeerError as error:
            log.info("serving %s ended early: %s", kind, error)
        finally:
            connection.close()
            with self._lock:
                self._serving.discard(connection)

    def _queue(self, address: str, target: tuple[int, Any], frame: memoryview) -> None:
        peer = self._outgoing.get(address)
        if peer is None:
            sock = socket.socket(target[0], socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = self._outgoing[address] = _Outgoing(address, sock)
            peer.queue.append(memoryview(self._hello()))
            peer.queued_bytes = len(peer.queue[0])
            sock.connect_ex(target[1])  # an error shows at the first send
            self._selector.register(sock, selectors.EVENT_WRITE, lambda: self._flush(peer))
        elif peer.queued_bytes > MAX_QUEUED_BYTES:
            return
        elif not peer.queue:
            self._selector.modify(peer.sock, selectors.EVENT_WRITE, lambda: self._flush(peer))
        peer.queue.append(frame)
        peer.queued_bytes += len(frame)

    def _flush(self, peer: _Outgoing) -> None:
        try:
            while peer.queue:
                frame = peer.queue[0]
                sent = peer.sock.send(frame)
                peer.queued_bytes -= sent
                if sent < len(frame):
                    peer.queue[0] = frame[sent:]
                    return
                peer.queue.popleft()
            # nothing left to send: readable now means the peer has gone
            self._selector.modify(peer.sock, selectors.EVENT_READ, lambda: self._drop(peer.address))
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("%s: cannot be reached: %s", peer.address, error)
            self._drop(peer.address)

    def _drop(self, address: str) -> None:
        peer = self._outgoing.pop(address, None)
        if peer is not None:
            self._selector.unregister(peer.sock)
            peer.sock.close()


class _Reader:
    """The loop's callback for an incoming connection, with the connection in sight."""

    def __init__(self, read: Callable[[_Incoming], None], incoming: _Incoming) -> None:
        self.read, self.incoming = read, incoming

    def __call__(self) -> None:
        self.read(self.incoming)
