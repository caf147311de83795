"""The admin client: one ZeroMQ connection to a master, one question at a time.

Every request is answered within its deadline, refused with the master's own words, or `Unreachable`; an
address at which nothing listens is found out at once. The handle, the commands and the dashboard all go
through here. It must not know a run directory or a command line.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import zmq

from godmw import ids
from godmw.config import JoinAddress
from godmw.errors import (
    ExitCode,
    GodmwError,
    InternalError,
    Refused,
    Unreachable,
    UsageError,
    VersionMismatch,
)
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.protocol.messages import BY_CLASS, Direction, Reply, Subscribe
from godmw.protocol.messages import Refused as RefusedMessage

TIMEOUT_S = 1.5
HEARD = (Direction.MASTER_TO_ADMIN, Direction.MASTER_TO_PROCESS)  # a Refused may answer a stranger
ERRORS: dict[int, type[GodmwError]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.UNREACHABLE: Unreachable,
    ExitCode.VERSION: VersionMismatch,
    ExitCode.REFUSED: Refused,
}


class Admin:
    """A connection to the master at ``address``; opened by the first request, closed by ``close``."""

    def __init__(self, address: JoinAddress, *, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._name = ids.new_id("admin")
        self._sequence = 0
        self._socket: zmq.Socket[bytes] | None = None

    @property
    def token(self) -> str:
        """What every request carries."""
        return self._address.token

    def request(self, message: Checked) -> dict[str, Any]:
        """Send ``message``; returns the body of its reply.  Raises Unreachable, or the master's refusal."""
        deadline_s = time.monotonic() + self._timeout_s
        number = self._send(message, deadline_s)
        while True:
            reply = self._receive(deadline_s)
            if reply is None:
                self.close()
                raise self._silent()
            if reply.request == number:
                return _body(reply)

    def follow(self, *, idle_s: float) -> Iterator[dict[str, Any] | None]:
        """The subscription's answer, then every event; None whenever ``idle_s`` passed without one."""
        deadline_s = time.monotonic() + self._timeout_s
        self._send(Subscribe(token=self.token), deadline_s)
        first = self._receive(deadline_s)
        if first is None:
            self.close()
            raise self._silent()
        yield _body(first)
        while True:
            reply = self._receive(time.monotonic() + idle_s)
            yield None if reply is None else _body(reply)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def _send(self, message: Checked, deadline_s: float) -> int:
        self._sequence += 1
        header = wire.header_of(
            message, job="", term=0, generation=0, sender=self._name, incarnation=0, sequence=self._sequence
        )
        self._open(deadline_s).send(wire.encode(header, message), zmq.DONTWAIT)
        return self._sequence

    def _open(self, deadline_s: float) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._probe(deadline_s)
            self._socket = zmq.Context.instance().socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.IPV6, 1 if ":" in self._address.host else 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, BY_CLASS[Reply].limit_bytes)
            self._socket.connect(f"tcp://{self._address.endpoint}")
        return self._socket

    def _probe(self, deadline_s: float) -> None:
        """ZeroMQ retries a refused connection in silence; a plain socket says at once what is wrong."""
        wait_s = max(0.05, deadline_s - time.monotonic())
        place = (self._address.host, self._address.port)
        try:
            socket.create_connection(place, timeout=wait_s).close()
        except OSError as error:
            seen = error.strerror or str(error) or "no answer"
            raise Unreachable(
                f"no master answers at {self._address.bare()}: {seen}",
                hint="godmw master --run-dir DIR takes an unfinished job up again",
            ) from error

    def _receive(self, deadline_s: float) -> Reply | None:
        assert self._socket is not None
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._socket.poll(int(left_s * 1000) + 1):
                return None
            try:
                _, message = wire.decode(self._socket.recv(), HEARD)
            except wire.WireError as error:
                raise _unreadable(error, self._address) from error
            if isinstance(message, Reply):
                return message
            if isinstance(message, RefusedMessage):
                raise _error(message.code, message.reason, message.hint)

    def _silent(self) -> Unreachable:
        return Unreachable(
            f"the master at {self._address.bare()} did not answer within {self._timeout_s:g} s",
            hint="is it stopped, or is something else listening there?",
        )


def _unreadable(error: wire.WireError, address: JoinAddress) -> GodmwError:
    if error.code == "version":
        return VersionMismatch(
            f"the master at {address.bare()} speaks another version: {error.reason}",
            hint="install the same godmw on both sides: godmw --version",
        )
    return Refused(f"what answers at {address.bare()} does not speak godmw: {error.reason}")


def _body(reply: Reply) -> dict[str, Any]:
    try:
        body = json.loads(reply.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InternalError("the master's reply is not a JSON object")
    if reply.code:
        raise _error(reply.code, str(body.get("error") or "refused"), str(body.get("hint") or ""))
    return body


def _error(code: int, reason: str, hint: str) -> GodmwError:
    known = code in set(ExitCode)
    return ERRORS.get(code, GodmwError)(reason, code=code if known else None, hint=hint or None)
