"""The control thread: the one owner of the worker's socket, between the master and the participant.

It waits for messages, for the beat and for the other threads' mail, feeds what it hears to a callback
and sends what it is given, in order.  It holds no state of the job and decides nothing; an exception
in it ends the process, because a worker whose heartbeat is dead must not go on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from godmw.config import JoinAddress
from godmw.protocol.fields import Checked
from godmw.worker.agent.facts import Connected, Disconnected, Heard, OtherVersion
from godmw.worker.link import MasterLink

INTERNAL = 70
LONGEST_WAIT_S = 0.1

Fact = Connected | Disconnected | Heard | OtherVersion | None  # None: time has passed


class Postbox:
    """A thread with a DEALER.  ``heard(fact)`` is called on it, ``due_s()`` says when time matters next."""

    def __init__(
        self,
        address: JoinAddress,
        sender: str,
        incarnation: int,
        heard: Callable[[Fact], None],
        due_s: Callable[[], float],
    ) -> None:
        self._link = MasterLink(address.host, address.port, sender=sender, incarnation=incarnation)
        self._heard, self._due_s = heard, due_s
        self._mail: deque[tuple[int, Checked]] = deque()
        self._closing = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._guarded, name="godmw-control", daemon=True)

    def start(self) -> None:
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._link.start()
        self._thread.start()

    def name(self, sender: str, incarnation: int, job: str, term: int) -> None:
        """What the header of later messages says."""
        link = self._link
        link.sender, link.incarnation, link.job, link.term = sender, incarnation, job, term

    def post(self, generation: int, message: Checked) -> None:
        """Send ``message`` of ``generation`` soon; from any thread, in order."""
        self._mail.append((generation, message))
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake
            self._waker.send(b"\0")

    def close(self, timeout_s: float) -> None:
        """Send what is there and close; waits for it at most ``timeout_s``."""
        self._closing.set()
        self.wake()
        self._thread.join(timeout_s)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(INTERNAL)

    def _run(self) -> None:
        poller: Any = zmq.Poller()
        self._link.register(poller)
        poller.register(self._woken, zmq.POLLIN)
        while not self._closing.is_set():
            wait_s = min(LONGEST_WAIT_S, max(0.0, self._due_s()))
            poller.poll(int(wait_s * 1000) + 1)
            with contextlib.suppress(BlockingIOError):
                while self._woken.recv(4096):
                    pass
            for fact in self._link.events():
                self._heard(fact)
            self._heard(None)
            self._deliver()
        self._deliver()
        self._link.close()

    def _deliver(self) -> None:
        while self._mail:
            self._link.generation, message = self._mail.popleft()
            self._link.send(message)
