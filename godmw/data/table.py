"""The exact table of an operation: who filled which shard with what, and the flags members vote with.

int64 [S + 1, 6]; a member fills the rows of its own shards and leaves the others zero, so that the sum
over all members holds every row once, to the last bit (floats travel as their bit pattern).  It is summed
with the last bucket; `check` is run by every member on the sum before anything is committed, and the rows
go into the ledger. Row 0 is the header, row 1 + s is shard s.  Pure numpy: no torch, no members, no
transport.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from godmw.errors import InternalError, JobFailed

Words = npt.NDArray[np.int64]

# columns of a shard's row
FILLED, SAMPLES, WEIGHT, LOSS, HASH, HOLDER = range(6)
# columns of the header row
SETTINGS, MEMBERS, STOP, SINGLE, NONFINITE, SKIPPED = range(6)
COLUMNS = 6
_LITTLE = np.dtype("<i8")


def digest_word(digest: bytes) -> int:
    """The first 8 bytes of a digest as the header's signed word."""
    return int.from_bytes(digest[:8], "little", signed=True)


def _wrap(word: int) -> int:
    """A whole number modulo 2**64 as a signed word."""
    return (word + 2**63) % 2**64 - 2**63


class Table:
    """One member's part of an operation's table; `array` is what is summed."""

    def __init__(self, shards: int) -> None:
        self.array: Words = np.zeros((shards + 1, COLUMNS), dtype=np.int64)

    @property
    def shards(self) -> int:
        return len(self.array) - 1

    def open(self, *, settings: int = 0) -> None:
        """Empty the table for a new operation; `settings` is `digest_word` of what all members must agree
        on.
        """
        self.array[:] = 0
        self.array[0, SETTINGS] = settings
        self.array[0, MEMBERS] = 1

    def hold(self, rank: int) -> None:
        """The filled rows are those of the member that has `rank` now: it may have had another before."""
        self.array[1:, HOLDER] = (self.array[1:, FILLED] > 0) * (rank + 1)

    def flag(self, column: int) -> None:
        """Raise this member's flag: STOP, SINGLE (one batch was the whole step: its gradient is taken as
        it is), NONFINITE or SKIPPED.
        """
        self.array[0, column] = 1

    def fill(
        self, shard: int, *, samples: int, weight: float, loss_sum: float, hash: int, rank: int
    ) -> None:
        """Add one batch's part of `shard`: its samples, its weight, weight x loss, and its `index_hash`.

        A shard cut into several batches is filled by each of them in turn.
        """
        row = self.array[shard + 1]
        floats = row.view(np.float64)
        row[FILLED] = 1
        row[SAMPLES] += samples
        floats[WEIGHT] += weight
        floats[LOSS] += loss_sum
        row[HASH] = _wrap(int(row[HASH]) + hash)
        row[HOLDER] = rank + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """What a summed table says of its operation; floats are summed in shard order.

    `loss` is the global mean (NaN when the weight is zero), `bad_shards` those whose loss or weight is
    not finite.
    """

    samples: int
    weight: float
    loss: float
    members: int
    stop: int
    single: bool
    nonfinite: int
    skipped: int
    bad_shards: tuple[int, ...]


def totals(summed: Words) -> Totals:
    """Read a table that has passed `check`."""
    rows, header = summed[1:], summed[0]
    floats = np.ascontiguousarray(rows[:, WEIGHT : LOSS + 1]).view(np.float64)
    # cumsum adds strictly in order; sum() does not
    weight, loss_sum = (float(total) for total in floats.cumsum(axis=0)[-1]) if len(rows) else (0.0, 0.0)
    bad = ~np.isfinite(floats).all(axis=1)
    return Totals(
        samples=int(rows[:, SAMPLES].sum()),
        weight=weight,
        loss=loss_sum / weight if weight else math.nan,
        members=int(header[MEMBERS]),
        stop=int(header[STOP]),
        single=bool(header[SINGLE]),
        nonfinite=int(header[NONFINITE]),
        skipped=int(header[SKIPPED]),
        bad_shards=tuple(int(shard) for shard in np.flatnonzero(bad)),
    )


def holder(summed: Words, shard: int) -> int:
    """The rank that computed `shard`."""
    return int(summed[shard + 1, HOLDER]) - 1


def check(
    summed: Words,
    *,
    settings: int,
    world_size: int,
    bounds: Sequence[tuple[int, int]] | None = None,
    hashes: npt.NDArray[np.uint64] | None = None,
) -> None:
    """Raise unless every shard was filled once, by one member, with the samples it should have.

    `bounds` and `hashes` (of `shard_hashes`) are the expected ones; None where an operation has no samples.
    InternalError for a shard filled never, twice or with other samples; JobFailed when the members did
    not agree on `settings`.
    """
    header = summed[0]
    if int(header[MEMBERS]) != world_size:
        raise InternalError(f"{int(header[MEMBERS])} members filled the table of {world_size}")
    if int(header[SETTINGS]) != _wrap(settings * world_size):
        raise JobFailed(
            "the workers do not stand at the same operation: loop, step or arguments differ between them",
            hint="every worker must run the same script with the same arguments in the same order",
        )
    rows = summed[1:]
    wrong = np.flatnonzero(rows[:, FILLED] != 1)
    if wrong.size:
        shard = int(wrong[0])
        raise InternalError(
            f"shard {shard} of {len(rows)} was filled {int(rows[shard, FILLED])} times, not once"
        )
    if bounds is not None:
        sizes = np.array([high - low for low, high in bounds], dtype=np.int64)
        _compare(rows, SAMPLES, sizes, "samples")
    if hashes is not None:
        _compare(rows, HASH, hashes.view(np.int64), "sample hash")


def _compare(rows: Words, column: int, expected: Words, what: str) -> None:
    if len(rows) != len(expected):
        raise InternalError(f"a table of {len(rows)} shards where {len(expected)} were expected")
    wrong = np.flatnonzero(rows[:, column] != expected)
    if wrong.size:
        shard = int(wrong[0])
        raise InternalError(
            f"shard {shard}, computed by rank {int(rows[shard, HOLDER]) - 1}: {what} "
            f"{int(rows[shard, column])}, expected {int(expected[shard])}"
        )


def to_bytes(summed: Words) -> bytes:
    """The table as the ledger gets it: little-endian int64, row by row."""
    return summed.astype(_LITTLE, copy=False).tobytes()


def from_bytes(data: bytes) -> Words:
    """The table that `to_bytes` wrote.  Raises ValueError for a size no table has."""
    if len(data) < 8 * COLUMNS or len(data) % (8 * COLUMNS):
        raise ValueError(f"{len(data)} bytes are no table of rows of {8 * COLUMNS}")
    words: Any = np.frombuffer(data, dtype=_LITTLE).astype(np.int64)
    array: Words = words.reshape(-1, COLUMNS)
    return array
