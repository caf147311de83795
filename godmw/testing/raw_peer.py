"""Bytes against a real master: one connection that says exactly what a test gives it.

The only module of this room that knows a socket.  `RawPeer` is a ZeroMQ DEALER without any of the manners
of a worker: it registers only if told to, sends frames as they are, and shows what comes back, as bytes or
decoded.
"""

from __future__ import annotations

from types import TracebackType

import zmq

from godmw.config import JoinAddress
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.protocol.messages import Header

PATIENCE_S = 2.0


class RawPeer:
    """A connection to the master at `address`, ``godmw://HOST:PORT[/TOKEN]``; a context manager.  `token`
    is the address's, for messages that carry one.
    """

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S) -> None:
        place = JoinAddress.parse(address)
        self.token = place.token
        self._patience_s = patience_s
        self._sequence = 0
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1 if ":" in place.host else 0)
        self._socket.connect(f"tcp://{place.endpoint}")

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at once; what was not sent is dropped."""
        self._socket.close()

    def send_bytes(self, *frames: bytes) -> None:
        """One ZeroMQ message of these frames, as they are."""
        self._socket.send_multipart(list(frames))

    def send(
        self, message: Checked, *, job: str = "", term: int = 0, generation: int = 0, sender: str = "",
        incarnation: int = 0,
    ) -> int:  # fmt: skip
        """A valid message under any header; returns its sequence number."""
        self._sequence += 1
        header = wire.header_of(
            message, job=job, term=term, generation=generation, sender=sender, incarnation=incarnation,
            sequence=self._sequence,
        )  # fmt: skip
        self.send_bytes(wire.encode(header, message))
        return self._sequence

    def receive_bytes(self, patience_s: float | None = None) -> list[bytes] | None:
        """The frames of the next message, or None when none has come in time."""
        wait_s = self._patience_s if patience_s is None else patience_s
        if not self._socket.poll(int(wait_s * 1000)):
            return None
        return self._socket.recv_multipart()

    def receive(self, patience_s: float | None = None) -> tuple[Header, Checked] | None:
        """The next message, or None when none has come in time.  Raises WireError on what is none."""
        frames = self.receive_bytes(patience_s)
        return None if frames is None else wire.decode(frames[-1])
