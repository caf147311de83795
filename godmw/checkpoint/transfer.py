"""A snapshot from a donor to a joiner, over the workers' endpoints.

The donor answers "state" requests, holds each until its snapshot of that generation exists, and sends
digests first, then the tensors that the joiner asks for, as raw bytes. The joiner receives aside, checks
every digest, and has a snapshot only when the whole is there; tensors that agree are not sent, a donor that
dies, stalls or lies is replaced, and what was checked is kept. Sizes are bounded before anything is
allocated, nothing is unpickled. It knows nothing of how state is collected or applied, or of who joins.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from godmw.checkpoint.digest import DIGEST_BYTES, digest
from godmw.checkpoint.encoding import dtype_named, pack, unpack
from godmw.checkpoint.snapshot import Entry, Snapshot, digest_of, memory
from godmw.collectives.endpoint import Endpoint
from godmw.collectives.frames import Connection, Message, PeerError

KIND = "state"
KEEPALIVE_S = 0.5  # a donor that waits for its own boundary says so this often
STALL_S = 10.0  # silence, or a chunk that does not get through, for so long: the next donor
CHUNK_BYTES = 4 << 20
GATHER_BYTES = 256 << 10  # tensors smaller than this leave together
MAX_DIMENSIONS = 64

log = logging.getLogger(__name__)

Probe = Callable[[str], None]


def _no_probe(_: str) -> None:
    """Faults are injected here by tests."""


class NoDonor(PeerError):
    """No donor of the list gave its snapshot; says what each of them did."""


class Cancelled(Exception):
    """The fetch was cancelled by another thread."""


class Donor:
    """Answers joiners: `offer` a snapshot for a generation, `withdraw` it when that one has formed."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        probe: Probe = _no_probe,
        keepalive_s: float = KEEPALIVE_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._offers: dict[int, Snapshot] = {}
        self._over = 0  # generations up to this one are over
        self._closed = False
        self._changed = threading.Condition()
        self._probe, self._keepalive_s, self._stall_s = probe, keepalive_s, stall_s
        endpoint.on(KIND, self._serve)

    def offer(self, generation: int, snapshot: Snapshot) -> None:
        """The state with which `generation` begins; served until it is withdrawn."""
        with self._changed:
            self._offers[generation] = snapshot
            self._changed.notify_all()

    def withdraw(self, generation: int) -> None:
        """Generations up to this one need no state any more: who still waits is told, memory is freed."""
        with self._changed:
            self._over = max(self._over, generation)
            self._offers = {g: s for g, s in self._offers.items() if g > self._over}
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._offers.clear()
            self._changed.notify_all()

    def _serve(self, connection: Connection, request: Message) -> None:
        generation = request.get("generation")
        if type(generation) is not int:
            raise PeerError(f"{connection.peer} asked for the state of generation {generation!r}")
        snapshot = self._await(connection, generation)
        if snapshot is None:
            why = "the worker ends" if self._closed else f"generation {generation} is over"
            connection.send({"refused": why}, self._stall_s)
            return
        digests = snapshot.digests
        rows = pack(
            [[e.path, e.dtype, list(e.shape), d] for e, d in zip(snapshot.entries, digests, strict=True)]
        )
        head = {"digest": snapshot.digest, "meta": len(snapshot.meta), "rows": len(rows)}
        connection.send(head, self._stall_s)
        self._send(connection, memoryview(snapshot.meta + rows))
        wanted = connection.receive(self._stall_s).get("want")
        if not isinstance(wanted, bytes) or len(wanted) != len(snapshot.entries):
            raise PeerError(f"{connection.peer} did not say which tensors it wants")
        tensors = [t for t, want in zip(snapshot.tensors, wanted, strict=True) if want]
        for chunk in self._gathered(tensors):
            self._send(connection, chunk)
        connection.send({"digest": snapshot.digest}, self._stall_s)

    def _await(self, connection: Connection, generation: int) -> Snapshot | None:
        """The snapshot, once it exists; None when there will be none. PeerError when the joiner has gone."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._settled(generation), self._keepalive_s)
                if self._settled(generation):
                    return self._offers.get(generation)
            connection.send({"waiting": generation}, self._stall_s)

    def _settled(self, generation: int) -> bool:
        return self._closed or generation in self._offers or generation <= self._over

    def _gathered(self, tensors: Sequence[Tensor]) -> Iterator[memoryview]:
        """The tensors' bytes in order, small ones together."""
        small = bytearray()
        for tensor in tensors:
            self._probe("donor_sending")
            data = memoryview(memory(tensor))
            if len(data) < GATHER_BYTES:
                small += data
            if len(small) >= GATHER_BYTES or len(data) >= GATHER_BYTES:
                if small:
                    yield memoryview(bytes(small))
                    small.clear()
                if len(data) >= GATHER_BYTES:
                    yield data
        if small:
            yield memoryview(small)

    def _send(self, connection: Connection, data: memoryview) -> None:
        for begin in range(0, len(data), CHUNK_BYTES):
            connection.send_bytes(data[begin : begin + CHUNK_BYTES], self._stall_s)


