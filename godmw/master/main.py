"""A master's life from its run directory to its exit code: lock, journal, socket, machine, loop, last word.

The order matters: nothing listens before the lock is held, nobody is told an address before its term is
journalled, and the summary is written after the journal says that the job is over. The machine is made by
the caller's factory, so that tests can put a scripted one in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import zmq

from godmw import ids
from godmw.client.rundir import RunDir
from godmw.clock import SystemClock
from godmw.config import JobSettings, JoinAddress, format_endpoint, parse_endpoint
from godmw.errors import JobFailed, UsageError
from godmw.lines import read_lines
from godmw.master.books import Books
from godmw.master.journal import Journal
from godmw.master.router import Router
from godmw.master.rundir import LockedRunDir, port_owner
from godmw.master.server import Machine, Server
from godmw.master.steady import SteadyClock
from godmw.master.summary import summarize
from godmw.membership.coordinator import Coordinator
from godmw.membership.records import FinishMade, JobOver, JournalRecord, TermBegan
from godmw.protocol.wire import MAX_FRAME_BYTES

FLUSH_S = 1.0  # for the last messages to leave
ANYWHERE = ("0.0.0.0", "::")
MachineFactory = Callable[..., Machine]  # called as Coordinator is


def run_master(
    settings: JobSettings,
    path: Path,
    listen: str,
    *,
    ready: Callable[[JoinAddress], None],
    factory: MachineFactory = Coordinator,
) -> int:
    """Serve the job of the run directory ``path`` to its end; returns the exit code.

    ``settings`` are those of a new job; an unfinished one keeps its own job id, token and address.
    ``ready`` is told where to join once that is true.  Raises UsageError, Refused or JobFailed.
    """
    place = LockedRunDir(path.absolute())
    place.open()
    with contextlib.ExitStack() as stack:
        stack.callback(place.close)
        journal = Journal(place.files.journal, time.time)
        restored = journal.open()
        stack.callback(journal.close)
        refuse_ended(place, journal.began_s, restored)
        host, port, settings = _identity(settings, restored, place.files.path, listen)
        router = Router(MAX_FRAME_BYTES)
        port = _bind(router, host, port, resumed=bool(restored))
        stack.callback(router.close)
        settings = dataclasses.replace(settings, address=format_endpoint(host, port))
        clock = SteadyClock(time.monotonic, settings.beat_s)
        books = Books(place.files.path, SystemClock(), journal.began_s or time.time())
        books.open()
        stack.callback(books.close)
        machine = factory(settings, restored, clock.now_s(), books.below, books.step)
        server = Server(machine, settings, router=router, journal=journal, books=books, clock=clock)
        join = JoinAddress(_reachable(host), port, settings.token)

        def announce() -> None:
            place.announce(join)
            ready(join)

        with _signals(server.ask_stop):
            ended = server.serve(announce)
        told = server.performer.finish or _last(restored, FinishMade)
        _write_end(place, journal.began_s, machine.view(), ended.outcome, ended.reason, told)
        router.drain(FLUSH_S)
        return ended.code


def refuse_ended(place: LockedRunDir, began_s: float, restored: Sequence[JournalRecord]) -> None:
    """Raise UsageError for a finished job, JobFailed for one that is over and cannot be taken up."""
    files = place.files
    finish = _last(restored, FinishMade)
    if finish is None or not (files.summary.exists() or _last(restored, JobOver)):
        return
    if not files.summary.exists():  # the master died between the last record and the last word
        _write_end(place, began_s, {}, finish.outcome, finish.reason, finish)
    if finish.outcome == "finished":
        raise UsageError(
            f"the job in {files.path} is finished",
            hint=f"godmw status {files.path} shows it; choose another --run-dir for a new one",
        )
    raise JobFailed(
        f"the job in {files.path} is over ({finish.outcome}: {finish.reason}), no state is on disk",
        hint="start it anew in another --run-dir",
    )


def _identity(
    settings: JobSettings, restored: Sequence[JournalRecord], path: Path, listen: str
) -> tuple[str, int, JobSettings]:
    """Host, port and settings of this term: the journal's where it has them, fresh ones otherwise."""
    last = _last(restored, TermBegan)
    host, port = parse_endpoint(last.address if last else listen, "--listen")
    return (
        host,
        port,
        dataclasses.replace(
            settings,
            job=last.job if last else ids.new_id("job"),
            token=last.token if last else ids.new_token(),
            term=last.term + 1 if last else 1,
            run_dir=str(path),
            local_host=settings.local_host or socket.gethostname(),
        ),
    )


def _bind(router: Router, host: str, port: int, *, resumed: bool) -> int:
    place = format_endpoint(host, port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return router.bind(str(found[0][4][0]), port)
    except socket.gaierror as error:
        hint = "an address of this machine: HOST:PORT"
        raise UsageError(f"--listen {place}: {error.strerror}", hint=hint) from error
    except zmq.ZMQError as error:
        if error.errno == errno.EADDRINUSE:
            free = "--listen HOST:0 takes a free port"
            hint = (
                "the workers of this job know no other address: free it and start again" if resumed else free
            )
            raise UsageError(f"port {port} of {host} is taken by {port_owner(port)}", hint=hint) from error
        if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV, errno.EACCES):
            raise UsageError(
                f"--listen {place}: {os.strerror(error.errno).lower()}",
                hint="an address of this machine and a port above 1023, or 0 for a free one",
            ) from error
        raise


def _reachable(host: str) -> str:
    """What others dial: the given host, or the default route's address for a listener everywhere."""
    if host not in ANYWHERE:
        return host
    family, probe = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        try:
            route.connect((probe, 9))  # a datagram socket sends nothing by that
            return str(route.getsockname()[0])
        except OSError:
            return "::1" if ":" in host else "127.0.0.1"


def _write_end(
    place: LockedRunDir,
    began_s: float,
    status: dict[str, Any],
    outcome: str,
    reason: str,
    told: FinishMade | None,
) -> None:
    """The final status and the summary, from everything this job's masters wrote."""
    from json import loads

    files: RunDir = place.files
    try:
        leader = loads(told.summary) if told and told.summary else {}
    except ValueError:
        leader = {}
    summary = summarize(
        (event for event, _ in read_lines(files.events)),
        (line for line, _ in read_lines(files.metrics)),
        outcome=outcome,
        reason=reason,
        leader=leader if isinstance(leader, dict) else {},
        wall_s=time.time() - began_s,
    )
    place.finish(status or {"phase": outcome.upper(), "step": summary["steps"], "workers": []}, summary)


def _last(records: Sequence[JournalRecord], kind: type[Any]) -> Any:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)


@contextlib.contextmanager
def _signals(ask_stop: Callable[[str], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the job to stop, the second ends this process at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        name = signal.Signals(number).name
        if asked:
            words = f"{name} again: the master ends now, the job can be resumed\n"
            os.write(sys.stderr.fileno(), words.encode())
            os._exit(128 + number)
        asked = True
        ask_stop(f"the master got {name}")

    kept = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
