"""The door: what a connection must show before the machine hears it.

Bytes become messages here or nowhere: what cannot be read is counted, logged once a connection and
dropped; the job's token is compared in constant time on every message that carries one; any other message
is taken only from a connection that has shown it. It answers strangers, never members, and knows no
socket.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import logging

from godmw.errors import ExitCode
from godmw.protocol import wire
from godmw.protocol.fields import Checked
from godmw.protocol.messages import BY_CLASS, AgentHello, Direction, Header, Join, Refused, Reply

log = logging.getLogger(__name__)

HEARD = (
    Direction.WORKER_TO_MASTER,
    Direction.AGENT_TO_MASTER,
    Direction.PROCESS_TO_MASTER,
    Direction.ADMIN_TO_MASTER,
)
INTRODUCTIONS = (Join, AgentHello)  # after one with the right token its connection may say the rest


@dataclasses.dataclass(frozen=True, slots=True)
class Let:
    """A valid message from somebody who has shown the token."""

    header: Header
    message: Checked


@dataclasses.dataclass(frozen=True, slots=True)
class Turned:
    """Not let in; ``answer`` is what to say, None: nothing."""

    answer: Checked | None = None


class Door:
    """The door of one job with ``token``; ``counts``: how many frames were dropped, by why."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._in: set[str] = set()
        self._noted: set[str] = set()
        self.counts: dict[str, int] = {}

    def judge(self, peer: str, data: bytes) -> Let | Turned:
        """What becomes of one frame from the connection ``peer``."""
        try:
            header, message = wire.decode(data, HEARD)
        except wire.WireError as error:
            self._drop(peer, error.code, error.reason)
            return Turned(_other_version(error.reason) if error.code == "version" else None)
        token = getattr(message, "token", None)
        if token is None:
            if peer in self._in:
                return Let(header, message)
            self._drop(peer, "stranger", f"{type(message).__name__} from one that has shown no token")
            return Turned()
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token):
            self._drop(peer, "token", f"{type(message).__name__} with a wrong token")
            return Turned(_wrong_token(header, message))
        if isinstance(message, INTRODUCTIONS):
            self._in.add(peer)
        return Let(header, message)

    def forget(self, peer: str) -> None:
        """The connection is closed."""
        self._in.discard(peer)
        self._noted.discard(peer)

    def _drop(self, peer: str, code: str, reason: str) -> None:
        self.counts[code] = self.counts.get(code, 0) + 1
        if peer not in self._noted:
            self._noted.add(peer)
            log.warning("dropped a frame of connection %s: %s (later ones are only counted)", peer, reason)


def _admin_request(message: Checked) -> bool:
    """Whether the answer to ``message`` is a Reply."""
    return BY_CLASS[type(message)].direction is Direction.ADMIN_TO_MASTER


def _wrong_token(header: Header, message: Checked) -> Checked:
    reason, hint = "the token is not this job's", "paste the GODMW_JOIN line that this job's master printed"
    if _admin_request(message):
        body = json.dumps({"error": reason, "hint": hint})
        return Reply(request=header.sequence, code=int(ExitCode.REFUSED), body=body)
    return Refused(code=int(ExitCode.REFUSED), reason=reason, hint=hint)


def _other_version(reason: str) -> Refused:
    hint = "install the same godmw on both sides: godmw --version"
    return Refused(code=int(ExitCode.VERSION), reason=reason, hint=hint)
