"""Frames between workers and a blocking connection that carries them.

A frame is a 4-byte big-endian length and a MessagePack map; bulk data (tensors) follows a message
unframed, its size said in the message. Every length is bounded before it is believed and nothing is
unpickled. Whatever a peer does wrong, being silent past a deadline included, is one kind of error,
PeerError. Knows no kind of message.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import msgpack

MAX_FRAME_BYTES = 1 << 20  # a message; bulk data follows a message unframed
LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class PeerError(OSError):
    """A peer could not be reached, went away, was silent past the deadline, or sent what may not be."""


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as one frame."""
    body: bytes = msgpack.packb(dict(message), use_bin_type=True)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes, at most {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray) -> Message:
    """The map in a frame's body; raises PeerError for anything else."""
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True, max_ext_len=0)
    except Exception as error:  # msgpack raises many kinds; all mean the same here
        raise PeerError(f"a frame that is not MessagePack: {error}") from error
    if not isinstance(message, dict):
        raise PeerError(f"a frame that holds {type(message).__name__}, a map was expected")
    return message


def resolve(address: str) -> tuple[int, Any]:
    """`host:port` or `[v6]:port` -> (socket family, socket address). May look a name up."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise PeerError(f"no such address: {address!r} ({error})") from error
    family, _, _, _, where = found[0]
    return family, where


class Connection:
    """A blocking connection to one peer. A call's deadline in seconds is for the whole of it; None waits."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(True)
        self._sock, self.peer = sock, peer

    def send(self, message: Mapping[str, Any], deadline_s: float | None = None) -> None:
        self.send_bytes(encode(message), deadline_s)

    def receive(self, deadline_s: float | None = None) -> Message:
        ends = None if deadline_s is None else time.monotonic() + deadline_s
        head = bytearray(4)
        self._fill(memoryview(head), ends)
        (length,) = LENGTH.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise PeerError(f"{self.peer} sent a frame of {length} bytes, at most {MAX_FRAME_BYTES}")
        body = bytearray(length)
        self._fill(memoryview(body), ends)
        return decode(body)

    def send_bytes(self, data: Any, deadline_s: float | None = None) -> None:
        """Bulk data: any contiguous buffer, unframed; the peer learned its size from a message."""
        try:
            self._sock.settimeout(deadline_s)
            self._sock.sendall(data)
        except OSError as error:
            raise PeerError(f"{self.peer}: sending failed: {error}") from error

    def receive_into(self, view: memoryview, deadline_s: float | None = None) -> None:
        """Fills `view` (writable, contiguous) with bulk data."""
        self._fill(view.cast("B"), None if deadline_s is None else time.monotonic() + deadline_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, view: memoryview, ends: float | None) -> None:
        try:
            while len(view):
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    raise PeerError(f"{self.peer}: silent past the deadline, {len(view)} bytes short")
                self._sock.settimeout(left)
                count = self._sock.recv_into(view)
                if not count:
                    raise PeerError(f"{self.peer} closed the connection, {len(view)} bytes short")
                view = view[count:]
        except PeerError:
            raise
        except OSError as error:
            raise PeerError(f"{self.peer}: receiving failed: {error}") from error
