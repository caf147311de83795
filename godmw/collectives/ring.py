"""Sums over the members of one generation: a pipelined ring, out of place, and the ready word.

`allreduce` never writes what it is given: it sends from there and builds the sum in the result buffer,
which the generation owns. A late read by a dead generation harms nobody: the caller changes what it gave
before its last bucket has left, or when nobody can be whole any more, or when all are. Additions follow the
ring's order and every chunk is summed by one rank, so all ranks hold the same bits. Few Python operations a
segment: the main thread needs the interpreter. On the communication thread only; knows no step or plan.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from godmw.collectives.packing import Packed, Packing, Results, shape_of
from godmw.collectives.schedule import Exchange, dissemination, ring
from godmw.collectives.transport import Abandoned, Parcel, Transport, Work

SEGMENT_BYTES = 2 << 20
WHOLE_BYTES = 512 << 10  # two ranks swap whole buffers up to here: the same bytes, one round less
IN_FLIGHT = 4  # exchanges posted ahead of the one waited for, where sends and receives are grouped

Waiting = tuple[int, str, float]  # rank, stage, monotonic seconds since when


def nothing(_: str) -> None:
    """The probe that plants no fault."""


@dataclass(slots=True)
class _Prepared:
    """One exchange of a schedule, with its views of the result buffer.

    What is sent is `own`, bytes (part, low, high) of the contribution, or `send`: a range of the result
    buffer, or of a staging buffer where the contribution's range crosses parts; `staged` is copied there.
    """

    own: tuple[int, int, int] | None
    send: Tensor | None
    staged: list[tuple[Tensor, int, int, int]]
    receives: list[Parcel]
    adds: list[tuple[Tensor, int, int, int]]  # (view, part, low, high), after receiving
    after: int
    stage: str


class Ring:
    """The operations of one generation; one of a single member needs no transport."""

    def __init__(
        self,
        transport: Transport | None,
        results: Results,
        segment_bytes: int = SEGMENT_BYTES,
        probe: Callable[[str], None] = nothing,
    ) -> None:
        self.transport = transport
        self.world_size = 1 if transport is None else transport.world_size
        self.rank = 0 if transport is None else transport.rank
        self.waiting: Waiting | None = None
        self.abandoned = False
        self._results, self._probe = results, probe
        self._segment_bytes = (
            max(segment_bytes, transport.least_segment_bytes) if transport else segment_bytes
        )
        self._scratch: dict[object, Packed] = {}
        self._greeting = [self._word(), self._word()] if transport is not None else []
        self._words = [
            (self._word(), self._word(), to, source)
            for to, source in dissemination(self.rank, self.world_size)
        ]

    def allreduce(self, parts: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """`out[i]` = sum over the ranks of `parts[i]`, the same bits on every rank.

        `parts` are 1-D and contiguous, of any numeric dtypes, alike on all ranks; they are only read. `out`
        is best a bucket of `Links.results`: the sum is then built there. Raises LinkError, Abandoned.
        """
        self._check()
        if self.transport is None or self.world_size == 1:
            for source, target in zip(parts, out, strict=True):
                target.copy_(source)
            return
        self.transport.begin()
        built_in_place = self._results.packed(out)
        packed = built_in_place or self._own(parts, "sum")
        if self.world_size == 2 and packed.packing.length <= WHOLE_BYTES:
            self._swap(parts, packed)
        else:
            self._go_round(parts, packed)
        if not built_in_place:
            for source, target in zip(packed.parts, out, strict=True):
                target.copy_(source)
        self._check()

    def ready(self, word: int) -> int:
        """The smallest word of all members (int64); returns when every member has called it."""
        self._check()
        if self.transport is not None:
            self.transport.begin()
        for mine, theirs, to, source in self._words:
            mine.fill_(word)
            assert self.transport is not None
            work = self.transport.exchange([(mine, to)], [(theirs, source)], "ready")
            self._wait(work, source, "ready")
            word = min(word, int(theirs.item()))
        self._check()
        return word

    def stranger(self, word: int) -> int | None:
        """The rank before this one, when its word (int64) for the operation to come is another one.

        Before the first bytes of an operation: gloo ends the process when messages differ in size. Where not
        all words are equal at least one rank is told, and it asks nobody for data.
        """
        self._check()
        if self.transport is None or self.world_size == 1:
            return None
        self.transport.begin()
        left = (self.rank - 1) % self.world_size
        mine, theirs = self._greeting
        mine.fill_(word)
        work = self.transport.exchange([(mine, (self.rank + 1) % self.world_size)], [(theirs, left)], "open")
        self._wait(work, left, "open")
        self._check()
        return left if int(theirs.item()) != word else None

    # ---- how ----

    def _check(self) -> None:
        if self.abandoned:
            raise Abandoned

    def _word(self) -> Tensor:
        assert self.transport is not None
        return self.transport.allocate(8).view(torch.int64)

    def _own(self, parts: Sequence[Tensor], purpose: str) -> Packed:
        """A buffer of the ring's own, kept for the next operation of the same shape."""
        shape = shape_of(parts)
        if (purpose, shape) not in self._scratch:
            assert self.transport is not None
            self._scratch[purpose, shape] = Packed(Packing(shape), self.transport.allocate)
        return self._scratch[purpose, shape]

    def _wait(self, work: Work, peer: int, stage: str) -> None:
        self.waiting = (peer, stage, time.monotonic())
        work.wait()
        self.waiting = None

    def _swap(self, parts: Sequence[Tensor], packed: Packed) -> None:
        """Two ranks, little data: both send all of it and add in rank order."""
        assert self.transport is not None
        peer = 1 - self.rank
        staged = self._own(parts, "swap")
        for source, target in zip(parts, staged.parts, strict=True):
            target.copy_(source)
        parcel = [(packed.buffer, peer)] if packed.packing.length else []
        work = self.transport.exchange([(staged.buffer, peer)] if parcel else [], parcel, "reduce_scatter")
        self._probe("first_send")
        self._wait(work, peer, "reduce_scatter")
        for mine, theirs in zip(parts, packed.parts, strict=True):
            if self.rank == 0:
                torch.add(mine, theirs, out=theirs)
            else:
                theirs.add_(mine)

    def _go_round(self, parts: Sequence[Tensor], packed: Packed) -> None:
        """Where receives need not be grouped with sends all are posted at once: no send waits for one."""
        transport = self.transport
        assert transport is not None
        if packed.exchanges is None:
            packed.exchanges = self._prepare(packed)
        exchanges: list[_Prepared] = packed.exchanges
        left, right = (self.rank - 1) % self.world_size, (self.rank + 1) % self.world_size
        ahead = transport.receives_ahead
        window = len(exchanges) if ahead else IN_FLIGHT
        works = [transport.exchange([], e.receives, e.stage) for e in exchanges] if ahead else []
        sending: list[Work] = []
        for done, exchange in enumerate(exchanges):
            end = min(done + window, len(exchanges))
            while len(sending) < end and exchanges[len(sending)].after < done:
                going = exchanges[len(sending)]
                sends = self._parcels(going, parts, right)
                sending.append(transport.exchange(sends, [] if ahead else going.receives, going.stage))
                if len(sending) == 1:
                    self._probe("first_send")
            self._wait((works or sending)[done], left, exchange.stage)
            for view, part, low, high in exchange.adds:
                view.add_(parts[part][low:high])
        for work in sending if ahead else ():
            self._wait(work, right, "all_gather")

    def _parcels(self, exchange: _Prepared, parts: Sequence[Tensor], right: int) -> list[Parcel]:
        if exchange.own is not None:
            part, low, high = exchange.own
            return [(parts[part].view(torch.uint8)[low:high], right)]
        for view, part, low, high in exchange.staged:
            view.copy_(parts[part][low:high])
        return [] if exchange.send is None else [(exchange.send, right)]

    def _prepare(self, packed: Packed) -> list[_Prepared]:
        assert self.transport is not None
        allocate, least_bytes = self.transport.allocate, self.transport.least_segment_bytes
        left = (self.rank - 1) % self.world_size
        packing, buffer = packed.packing, packed.buffer
        staging: Packed | None = None

        def prepared(exchange: Exchange) -> _Prepared:
            nonlocal staging
            (low, high), (start, end) = exchange.send, exchange.receive
            pieces = packing.pieces(low, high) if exchange.own else []
            own, send, staged = None, buffer[low:high] if high > low else None, []
            if len(pieces) == 1 and packing.nbytes(pieces[0]) == high - low:
                first = low - packing.offsets[pieces[0].part]
                own, send = (pieces[0].part, first, first + high - low), None
            elif exchange.own and send is not None:
                staging = staging or Packed(packing, allocate)
                send = staging.buffer[low:high]
                staged = [(staging.parts[p.part][p.low : p.high], p.part, p.low, p.high) for p in pieces]
            added = packing.pieces(start, end) if exchange.reduce else []
            return _Prepared(
                own=own,
                send=send,
                staged=staged,
                receives=[(buffer[start:end], left)] if end > start else [],
                adds=[(packed.parts[p.part][p.low : p.high], p.part, p.low, p.high) for p in added],
                after=exchange.after,
                stage="reduce_scatter" if exchange.reduce else "all_gather",
            )

        schedule = ring(self.rank, self.world_size, packing.length, self._segment_bytes, least_bytes)
        return [prepared(exchange) for exchange in schedule]
