"""What a worker adds to one operation: the gradients' buckets, and the tail that rides behind the last one.

The tail is one vector of whole numbers (table, flags, which gradients and buffers exist, sums, integer
buffers) and, where float buffers change, one of float64. Sections that had no room grow: every member sees
it in the same sums and asks for another attempt. What has grown is kept when an attempt commits and taken
back when the membership changes, so that members with different attempts have equal layouts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from godmw.collectives.reducer import Reducer
from godmw.data import table as tables
from godmw.data.batches import Batch
from godmw.data.indices import Bounds, Indices, shard_hashes
from godmw.data.table import Table, Totals
from godmw.errors import InternalError
from godmw.worker import payloads
from godmw.worker.buffers import Buffers
from godmw.worker.interface import Operation
from godmw.worker.progress import Progress

Words = npt.NDArray[np.int64]


@dataclasses.dataclass
class Expected:
    """What the summed table must say: see `data.table.check`."""

    settings: int
    bounds: Bounds | None = None
    hashes: npt.NDArray[np.uint64] | None = None


class Sections:
    """A vector of whole numbers cut into named sections."""

    def __init__(self, **sections: Words) -> None:
        self._shapes = {name: section.shape for name, section in sections.items()}
        self.vector = np.concatenate([section.reshape(-1) for section in sections.values()])

    def read(self, vector: Tensor) -> dict[str, Words]:
        """The sections of a summed vector."""
        summed: Words = vector.cpu().numpy()
        if summed.shape != self.vector.shape:
            raise InternalError(f"{summed.size} words came back for {self.vector.size}")
        found, start = {}, 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            found[name] = summed[start : start + size].reshape(shape)
            start += size
        return found


class Judged:
    """What `accept` found in the results of each attempt.

    Attempts are judged on communication threads, and one that was given up may still be judged while the
    next is under way: so nothing of the contribution is changed there.
    """

    def __init__(self) -> None:
        self._attempts: list[tuple[list[list[Tensor]], dict[str, Words], Any]] = []

    def add(self, results: list[list[Tensor]], found: dict[str, Words], grown: Any) -> None:
        self._attempts.append((results, found, grown))

    def of(self, results: list[list[Tensor]]) -> dict[str, Words]:
        """The sections of the attempt that was committed."""
        return next(found for judged, found, _ in reversed(self._attempts) if judged is results)

    @property
    def grown(self) -> Any:
        """The layout that the last attempt asked for."""
        return self._attempts[-1][2]


class StepContribution:
    """The contribution of one step. `operation` is set as soon as it is open."""

    operation: Operation

    def __init__(self, reducer: Reducer, buffers: Buffers, progress: Progress, expected: Expected) -> None:
        self._reducer, self._buffers, self._progress = reducer, buffers, progress
        self._expected = expected
        assert expected.bounds is not None
        self.table = Table(len(expected.bounds))
        self.table.open(settings=expected.settings)
        self.sums: dict[int, dict[str, float | int]] = {}  # first shard of a batch -> its step.sum
        self.pieces: dict[int, bytes] = {}
        self.filled = False  # anything is in here
        self.words, self.active = progress.sums_words, list(progress.buffers)
        self.order_asked = progress.steps == 1  # the first step may be unlike the others
        self._judged = Judged()
        self._sections: Sections | None = None
        self._tail_parts = 1

    @property
    def buckets(self) -> int:
        return max(1, self._reducer.buckets)

    @property
    def last(self) -> int:
        """The bucket that the tail rides with: it leaves when all else is known."""
        return self.buckets - 1

    def fill(self, batch: Batch, indices: Indices, rank: int, *, weight: float, loss_sum: float) -> None:
        """Enter a batch that was handed to the user: `indices` are the samples it held.

        Weight and loss are known for the batch alone and stand in the row of its first shard.
        """
        sizes = [high - low for low, high in batch.spans]
        ends = list(accumulate(sizes))
        hashes = shard_hashes(indices, list(zip([0, *ends], ends, strict=False)))
        rows, shards = self.table.array, np.array(batch.shards, dtype=np.int64) + 1
        rows[shards, tables.FILLED] = 1
        rows[shards, tables.SAMPLES] += sizes
        rows[shards, tables.HASH] += hashes.view(np.int64)
        rows[shards, tables.HOLDER] = rank + 1
        floats = rows.view(np.float64)
        floats[shards[0], tables.WEIGHT] += weight
        # a loss that is not finite is known of no sample in particular: it is that of all the batch's shards
        floats[shards if not math.isfinite(loss_sum) else shards[:1], tables.LOSS] += loss_sum
        self.filled = True

    def poison(self) -> None:
        """This worker's gradients are not finite: said in the header and in the rows of its shards."""
        self.table.flag(tables.NONFINITE)
        mine = self.table.array[1:, tables.FILLED] > 0
        self.table.array.view(np.float64)[1:][mine, tables.LOSS] = math.nan

    def add_sums(self, shard: int, sums: dict[str, float | int]) -> None:
        """Add a batch's `step.sum` numbers under its first shard."""
        known = self.sums.setdefault(shard, {})
        for name, value in sums.items():
            known[name] = known.get(name, 0) + value

    def pieces_summed(self) -> dict[int, bytes]:
        """Shard -> the step's sums, from all members, in shard order."""
        return payloads.from_rows(self.summed["sums"])

    def parts(self, bucket: int) -> list[Tensor]:
        reducer, alone = self._reducer, self.operation.world_size == 1
        mine = reducer.parts(bucket) if bucket < reducer.buckets and not (alone and reducer.kept) else []
        return [*mine, *self._tail()] if bucket == self.last else mine

    def _tail(self) -> list[Tensor]:
        operation = self.operation
        self.table.hold(operation.rank)
        wholes = self._buffers.wholes(self.active)
        rows = np.zeros((operation.world_size, len(wholes)), dtype=np.int64)
        rows[operation.rank] = wholes
        self._sections = Sections(
            table=self.table.array,
            redo=np.array([self._reducer.redo], dtype=np.int64),
            touched=self._reducer.touched().numpy(),
            changed=self._buffers.changed(),
            order=self._order(),
            sums=payloads.to_rows(self.pieces, self.table.shards, self.words),
            wholes=rows,
        )
        reals = self._buffers.reals(self.active)
        self._tail_parts = 1 + bool(len(reals))
        return [torch.from_numpy(self._sections.vector), *([reals] if len(reals) else [])]

    def _order(self) -> Words:
        """In what order the holder of shard 0 saw its gradients, numbers from 1; zeros from others."""
        if not self.order_asked:
            return np.zeros(0, dtype=np.int64)
        order = np.zeros(len(self._reducer.parameters), dtype=np.int64)
        if self.table.array[1, tables.FILLED]:
            seen = self._reducer.observed_order()
            order[: len(seen)] = np.array(seen, dtype=np.int64) + 1
        return order

    def accept(self, results: list[list[Tensor]]) -> bool:
        assert self._sections is not None
        found = self._sections.read(self._tail_of(results)[0])
        expected = self._expected
        tables.check(
            found["table"],
            settings=expected.settings,
            world_size=self.operation.world_size,
            bounds=expected.bounds,
            hashes=expected.hashes,
        )
        words = payloads.words_needed(found["sums"])
        active = sorted({*self.active, *np.flatnonzero(found["changed"]).tolist()})
        grown = words != self.words or active != self.active
        self._judged.add(results, found, (words, active))
        return not grown and not found["redo"][0]

    def retry(self, *, same_generation: bool) -> None:
        """Another attempt; in a new generation members have seen different attempts: back to the start."""
        self._reducer.recall()
        if same_generation:
            self.words, self.active = self._judged.grown
        else:
            self.words, self.active = self._progress.sums_words, list(self._progress.buffers)

    @property
    def summed(self) -> dict[str, Words]:
        """The tail's sections as they were committed."""
        return self._judged.of(self.operation.results)

    def totals(self) -> Totals:
        return tables.totals(self.summed["table"])

    def _tail_of(self, results: list[list[Tensor]]) -> list[Tensor]:
        return results[self.last][len(results[self.last]) - self._tail_parts :]

    def gradients(self, results: list[list[Tensor]]) -> list[list[Tensor]]:
        """The results without the tail."""
        end = len(results[self.last]) - self._tail_parts
        return [*results[: self.last], results[self.last][:end]][: self._reducer.buckets]

    def commit_buffers(self, results: list[list[Tensor]], divisor: float | None) -> None:
        """Set the buffers to what the step made of them."""
        tail = self._tail_of(results)
        reals = tail[1].cpu() if len(tail) > 1 else torch.zeros(0, dtype=torch.float64)
        self._buffers.commit(self.active, self.summed["changed"], reals, self.summed["wholes"], divisor)

    def order(self) -> list[int]:
        """The order of gradients that this step's members agreed on; empty when it was not asked for."""
        return [int(index) - 1 for index in self.summed["order"] if index]


