"""The `torch` transports: process groups of our own for one generation, gloo on the CPU and NCCL on GPUs.

Never the default group, which belongs to the user's script. Gloo connects lazily (asked of the device, so
no environment variable is needed) and on the interface of the endpoint's host; its store is ours and
filled by the members' pushes. A pending gloo wait ignores `abort()` and `shutdown()` of the group, but
any wait that times out closes every socket of its group and fails every wait on it: `abort` makes one
that does. Knows no schedule. The NCCL transport is written with care and has not been run.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from godmw.collectives.packing import memory
from godmw.collectives.rendezvous import Meeting
from godmw.collectives.transport import Abandoned, LinkError, Parcel, Transport, Work

FOREVER = timedelta(days=30)  # a data-plane wait ends by a socket's error or by abort, never by a timer
AT_ONCE = timedelta(milliseconds=1)
CONNECT_FACTOR = 5  # gloo waits five times its group's timeout for a connection
LAST_TAG = (1 << 31) - 1
KEPT = 3  # operations whose works are kept
LANES = {"open": 1, "ready": 2}  # tags; all other stages share 0


class KeyStore(dist.Store):  # type: ignore[name-defined]
    """torch's store for one attempt, over the members' pushes. Its maker keeps it alive."""

    def __init__(self, meeting: Meeting, ends_s: float, cancelled: Callable[[], bool]) -> None:
        super().__init__()
        self._meeting, self._ends_s, self._cancelled = meeting, ends_s, cancelled

    def set(self, key: str, value: str | bytes | bytearray) -> None:
        self._meeting.push(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._meeting.value(key, self._ends_s, self._cancelled)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._meeting.value(key, self._ends_s, self._cancelled)

    def check(self, keys: list[str]) -> bool:
        return all(self._meeting.has(key) for key in keys)

    def has_extended_api(self) -> bool:
        return False


class _GlooWork:
    """What an exchange still waits for: (torch's work, peer), receives first."""

    __slots__ = ("_links", "_pending", "_stage")

    def __init__(self, links: "GlooTransport", pending: list[tuple[Any, int]], stage: str) -> None:
        self._links, self._pending, self._stage = links, pending, stage

    def wait(self, deadline_s: float | None = None) -> None:
        timeout = FOREVER if deadline_s is None else max(AT_ONCE, timedelta(seconds=deadline_s))
        pending, self._pending = self._pending, []  # torch waits for one message more when asked twice
        for work, peer in pending:
            try:
                work.wait(timeout)
            except RuntimeError as error:
                raise self._links.failure(peer, self._stage, error) from None
        if self._links.aborted:
            raise Abandoned


class GlooTransport:
    """Point-to-point over one gloo group: sources and targets go to the sockets as they are.

    Sends are posted before receives, so that gloo's loop writes, once it knows of the peer's receive.
    The other way round this thread writes under a lock that the loop spins on, and on few cores the spinning
    keeps it from running until the scheduler's next tick: 4 ms in place of 0.1.
    """

    kind = "gloo"
    least_segment_bytes = 64
    receives_ahead = True

    def __init__(self, store: KeyStore, rank: int, world_size: int, host: str, attempt_s: float) -> None:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host, lazy_init=True)]
        options._timeout = timedelta(seconds=attempt_s / CONNECT_FACTOR)
        options._threads = 1  # they serve collectives, of which there are none
        self.rank, self.world_size, self.sent_bytes = rank, world_size, 0
        self.aborted = False
        # torch's works are dropped late. The destructor of one just done yields in a loop until the I/O
        # thread, which this thread's wake-up may have displaced, has left it; one not done, after a link
        # broke, would leave the I/O thread spinning on what arrives for it.
        self._kept: deque[list[tuple[Any, int]]] = deque([[]], maxlen=KEPT)
        self._linked: list[int] = []
        self._store = store
        self._group: Any = gloo(store, rank, world_size, options)

    def begin(self) -> None:
        self._kept.append([])

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel], stage: str) -> Work:
        group, tag = self._group, LANES.get(stage, 0)
        if self.aborted or group is None:
            raise Abandoned
        out: list[tuple[Any, int]] = []
        pending: list[tuple[Any, int]] = []
        peer = self.rank
        try:
            for tensor, peer in sends:
                out.append((group.send([tensor], peer, tag), peer))
                self._link(peer)
                self.sent_bytes += tensor.nbytes
            for tensor, peer in receives:
                pending.append((group.recv([tensor], peer, tag), peer))
                self._link(peer)
        except RuntimeError as error:
            raise self.failure(peer, stage, error) from None
        finally:
            self._kept[-1] += out + pending
        return _GlooWork(self, pending + out, stage)

    def _link(self, peer: int) -> None:
        if peer not in self._linked:  # a call that has returned has connected
            self._linked.append(peer)

    def failure(self, peer: int, stage: str, error: Exception) -> Exception:
        """What a failed call means: our own abort, or a broken link."""
        if self.aborted:
            return Abandoned()
        return LinkError(peer, stage, str(error).strip().splitlines()[0])

    def abort(self) -> None:
        self.aborted = True
        group = self._group
        if group is not None and self._linked:  # a link still being made is waited for by attempt_s at most
            with contextlib.suppress(RuntimeError):  # as meant: every socket of the group is closed then
                group.recv([torch.empty(1, dtype=torch.uint8)], self._linked[0], LAST_TAG).wait(AT_ONCE)

    def close(self) -> None:
        self.aborted = True
        self._kept.clear()
        self._group = None
        # the store goes after the group, whose destructor may still hold it

    def allocate(self, length: int) -> Tensor:
        return memory(length)


