"""A master that says what the test tells it to: one ROUTER, read and written by the test's own thread."""

import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from godmw.config import JoinAddress
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked
from godmw.protocol.wire import decode, encode, header_of

TOKEN = "a-token"
Message = TypeVar("Message", bound=Checked)


class ScriptedMaster:
    """Bound at once; ``agent`` is the connection that spoke last.  Close it and make another on its port
    to restart.
    """

    def __init__(self, *, port: int = 0, term: int = 1, job: str = "job-1", run_dir: str = "") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.port = int(self.socket.getsockopt(zmq.LAST_ENDPOINT).rpartition(b":")[2].strip(b"\0"))
        self.term, self.job, self.run_dir = term, job, run_dir
        self.agent = b""
        self.sender = ""
        self.heard: list[tuple[float, Checked]] = []

    @property
    def join(self) -> JoinAddress:
        return JoinAddress("127.0.0.1", self.port, TOKEN)

    def say(self, message: Checked) -> None:
        header = header_of(
            message, job=self.job, term=self.term, generation=0, sender="", incarnation=0, sequence=1
        )
        self.socket.send_multipart([self.agent, encode(header, message)])

    def expect(
        self, kind: type[Message], within_s: float = 10.0, when: Callable[[Message], bool] = lambda _: True
    ) -> Message:
        """The next message of this kind for which ``when`` holds; others are kept in ``heard``."""
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not self.socket.poll(max(1, int(left_s * 1000))):
                break
            self.agent, data = self.socket.recv_multipart()
            header, message = decode(data)
            self.sender = header.sender
            self.heard.append((time.monotonic(), message))
            if isinstance(message, kind) and when(message):
                return message
        raise AssertionError(
            f"no {kind.__name__} within {within_s} s; heard {[m for _, m in self.heard][-5:]}"
        )

    def welcome(self, within_s: float = 10.0) -> msg.AgentHello:
        """Wait for an agent and register it."""
        hello = self.expect(msg.AgentHello, within_s)
        self.say(msg.AgentWelcome(run_dir=self.run_dir, lease_s=2.0, beat_s=0.1, orphan_s=30.0))
        return hello

    def launch(self, worker: str, incarnation: int = 1, slot: int = 0) -> msg.Child:
        """Have a worker started; the child that the agent then tells of."""
        self.say(msg.Launch(worker=worker, incarnation=incarnation, slot=slot, rank_hint=slot, world_hint=2))
        beat = self.expect(msg.AgentBeat, when=lambda beat: any(c.worker == worker for c in beat.children))
        return next(child for child in beat.children if child.worker == worker)

    def finish(self, code: int = 0, outcome: str = "finished", reason: str = "done") -> None:
        self.say(msg.Finish(outcome=outcome, code=code, reason=reason))

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()
