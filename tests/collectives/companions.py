"""Ranks for the tests of this room: a transport in memory, and companies of threads with links of any kind.

`MemoryTransport` is the slow, obvious twin of the real ones: a queue for each pair of ranks, messages copied
when they are sent. `transports` makes one generation's worth of either kind inside this process.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from godmw.collectives.endpoint import Endpoint
from godmw.collectives.forming import form
from godmw.collectives.rendezvous import Rendezvous
from godmw.collectives.transport import Abandoned, LinkError, Parcel, Transport

KINDS = ("memory", "gloo")


class MemoryWork:
    def __init__(self, links: "MemoryTransport", receives: Sequence[Parcel], stage: str) -> None:
        self._links, self._receives, self._stage = links, receives, stage

    def wait(self, deadline_s: float | None = None) -> None:
        ends = None if deadline_s is None else time.monotonic() + deadline_s
        for tensor, source in self._receives:
            wire = self._links.wires[source, self._links.rank]
            while True:
                if self._links.aborted:
                    raise Abandoned
                if source in self._links.gone:
                    raise LinkError(source, self._stage, "closed")
                try:
                    tensor.copy_(wire.get(timeout=0.005))
                    break
                except queue.Empty:
                    if ends is not None and time.monotonic() > ends:
                        raise LinkError(source, self._stage, "deadline") from None


class MemoryTransport:
    """All ranks share `wires` and `gone`, the ranks whose transport is closed."""

    kind = "memory"
    least_segment_bytes = 64
    receives_ahead = True

    def __init__(
        self, rank: int, world_size: int, wires: dict[tuple[int, int], Any], gone: set[int]
    ) -> None:
        self.rank, self.world_size, self.sent_bytes = rank, world_size, 0
        self.wires, self.gone, self.aborted = wires, gone, False

    def begin(self) -> None:
        pass

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel], stage: str) -> MemoryWork:
        if self.aborted:
            raise Abandoned
        for tensor, to in sends:
            if to in self.gone:
                raise LinkError(to, stage, "closed")
            self.wires[self.rank, to].put(tensor.clone())
            self.sent_bytes += tensor.nbytes
        return MemoryWork(self, list(receives), stage)

    def abort(self) -> None:
        self.aborted = True
        self.gone.add(self.rank)

    def close(self) -> None:
        self.abort()

    def allocate(self, length: int) -> Tensor:
        return torch.empty(length, dtype=torch.uint8)


def each(world_size: int, run: Callable[[int], Any], timeout_s: float = 30.0) -> list[Any]:
    """`run(rank)` for all ranks at once, each on its thread; the first exception is raised here."""
    with ThreadPoolExecutor(world_size) as pool:
        return [
            future.result(timeout_s) for future in [pool.submit(run, rank) for rank in range(world_size)]
        ]


class Company:
    """Endpoints and rendezvous of `world_size` workers in this process."""

    def __init__(self, world_size: int) -> None:
        endpoints = [Endpoint("127.0.0.1", "token").start() for _ in range(world_size)]
        self.hubs = [Rendezvous(endpoint, f"w{rank}") for rank, endpoint in enumerate(endpoints)]
        self.members = [(hub.worker, hub.endpoint.address) for hub in self.hubs]

    def form(self, generation: int, rank: int, **options: Any) -> Transport:
        options.setdefault("cancelled", lambda: False)
        return form(generation, rank, self.members, self.hubs[rank], **options)

    def close(self) -> None:
        for hub in self.hubs:
            hub.endpoint.close()


@contextmanager
def transports(kind: str, world_size: int) -> Iterator[list[Transport]]:
    """One transport a rank, formed; aborted and closed afterwards."""
    company = None
    if kind == "memory":
        wires: dict[tuple[int, int], Any] = {
            (a, b): queue.SimpleQueue() for a in range(world_size) for b in range(world_size)
        }
        gone: set[int] = set()
        made: list[Any] = [MemoryTransport(rank, world_size, wires, gone) for rank in range(world_size)]
    else:
        company = Company(world_size)
        made = each(world_size, lambda rank: company.form(1, rank))
    try:
        yield made
    finally:
        for transport in made:
            transport.abort()
            transport.close()
        if company is not None:
            company.close()


def aside(run: Callable[[], None]) -> "queue.Queue[BaseException | None]":
    """Runs on a daemon thread; the queue gets what it raised, or None."""
    ended: queue.Queue[BaseException | None] = queue.Queue()

    def body() -> None:
        try:
            run()
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    threading.Thread(target=body, daemon=True).start()
    return ended
