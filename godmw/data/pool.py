"""Loader processes: batches made ahead of time, for whoever asks for them in whatever order.

The pool is a cache in front of `Fetcher`: `fetch` returns the batch of exactly the indices asked for,
whether it was expected or not; `expect` only says what to begin with.  What is expected may be replaced
at any time, as when shards change hands: results that nobody expects any more are dropped when they
arrive.  All in the caller's thread; the loaders run ahead by at most two requests each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import time
import traceback
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from godmw.data import handover
from godmw.data.fetch import Fetcher
from godmw.data.fork_server import ForkServer
from godmw.data.indices import Indices
from godmw.errors import JobFailed, UsageError

AHEAD = 2  # requests a loader holds: one in work, one waiting
SHOWN = 8


class Request(NamedTuple):
    """A batch by its contents: `indices` are those of an int64 array; without any, the fingerprint is
    meant.
    """

    indices: bytes
    seed: int

    @classmethod
    def of(cls, indices: Indices, seed: int) -> Request:
        return cls(np.ascontiguousarray(indices, dtype=np.int64).tobytes(), seed)

    def array(self) -> Indices:
        return np.frombuffer(self.indices, dtype=np.int64)

    def __str__(self) -> str:
        indices = self.array()
        more = f", … {len(indices)} in all" if len(indices) > SHOWN else ""
        return f"samples {', '.join(map(str, indices[:SHOWN]))}{more}" if len(indices) else "the fingerprint"


class LoaderTraceback(Exception):
    """The traceback of an exception that was raised in a loader process, as its cause here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a loader process\n{self.text}"


@dataclasses.dataclass
class Raised:
    """What a loader answers instead of a batch."""

    error: BaseException
    text: str

    @classmethod
    def now(cls, error: BaseException) -> Raised:
        text = traceback.format_exc()
        try:
            handover.unpack(handover.pack(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, text)


def serve(channel: socket.socket) -> None:
    """The life of a loader process: a fetcher, then requests and answers until the channel ends."""
    torch.set_num_threads(1)
    try:
        try:
            fetcher: Fetcher = handover.receive(channel)
        except EOFError:
            return
        except Exception as error:
            handover.send(channel, (None, Raised.now(error)))
            return
        while True:
            _answer(channel, fetcher, handover.receive(channel))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the training process has no more use for this one


def _answer(channel: socket.socket, fetcher: Fetcher, request: Request) -> None:
    try:
        found = fetcher.batch(request.array(), request.seed) if request.indices else fetcher.fingerprint()
        fd = handover.pack((request, found))
    except BaseException as error:
        fd = handover.pack((request, Raised.now(error)))
    try:
        handover.send_file(channel, fd)
    finally:
        os.close(fd)


class Pool:
    """`size` loader processes with the same fetcher.  `timeout_s`: patience with one batch, 0 for no
    limit.
    """

    def __init__(self, server: ForkServer, fetcher: Fetcher, size: int, timeout_s: float = 0) -> None:
        try:
            file = handover.pack(fetcher)
        except Exception as error:
            raise UsageError(
                f"the dataset or collate_fn cannot be handed to loader processes: {error}",
                hint="define what it is made of at the top level of a module, or take num_workers=0",
            ) from error
        self._channels: list[socket.socket] = []
        self._finalizer = weakref.finalize(self, _close, self._channels, os.getpid())
        self._timeout_s = timeout_s
        self._pending: list[list[Request]] = []
        self._wanted: list[Request] = []
        self._found: dict[Request, Any] = {}
        try:
            for _ in range(size):
                self._channels.append(server.spawn())
                self._pending.append([])
                handover.send_file(self._channels[-1], file)
        finally:
            os.close(file)

    def expect(self, requests: Sequence[Request]) -> None:
        """These will be fetched next, in this order; forget what was expected before."""
        self._wanted = list(requests)
        kept = set(requests)
        for request in [request for request in self._found if request not in kept]:
            del self._found[request]
        self._collect(0)
        self._ask()

    def fetch(self, request: Request) -> Any:
        """The batch.  Raises what the dataset raised; JobFailed when a loader died or was too slow."""
        if request not in self._wanted:
            self._wanted.insert(0, request)
        began_s = time.monotonic()
        while request not in self._found:
            if not any(request in pending for pending in self._pending):
                self._send(request)
            self._collect(self._patience_s(request, began_s))
        found = self._found.pop(request)
        self._wanted.remove(request)
        self._collect(0)
        self._ask()
        if isinstance(found, Raised):
            raise found.error from LoaderTraceback(f"{found.text}while it fetched {request}")
        return found

    def close(self) -> None:
        """End the loaders."""
        self._finalizer()

    def _patience_s(self, request: Request, began_s: float) -> float | None:
        if not self._timeout_s:
            return None
        left_s = began_s + self._timeout_s - time.monotonic()
        if left_s <= 0:
            raise JobFailed(
                f"a loader process needs more than timeout={self._timeout_s:g} s for {request}",
                hint="raise the DataLoader's timeout, or 0 for no limit",
            )
        return left_s

    def _send(self, request: Request) -> None:
        number = min(range(len(self._pending)), key=lambda number: len(self._pending[number]))
        self._pending[number].append(request)
        try:
            handover.send(self._channels[number], request)
        except OSError:
            self._take(number)  # what it said last may be the reason

    def _ask(self) -> None:
        """Give the loaders what is wanted and not yet asked for, in order, as far as they may run ahead."""
        held = set(self._found).union(*self._pending)
        room = AHEAD * len(self._channels) - len(self._found) - sum(map(len, self._pending))
        for request in self._wanted:
            if room <= 0:
                return
            if request not in held:
                held.add(request)
                room -= 1
                self._send(request)

    def _collect(self, wait_s: float | None) -> None:
        """Take the answers that are there; wait for the first one up to `wait_s`, for ever if None."""
        poll = select.poll()
        for channel in self._channels:
            poll.register(channel, select.POLLIN)
        numbers = {channel.fileno(): number for number, channel in enumerate(self._channels)}
        for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000):
            self._take(numbers[fd])

    def _take(self, number: int) -> None:
        try:
            request, found = handover.receive(self._channels[number])
        except EOFError:
            self._died(number)
        if request is None:
            raise UsageError(
                f"a loader process cannot take the dataset: {found.error}",
                hint="define its class before godmw.join(), or take num_workers=0",
            ) from LoaderTraceback(found.text)
        self._pending[number].remove(request)
        if request in self._wanted:
            self._found[request] = found

    def _died(self, number: int) -> NoReturn:
        doing = self._pending[number][0] if self._pending[number] else "nothing"
        raise JobFailed(
            f"loader process {number} of {len(self._channels)} died; it was to fetch {doing}",
            hint="killed for memory, or crashed in native code? num_workers=0 shows where",
        )


def _close(channels: list[socket.socket], owner: int) -> None:
    for channel in channels:
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                handover.send_end(channel)
        channel.close()