class _NcclWork:
    """One grouped launch. Waiting blocks this thread's stream, then the thread: done is done."""

    __slots__ = ("_links", "_peer", "_stage", "_work")

    def __init__(self, links: "NcclTransport", work: Any, peer: int, stage: str) -> None:
        self._links, self._work, self._peer, self._stage = links, work, peer, stage

    def wait(self, deadline_s: float | None = None) -> None:
        try:
            if self._work is not None:
                self._work.wait()
                torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            raise self._links.failure(self._peer, self._stage, error) from None
        if self._links.aborted:
            raise Abandoned


class NcclTransport:
    """Grouped point-to-point over one NCCL communicator, on a stream of its own. Not run on hardware.

    An exchange is one group (start, sends and receives, end), so a ring of them cannot lock up. Abort is the
    abort of this communicator. torch's watchdog, which would end the process, is switched off by the agent's
    environment.
    """

    kind = "nccl"
    least_segment_bytes = 4 << 20
    receives_ahead = False

    def __init__(self, store: KeyStore, rank: int, world_size: int, host: str, attempt_s: float) -> None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = FOREVER
        self.rank, self.world_size, self.sent_bytes = rank, world_size, 0
        self.aborted = False
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._device)
        self._lock = threading.Lock()
        self._store = store
        self._group: Any = dist.ProcessGroupNCCL(store, rank, world_size, options)

    def begin(self) -> None:
        torch.cuda.set_device(self._device)
        torch.cuda.set_stream(self._stream)
        self._stream.wait_stream(torch.cuda.default_stream(self._device))

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel], stage: str) -> Work:
        group = self._group
        if self.aborted or group is None:
            raise Abandoned
        if not sends and not receives:
            return _NcclWork(self, None, self.rank, stage)
        peer = [*receives, *sends][0][1]
        try:
            group._start_coalescing()
            for tensor, to in sends:
                group.send([tensor], to, 0)
                self.sent_bytes += tensor.nbytes
            for tensor, source in receives:
                group.recv([tensor], source, 0)
            return _NcclWork(self, group._end_coalescing(), peer, stage)
        except RuntimeError as error:
            raise self.failure(peer, stage, error) from None

    def failure(self, peer: int, stage: str, error: Exception) -> Exception:
        if self.aborted:
            return Abandoned()
        return LinkError(peer, stage, str(error).strip().splitlines()[0])

    def abort(self) -> None:
        with self._lock:
            if not self.aborted:
                self.aborted = True
                self._group.abort()

    def close(self) -> None:
        self.abort()
        self._group = None

    def allocate(self, length: int) -> Tensor:
        return torch.empty(length, dtype=torch.uint8, device=self._device)


TRANSPORTS: dict[str, Any] = {"gloo": GlooTransport, "nccl": NcclTransport}


def open_group(
    kind: str, meeting: Meeting, host: str, ends_s: float, cancelled: Callable[[], bool]
) -> Transport:
    """Makes this rank's end of an attempt and pushes what the others need to reach it."""
    store = KeyStore(meeting, ends_s, cancelled)
    attempt_s = max(0.1, ends_s - time.monotonic())
    group: Transport = TRANSPORTS[kind](store, meeting.rank, len(meeting.members), host, attempt_s)
    return group