class GatherContribution:
    """A table and one piece of bytes a shard: evaluations, `once`."""

    operation: Operation
    buckets = 1

    def __init__(self, shards: int, expected: Expected, words: int = 32) -> None:
        self._expected, self._start = expected, words
        self.table = Table(shards)
        self.table.open(settings=expected.settings)
        self.pieces: dict[int, bytes] = {}
        self.words = words
        self._judged = Judged()
        self._sections: Sections | None = None

    def parts(self, bucket: int) -> list[Tensor]:
        self.table.hold(self.operation.rank)
        rows = payloads.to_rows(self.pieces, self.table.shards, self.words)
        self._sections = Sections(table=self.table.array, pieces=rows)
        return [torch.from_numpy(self._sections.vector)]

    def accept(self, results: list[list[Tensor]]) -> bool:
        assert self._sections is not None
        found = self._sections.read(results[0][0])
        expected = self._expected
        tables.check(
            found["table"],
            settings=expected.settings,
            world_size=self.operation.world_size,
            bounds=expected.bounds,
            hashes=expected.hashes,
        )
        words = payloads.words_needed(found["pieces"])
        self._judged.add(results, found, words)
        return words == self.words

    def retry(self, *, same_generation: bool) -> None:
        """Another attempt: in a new generation the rows are as long as at first."""
        self.words = self._judged.grown if same_generation else self._start

    @property
    def summed(self) -> dict[str, Words]:
        return self._judged.of(self.operation.results)


class ReduceContribution:
    """Tensors that every member adds to once; nobody computes for another."""

    operation: Operation
    buckets = 1

    def __init__(self, tensors: Sequence[Tensor], expected: Expected, *, stop: bool = False) -> None:
        self._expected = expected
        self._tensors = list(tensors)
        table = Table(0)
        table.open(settings=expected.settings)
        if stop:
            table.flag(tables.STOP)
        self._sections = Sections(table=table.array)
        self._judged = Judged()

    def parts(self, bucket: int) -> list[Tensor]:
        return [*self._tensors, torch.from_numpy(self._sections.vector)]

    def accept(self, results: list[list[Tensor]]) -> bool:
        found = self._sections.read(results[0][-1])
        tables.check(found["table"], settings=self._expected.settings, world_size=self.operation.world_size)
        self._judged.add(results, found, None)
        return True

    def retry(self, *, same_generation: bool) -> None:
        """Another attempt: nothing has changed."""

    @property
    def summed(self) -> dict[str, Words]:
        return self._judged.of(self.operation.results)

    def totals(self) -> Totals:
        return tables.totals(self.summed["table"])
