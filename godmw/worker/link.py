"""An agent's or a worker's connection to the master: one DEALER, connected for ever, and what its
monitor says of it.

Nothing is queued while no connection stands: what an old connection did not take is lost, and the
decisions know it. Names are resolved anew at every attempt, by ZeroMQ's own thread.  ``diagnose``
says in words why nobody answered. This module decides nothing and keeps no message.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from godmw.config import format_endpoint
from godmw.protocol.fields import Checked
from godmw.protocol.messages import Direction, Header
from godmw.protocol.wire import MAX_FRAME_BYTES, WireError, decode, encode, header_of
from godmw.worker.agent.facts import Connected, Disconnected, Heard, OtherVersion

RECONNECT_MS, RECONNECT_MAX_MS = 100, 500  # well within the lease for which a new master hears
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = (
    1000,
    4000,
)  # a connection whose other side is silent that long is closed
LINGER_MS = 500
PROBE_S = 2.0
FROM_MASTER = frozenset(item for item in Direction if item.name.startswith("MASTER_TO_"))

log = logging.getLogger(__name__)


class MasterLink:
    """A DEALER under the name ``sender``."""

    def __init__(self, host: str, port: int, *, sender: str, incarnation: int = 0) -> None:
        self.host, self.port, self.sender, self.incarnation = host, port, sender, incarnation
        self.job, self.term, self.generation = "", 0, 0  # as registered; ride on every message
        self._sequence = 0
        self._up = False

    def start(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        options = {
            zmq.IPV6: int(":" in self.host),
            zmq.IMMEDIATE: 1,
            zmq.LINGER: LINGER_MS,
            zmq.SNDHWM: 0,  # a burst of kept records must not lose its tail; none queues while it is down
            zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS,
            zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
        }
        for name, value in options.items():
            self._socket.setsockopt(name, value)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._socket.connect(f"tcp://{format_endpoint(self.host, self.port)}")

    def register(self, poller: zmq.Poller) -> None:
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def events(self) -> Iterator[Connected | Disconnected | Heard | OtherVersion]:
        """All that has happened, a message before the loss of the connection it came over."""
        yield from self._messages()
        while self._monitor.poll(0):
            seen = recv_monitor_message(self._monitor)["event"]
            if seen == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._up = True
                yield Connected()
            elif self._up:
                self._up = False
                yield Disconnected()
        yield from self._messages()

    def _messages(self) -> Iterator[Heard | OtherVersion]:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                if len(frames) != 1:
                    raise WireError(f"{len(frames)} frames, one was expected", "malformed")
                yield Heard(*decode(frames[0], FROM_MASTER))
            except WireError as error:
                if error.code == "version":
                    yield OtherVersion(error.reason)
                log.warning(
                    "a message from %s was refused: %s", format_endpoint(self.host, self.port), error
                )

    def send(self, message: Checked) -> None:
        """Give `message` to the connection; without one it is lost."""
        self._sequence += 1
        header: Header = header_of(
            message, job=self.job, term=self.term, generation=self.generation, sender=self.sender,
            incarnation=self.incarnation, sequence=self._sequence,
        )  # fmt: skip
        try:
            self._socket.send(encode(header, message), zmq.NOBLOCK)
        except zmq.Again:
            log.info("%s was not sent: no connection", type(message).__name__)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._context.term()


def diagnose(host: str, port: int) -> str:
    """Why nobody answered at an address, in words."""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name {host} cannot be resolved ({error.strerror or error})"
    family, kind, protocol, _, place = places[0]
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(PROBE_S)
            probe.connect(place)
    except TimeoutError:
        return "nothing answers at this address"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "something listens there that is no godmw master, or one that does not answer"