class Fetch:
    """One joiner's attempt to get the state of `generation` from any of `donors` (addresses, in order).

    `have` is the joiner's own state: what agrees is taken from it. A snapshot may hold `limit_bytes` at
    most, and `accept` raises ValueError for tensors that cannot be part of it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        donors: Sequence[str],
        generation: int,
        have: Snapshot,
        *,
        limit_bytes: int,
        accept: Callable[[Sequence[Entry]], None] | None = None,
        probe: Probe = _no_probe,
        stall_s: float = STALL_S,
    ) -> None:
        self._endpoint, self._donors, self._generation = endpoint, tuple(donors), generation
        self._have: Snapshot | None = have
        self._limit_bytes, self._accept = limit_bytes, accept
        self._probe, self._stall_s = probe, stall_s
        self._known: dict[tuple[Entry, bytes], Tensor] = {}
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self.received_bytes = 0  # of tensors, from all donors

    def cancel(self) -> None:
        """Any thread: `run` raises Cancelled at once."""
        self._cancelled.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def run(self) -> Snapshot:
        """The donor's snapshot, whole and checked. Raises NoDonor, or Cancelled."""
        failures = []
        for address in self._donors:
            try:
                with self._open(address) as connection:
                    return self._receive(connection)
            except (PeerError, ValueError) as error:
                if self._cancelled.is_set():
                    break
                log.warning("generation %d: no state from %s: %s", self._generation, address, error)
                failures.append(f"{address}: {error}")
        if self._cancelled.is_set():
            raise Cancelled(f"the state of generation {self._generation} is no longer wanted")
        raise NoDonor(f"no donor gave the state of generation {self._generation}: {'; '.join(failures)}")

    def _open(self, address: str) -> Connection:
        """A connection with the request on it; connecting happens aside, so that a cancel need not wait."""
        done = threading.Event()
        outcome: list[Connection | PeerError] = []

        def connect() -> None:
            try:
                request = {"generation": self._generation}
                outcome.append(self._endpoint.request(address, KIND, request, self._stall_s))
            except PeerError as error:
                outcome.append(error)
            done.set()
            if self._cancelled.is_set() and isinstance(outcome[0], Connection):
                outcome[0].close()

        threading.Thread(target=connect, name="godmw-fetch-connect", daemon=True).start()
        while not done.wait(0.02):
            if self._cancelled.is_set():
                break
        with self._lock:
            if self._cancelled.is_set():
                for late in outcome:
                    if isinstance(late, Connection):
                        late.close()
                raise PeerError("cancelled")
            (result,) = outcome
            if isinstance(result, PeerError):
                raise result
            self._connection = result
        return result

    def _receive(self, connection: Connection) -> Snapshot:
        self._know_own()  # while the donor does the same with its own
        head = connection.receive(self._stall_s)
        while "waiting" in head:
            head = connection.receive(self._stall_s)
        if "refused" in head:
            raise PeerError(f"refused: {head['refused']!s:.200}")
        whole, meta_bytes, row_bytes = self._head(head)
        text = bytearray(meta_bytes + row_bytes)
        self._fill(connection, memoryview(text))
        meta = bytes(text[:meta_bytes])
        entries, digests = _read_rows(bytes(text[meta_bytes:]))
        total = len(text) + sum(entry.nbytes for entry in entries)
        if total > self._limit_bytes:
            raise PeerError(f"a snapshot of {total} bytes, at most {self._limit_bytes} can be")
        if self._accept is not None:
            self._accept(entries)
        if digest_of(meta, entries, digests) != whole:
            raise PeerError("the snapshot's digest is not that of its parts")
        keys = list(zip(entries, digests, strict=True))
        wanted = [key for key in keys if key not in self._known]
        connection.send({"want": bytes(key not in self._known for key in keys)}, self._stall_s)
        for entry, expected in wanted:
            self._probe("joiner_receiving")
            tensor = torch.empty(entry.shape, dtype=dtype_named(entry.dtype))
            self._fill(connection, memoryview(memory(tensor)))
            if digest(memory(tensor)) != expected:
                raise PeerError(f"{entry.path} arrived with another digest than was announced")
            self._known[entry, expected] = tensor
            self.received_bytes += entry.nbytes
        if connection.receive(self._stall_s).get("digest") != whole:
            raise PeerError("the snapshot changed while it was sent")
        return Snapshot(meta, entries, [self._known[key] for key in keys], digests)

    def _know_own(self) -> None:
        """Copies, because the script may change its tensors before the snapshot is applied."""
        if self._have is not None:
            own, self._have = self._have.copied(), None
            keys = zip(own.entries, own.digests, strict=True)
            self._known.update(zip(keys, own.tensors, strict=True))

    def _head(self, head: dict[str, Any]) -> tuple[bytes, int, int]:
        whole, meta_bytes, row_bytes = head.get("digest"), head.get("meta"), head.get("rows")
        if not isinstance(whole, bytes) or type(meta_bytes) is not int or type(row_bytes) is not int:
            raise PeerError(f"an answer that announces no snapshot: {head!r:.100}")
        if meta_bytes < 0 or row_bytes < 0 or meta_bytes + row_bytes > self._limit_bytes:
            raise PeerError(f"a snapshot with {meta_bytes} + {row_bytes} bytes of description")
        return whole, meta_bytes, row_bytes

    def _fill(self, connection: Connection, view: memoryview) -> None:
        for begin in range(0, len(view), CHUNK_BYTES):
            connection.receive_into(view[begin : begin + CHUNK_BYTES], self._stall_s)


def _read_rows(data: bytes) -> tuple[list[Entry], list[bytes]]:
    """Entries and digests as announced; ValueError for what cannot be."""
    entries, digests = [], []
    rows = unpack(data)
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, list) or len(row) != 4 or not isinstance(row[2], list):
            raise ValueError(f"not a tensor's description: {row!r:.80}")
        path, dtype, shape, tensor_digest = row
        if not isinstance(path, str) or len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"not a tensor's description: {row!r:.80}")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{path}: not a shape: {shape!r:.80}")
        if not isinstance(tensor_digest, bytes) or len(tensor_digest) != DIGEST_BYTES:
            raise ValueError(f"{path}: not a digest")
        dtype_named(dtype)
        entries.append(Entry(path, dtype, tuple(shape)))
        digests.append(tensor_digest)
    return entries, digests
