"""A machine that does what a test wrote down, and a peer that speaks to a real master's socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from godmw.clock import SystemClock
from godmw.config import JobSettings, JoinAddress
from godmw.master.books import Books
from godmw.master.journal import Journal
from godmw.master.router import Router
from godmw.master.rundir import LockedRunDir
from godmw.master.server import Server
from godmw.master.steady import SteadyClock
from godmw.membership.actions import Answer, EndJob
from godmw.membership.coordinator import Coordinator
from godmw.membership.events import Received, StopAsked
from godmw.protocol import messages as msg
from godmw.protocol import wire
from godmw.protocol.fields import Checked

TOKEN = "the-token-of-the-tests"
DEADLINE_S = 10.0
Script = Callable[[Any], list[Any]]


class ScriptedMachine:
    """Keeps every event; answers Status, ends on StopAsked, and for the rest does what `script` says."""

    term = 3
    generation = 7

    def __init__(self, script: Script = lambda event: []) -> None:
        self.script = script
        self.events: list[Any] = []
        self.times: list[float] = []
        self.news = threading.Condition()

    def start(self, now_s: float) -> list[Any]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def view(self) -> dict[str, Any]:
        return {"job": "scripted", "phase": "RUNNING", "step": 5, "world_size": 0, "workers": []}

    def step(self, event: Any, now_s: float) -> list[Any]:
        with self.news:
            self.events.append(event)
            self.times.append(now_s)
            self.news.notify_all()
        match event:
            case Received(peer, header, msg.Status()):
                return [Answer(peer, header.sequence, 0, self.view())]
            case StopAsked(reason):
                return [EndJob("stopped", 75, reason)]
        return self.script(event)

    def heard(self, kind: type[Any], count: int = 1) -> list[Any]:
        """The events of `kind` (or messages of it), once there are `count`."""

        def found() -> list[Any]:
            return [
                event
                for event in self.events
                if isinstance(event, kind) or isinstance(getattr(event, "message", None), kind)
            ]

        with self.news:
            assert self.news.wait_for(lambda: len(found()) >= count, DEADLINE_S), self.events
            return found()


class Served:
    """A server on a thread; `with Served(path, script) as served`.

    Its machine is a scripted one, or with `real` a Coordinator; the run directory is `path`.
    """

    def __init__(self, path: Path, script: Script = lambda event: [], *, real: bool = False) -> None:
        settings = JobSettings(job="scripted", token=TOKEN, run_dir=str(path), remote_lease_s=0.5)
        self.machine = ScriptedMachine(script)
        self._served: Any = Coordinator(settings) if real else self.machine
        self.place = LockedRunDir(path)
        self.router = Router(wire.MAX_FRAME_BYTES)
        self.address = JoinAddress("127.0.0.1", self.router.bind("127.0.0.1", 0), TOKEN)
        self._path = path
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        clock = SystemClock()
        self.journal = Journal(self._path / "journal.db", clock.wall_s)
        self.journal.open()
        books = Books(self._path, clock, clock.wall_s())
        books.open()
        self.server = Server(
            self._served,
            self._settings,
            router=self.router,
            journal=self.journal,
            books=books,
            clock=SteadyClock(clock.now_s, self._settings.beat_s),
        )
        self.ended = self.server.serve(self._ready.set)
        self.router.close()
        books.close()
        self.journal.close()

    def __enter__(self) -> Served:
        self.place.open()
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        self.place.announce(self.address)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.server.ask_stop("the test is over")
        self.wait()
        self.place.close()

    def wait(self) -> None:
        """Until the loop has ended."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class Peer:
    """A worker, agent or admin as a DEALER, with nothing behind it."""

    def __init__(self, address: JoinAddress, sender: str = "w0") -> None:
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://{address.endpoint}")
        self._sender = sender
        self._sequence = 0
        self.token = address.token

    def raw(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def say(self, message: Checked) -> int:
        self._sequence += 1
        header = wire.header_of(
            message,
            job="",
            term=3,
            generation=0,
            sender=self._sender,
            incarnation=1,
            sequence=self._sequence,
        )
        self.raw(wire.encode(header, message))
        return self._sequence

    def join(self, token: str | None = None) -> None:
        self.say(join(self.token if token is None else token))

    def receive(self) -> tuple[msg.Header, Checked]:
        assert self._socket.poll(int(DEADLINE_S * 1000)), "nothing was said"
        return wire.decode(self._socket.recv())

    def silent(self, wait_s: float = 0.05) -> bool:
        return not self._socket.poll(int(wait_s * 1000))

    def close(self) -> None:
        self._socket.close(linger=0)


def join(token: str) -> msg.Join:
    """The introduction of a worker that is new."""
    return msg.Join(
        token=token, agent="", host="here", pid=1, address="127.0.0.1:1", generation=0, position=-1, abort=0,
        held=(), prepared=False, ended=False,
    )  # fmt: skip


def committed(operation: int, table: bytes, metrics: str = "{}") -> msg.Committed:
    """The record of an operation that is a step of epoch 0."""
    return msg.Committed(
        operation=operation, generation=1, kind="step", loop=0, epoch=0, step=operation, table=table,
        metrics=metrics, wall_s=0.0,
    )  # fmt: skip


def kinds(events: Sequence[Any]) -> list[str]:
    """The names of events, of messages where they carry one."""
    return [type(getattr(event, "message", event)).__name__ for event in events]
