"""Which samples belong to a step: pure functions of (seed, epoch, step) that know nothing of workers.

A loop is described once by `LoopSpec`; every member, the ledger's audit and a later reader work out the same
slice of samples and the same shards from it.  The order of an epoch is a keyed permutation that is evaluated
only where it is asked for, so an epoch of ten million samples costs what one step's slice costs.  Golden
values in the tests freeze it: a change here changes the meaning of every ledger and every resumed job.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from godmw.errors import UsageError

Indices = npt.NDArray[np.int64]
Bounds = list[tuple[int, int]]

ROUNDS = 12  # from 12 on the permutations of five things are as likely as each other (see the tests)
MAX_SHARDS = 65536
DEFAULT_SHARDS = 64
_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(bits) for bits in (27, 30, 31, 32))


def mix(word: int) -> int:
    """A 64-bit word well mixed: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    word = (word + _GOLDEN) & _WORD
    word = ((word ^ (word >> 30)) * int(_M1)) & _WORD
    word = ((word ^ (word >> 27)) * int(_M2)) & _WORD
    return word ^ (word >> 31)


def order_key(seed: int, epoch: int, loop: int = 0) -> int:
    """The permutation key of one pass over the data.  `seed` is taken modulo 2**64."""
    return mix(mix(mix(seed & _WORD) ^ loop) ^ epoch)


@lru_cache(maxsize=64)
def _round_keys(key: int) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(mix(key ^ mix(number))) for number in range(ROUNDS))


def _feistel(words: npt.NDArray[np.uint64], rows: int, columns: int, key: int) -> npt.NDArray[np.uint64]:
    """A keyed bijection of range(rows * columns): a Feistel network over Z_rows x Z_columns."""
    sizes = (np.uint64(rows), np.uint64(columns))
    right, left = np.divmod(words, sizes[0])
    halves = [left, right]
    for number, round_key in enumerate(_round_keys(key)):
        size = sizes[number % 2]
        hashed = halves[(number + 1) % 2] + round_key
        hashed ^= hashed >> _S30
        hashed *= _M1
        hashed ^= hashed >> _S27
        hashed *= _M2
        hashed >>= _S32
        hashed *= size
        hashed >>= _S32  # uniform in range(size)
        hashed += halves[number % 2]
        hashed %= size
        halves[number % 2] = hashed
    return halves[1] * sizes[0] + halves[0]


def permute(n: int, key: int, positions: Indices) -> Indices:
    """The values at `positions` of the permutation of range(n) that `key` names; O(len(positions)).

    Generalised Feistel with cycle walking (Black and Rogaway 2002, "Ciphers with arbitrary finite domains",
    method 3): n is enclosed by rows * columns < n + sqrt(n) + 1, so a walk of more than one step is rare.
    Raises ValueError when n is not in 1 .. 2**62 or a position is not in range(n).
    """
    if not 1 <= n <= 2**62:
        raise ValueError(f"a permutation of {n} things")
    if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= n):
        raise ValueError(f"positions must lie in range({n})")
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)
    found = _feistel(positions.astype(np.uint64), rows, columns, key)
    outside = found >= np.uint64(n)
    while outside.any():
        found[outside] = _feistel(found[outside], rows, columns, key)
        outside = found >= np.uint64(n)
    return found.astype(np.int64)


def _hashes(indices: Indices) -> npt.NDArray[np.uint64]:
    """`mix` of every index."""
    words = indices.astype(np.uint64) + np.uint64(_GOLDEN)
    words ^= words >> _S30
    words *= _M1
    words ^= words >> _S27
    words *= _M2
    words ^= words >> _S31
    return words


def index_hash(indices: Indices) -> int:
    """The hash of a set of dataset indices: a sum modulo 2**64, so that it adds over shards and batches."""
    return int(_hashes(indices).sum(dtype=np.uint64)) if len(indices) else 0


def shard_hashes(indices: Indices, bounds: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64]:
    """`index_hash` of every shard of a step, uint64 [len(bounds)].  `bounds` cover `indices` without a
    gap.
    """
    return np.add.reduceat(_hashes(indices), [low for low, _ in bounds])


