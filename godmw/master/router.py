"""The master's socket: bytes from and to connections, and word of the ones that closed.

A ROUTER with random routing ids, mandatory delivery and bounded queues, and its socket monitor. ``read``
returns everything that can be read now, in order, a connection's last messages before its end; ``send``
never blocks. It knows neither messages nor who is a worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct

import zmq

from godmw.master.connections import Connections

QUEUE_MESSAGES = 1000  # per connection: what a frozen peer can make the master keep
READ_MESSAGES = 2000  # in one turn, so that a flood cannot keep time from passing
ANSWER_BACKLOG = 512
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=HI")


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """One frame from ``peer``, the hexadecimal routing id of a connection."""

    peer: str
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """The connection ``peer`` is closed, or takes nothing any more."""

    peer: str


class Router:
    """Bind with ``bind``, then ``wait``, ``read`` and ``send`` from one thread."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._connections = Connections()
        self._gone: list[bytes] = []

    def bind(self, host: str, port: int) -> int:
        """Listen; returns the port.  Raises zmq.ZMQError."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()
        self._alarms = zmq.Poller()
        options = {
            zmq.LINGER: 0,
            zmq.ROUTER_MANDATORY: 1,
            zmq.ROUTER_HANDOVER: 0,
            zmq.MAXMSGSIZE: self._max_frame_bytes,
            zmq.SNDHWM: QUEUE_MESSAGES,
            zmq.RCVHWM: QUEUE_MESSAGES,
            zmq.BACKLOG: ANSWER_BACKLOG,
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: 30,
            zmq.IPV6: 1 if ":" in host else 0,
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        self._monitor = self._socket.get_monitor_socket(EVENTS)
        place = f"[{host}]" if ":" in host else host
        try:
            self._socket.bind(f"tcp://{place}:{port or '*'}")
        except zmq.ZMQError:
            self.close()
            raise
        self._poller.register(self._socket, zmq.POLLIN)
        self.watch(self._monitor)
        return int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def watch(self, source: int | zmq.Socket[bytes]) -> None:
        """End every wait also when the descriptor or socket ``source`` can be read."""
        self._poller.register(source, zmq.POLLIN)
        self._alarms.register(source, zmq.POLLIN)

    def wait(self, timeout_s: float, *, alarms_only: bool = False) -> None:
        """Until something can be read, at most ``timeout_s``; with ``alarms_only`` messages wait."""
        if not self._gone:
            poller = self._alarms if alarms_only else self._poller
            poller.poll(max(0, int(timeout_s * 1000 + 0.999)))

    def read(self) -> list[Arrival | Gone]:
        """Everything that can be read, then the connections that ended."""
        arrivals: list[Arrival | Gone] = []
        self._read_messages(arrivals)
        if self._read_monitor():
            self._read_messages(arrivals)
        gone, self._gone = self._gone, []
        return [*arrivals, *(Gone(peer.hex()) for peer in gone)]

    def send(self, peer: str, data: bytes) -> bool:
        """Give ``data`` to ``peer``; False when it is gone or its queue is full: it then counts as gone."""
        routing_id = bytes.fromhex(peer)
        try:
            self._socket.send_multipart((routing_id, data), zmq.DONTWAIT, copy=True)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._gone.append(routing_id)
            return False
        return True

    def drain(self, timeout_s: float) -> None:
        """Close, after what is queued has been given to the kernel or ``timeout_s`` has passed."""
        self._socket.setsockopt(zmq.LINGER, int(timeout_s * 1000))
        self.close()

    def close(self) -> None:
        """Close, at once unless ``drain`` asked to wait; closing twice is closing once."""
        if self._socket.closed:
            return
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def _read_messages(self, arrivals: list[Arrival | Gone]) -> None:
        receive = self._socket.recv
        for _ in range(READ_MESSAGES):
            try:
                peer = receive(zmq.DONTWAIT)
            except zmq.Again:
                return
            more = self._socket.getsockopt(zmq.RCVMORE)
            if not more:
                continue
            if self._connections.knows(peer):
                data = receive()
            else:
                frame = self._socket.recv(copy=False)
                data = frame.bytes
                self._meet(peer, int(frame.get(zmq.SRCFD)))
            while self._socket.getsockopt(zmq.RCVMORE):
                receive()  # more than one frame: nothing that we say; the first is judged alone
                data = b""
            arrivals.append(Arrival(peer.hex(), data))

    def _meet(self, peer: bytes, descriptor: int) -> None:
        self._read_monitor()  # this connection's beginning, and the end of whoever had the descriptor before
        if not self._connections.heard(descriptor, peer):
            self._gone.append(peer)

    def _read_monitor(self) -> bool:
        """Note what the monitor has seen; whether a connection that had spoken ended."""
        ended = False
        while True:
            try:
                event, _ = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return ended
            kind, descriptor = _EVENT.unpack(event)
            if kind == zmq.EVENT_ACCEPTED:
                self._connections.accepted(descriptor)
            elif kind == zmq.EVENT_DISCONNECTED:
                peer = self._connections.closed(descriptor)
                if peer is not None:
                    self._gone.append(peer)
                    ended = True