def cut(n: int, parts: int) -> Bounds:
    """range(n) in `parts` contiguous pieces, sizes differing by at most one, the longer ones first.

    >>> cut(5, 2)
    [(0, 3), (3, 5)]
    """
    if not 1 <= parts <= max(n, 1):
        raise ValueError(f"{n} samples in {parts} parts")
    size, longer = divmod(n, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(starts))


def default_shards(batch_size: int) -> int:
    """S of a loop whose script names none: min(batch, 64)."""
    return min(batch_size, DEFAULT_SHARDS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpec:
    """One `job.steps` loop: everything that decides which samples each of its steps has.

    `length` samples in the dataset, `batch_size` in a step of the whole job, `shards` the loop's S (0: the
    default), `first_step` the job-wide index of the loop's first step.  A step's number inside the loop
    counts from 0 over all epochs.  Raises UsageError for a loop that cannot be meant.
    """

    length: int
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    shards: int = 0
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 0
    batch_statistics: bool = False
    loop: int = 0
    first_step: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "batch_size", "epochs", "steps", "shards", "seed", "loop", "first_step"):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name in ("epochs", "steps")):
                raise UsageError(f"{name}={value!r}: a whole number was expected")
        if self.length < 1:
            raise UsageError(
                "the dataset is empty: len(dataset) is 0", hint="give job.steps a dataset with samples"
            )
        if self.batch_size < 1:
            raise UsageError(
                f"batch_size={self.batch_size}: 1 or more was expected",
                hint="batch_size is global, over all workers: job.steps(data, batch_size=256, epochs=1)",
            )
        if self.epochs is None and self.steps is None:
            raise UsageError(
                "neither epochs nor steps was given: the loop would never end",
                hint="type job.steps(data, batch_size=256, epochs=3) or steps=1000",
            )
        for name, value in (("epochs", self.epochs), ("steps", self.steps)):
            if value is not None and value < 0:
                raise UsageError(f"{name}={value}: 0 or more was expected")
        if not self.shards:
            object.__setattr__(self, "shards", default_shards(self.batch_size))
        if not 1 <= self.shards <= MAX_SHARDS:
            raise UsageError(f"shards={self.shards}: 1 to {MAX_SHARDS} was expected")
        if self.drop_last and self.length < self.batch_size:
            raise UsageError(
                f"drop_last=True drops the only step: {self.length} samples, batch_size={self.batch_size}",
                hint=f"take drop_last=False, or batch_size={self.length} or less",
            )

    @property
    def steps_per_epoch(self) -> int:
        whole = self.length // self.batch_size
        return whole if self.drop_last else -(-self.length // self.batch_size)

    @property
    def total_steps(self) -> int:
        """Steps of the loop when it runs to its end."""
        ends = [self.steps] if self.steps is not None else []
        if self.epochs is not None:
            ends.append(self.epochs * self.steps_per_epoch)
        return min(ends)

    def epoch_of(self, step_in_loop: int) -> int:
        return step_in_loop // self.steps_per_epoch

    def _slice(self, step_in_loop: int) -> tuple[int, int]:
        """Where the step lies in its epoch's order."""
        if not 0 <= step_in_loop < self.total_steps:
            raise IndexError(f"step {step_in_loop} of a loop of {self.total_steps}")
        low = step_in_loop % self.steps_per_epoch * self.batch_size
        return low, min(low + self.batch_size, self.length)

    def step_indices(self, step_in_loop: int) -> Indices:
        """The dataset indices of the step's global batch, int64, in order."""
        low, high = self._slice(step_in_loop)
        positions = np.arange(low, high, dtype=np.int64)
        if not self.shuffle:
            return positions
        return permute(self.length, order_key(self.seed, self.epoch_of(step_in_loop), self.loop), positions)

    def shard_bounds(self, step_in_loop: int) -> Bounds:
        """(low, high) of every shard in `step_indices`: min(S, n) of them.

        With batch statistics there are at most max(1, n // 2): batch-norm refuses a batch of one sample.
        """
        low, high = self._slice(step_in_loop)
        samples = high - low
        parts = min(self.shards, samples)
        return cut(samples, min(parts, max(1, samples // 2)) if self.batch_statistics else parts)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> LoopSpec:
        """The spec that `to_json` wrote.  Raises ValueError for anything else."""
        data: Any = json.loads(text)
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise ValueError(f"a loop needs exactly the fields {sorted(names)}")
        try:
            return cls(**data)
        except UsageError as error:
            raise ValueError(error.message) from error
