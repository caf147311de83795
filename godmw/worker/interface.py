"""What the engine and the control plane of a worker ask of each other.

The engine (`job.py`, `steps.py`, `operations.py`) knows the script, the shards and the numbers; the control
knows the members. A `Control` opens one `Operation` at a time; an operation hands out shards, moves the
buckets of a `Contribution` and says whether the sum is committed. `alone.py` implements both for one worker
without a master, `control.py` and `operation.py` for many, `tests/fakes` as a script. Everything here is
called on the main thread unless it says otherwise. Failures of the job come out of `prepare`, `open`,
`finish` as `GodmwError`, a worker's own good end (drained, no longer needed) as `SystemExit(0)`: the engine
lets them pass through the user's script.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import torch

from godmw.checkpoint.snapshot import Snapshot
from godmw.checkpoint.state import StateRegistry

Kind = Literal["step", "gather", "reduce"]


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """What a worker brings to the job when its script stands at its first operation.

    `settings`, `model` and `data` are digests that must be equal on all workers; `shards` is S of that
    operation; `seed` is the seed given to `join`, or -1; `detail` says the same in words, for the error of
    whoever differs.
    """

    settings: bytes
    model: bytes
    data: bytes
    shards: int
    seed: int
    detail: str


class Contribution(Protocol):
    """What this worker adds to one operation; the same number of buckets and sizes on every member."""

    @property
    def buckets(self) -> int:
        """How many buckets there are, at least 1."""
        ...

    def parts(self, bucket: int) -> list[torch.Tensor]:
        """The 1-D contiguous tensors of a bucket. Asked for by `Operation.launch`, in that call.

        The tensors are not written by the reduction, and not by the engine until `finish` has returned.
        Sizes may depend on the operation's `world_size`, and differ from those of an earlier attempt.
        """
        ...

    def accept(self, results: list[list[torch.Tensor]]) -> bool:
        """Judge the sums: called once an attempt, when every bucket's result is there and before *ready*,
        on any thread; `results` is the very list that becomes `Operation.results`.

        Only a member that has accepted is *whole*. False asks for another attempt in the same generation
        (`finish` returns False): the layout was too small, or a gradient came after its bucket had left. The
        answer depends on `results` alone, so all members give the same. Raises `GodmwError` on a sum that
        cannot be: a shard twice or not at all, members at different operations.
        """
        ...


class Operation(Protocol):
    """One collective thing that all members do, from `Control.open` to the `finish` that returns True.

    `rank`, `world_size` and `generation` are those of the current attempt: they change only when `finish`
    returns False. The engine's loop is: begin and compute `todo()`; launch every bucket in order; `finish`;
    on False once more from the top, with the contribution kept.
    """

    number: int  # committed operations before this one
    shards: int

    @property
    def generation(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...

    results: list[list[torch.Tensor]]  # set by the finish() that returns True; per bucket, per part; private

    def worker(self, rank: int) -> str:
        """The id of the member that has this rank in the current attempt."""
        ...

    def todo(self) -> tuple[int, ...]:
        """This worker's shards that it has not begun, ascending. May grow when `finish` returned False."""
        ...

    def begin(self, shards: Sequence[int]) -> bool:
        """The batch with these shards is about to be handed to the user: they are this worker's from now on.

        Shards begun before are allowed again (a shard cut into several batches). False: the membership is
        changing and nothing was begun; go on to `launch` and `finish`.
        """
        ...

    def launch(self, bucket: int) -> None:
        """`contribution.parts(bucket)` is final for this attempt: it may be sent. Buckets go in order.

        Called on whatever thread runs the backward. Does nothing when the generation was aborted.
        """
        ...

    def finish(self) -> bool:
        """Wait for the sum. True: committed, by all. False: another attempt, perhaps with more shards."""
        ...


class Engine(Protocol):
    """What the control asks of the engine, on the main thread, inside its own methods."""

    registry: StateRegistry  # of all that must stay equal

    def snapshot(self, operation: int, records: Sequence[str] = ()) -> Snapshot:
        """A private copy of the state at the last boundary; the same until the open operation commits.

        `operation` is the number of operations committed before that boundary, `records` what the ledger is
        not known to hold of them, one text each: parts of the state.
        """
        ...

    def apply(self, snapshot: Snapshot) -> tuple[int, list[str]]:
        """Take the state of the job: checked whole against this worker's layout before anything is kept.
        Returns the number of operations committed before it, and their records.

        The engine writes it into the live objects when the script, run from its top, stands at the
        snapshot's position: what the script does to them on its way there is overwritten. Raises
        `Refused` when the script's own seed is another, `JobFailed` when the layout is.
        """
        ...


class Control(Protocol):
    """A worker's place in the job. Built by `join`; `prepare` is called once, before the first `open`."""

    @property
    def worker(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def alone(self) -> bool: ...

    # of the last boundary that the main thread has passed
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def generation(self) -> int: ...

    def prepare(self, offer: Offer, engine: Engine) -> None:
        """Bring the offer and wait to be a member with state.

        Returns when this worker may open the operation at the job's position. A worker that joins others
        gets their state through `engine.apply` before that.
        """
        ...

    def open(
        self, kind: Kind, shards: int, contribution: Contribution, *, identity: bytes, enterable: bool
    ) -> Operation:
        """Stand at the boundary before the next operation; returns when it may begin.

        Pauses are waited out here, snapshots served, planned changes entered. `identity` (8 bytes) is the
        digest of what the operation is: members with different ones have scripts out of order. A planned
        change is entered only where `enterable`: not at an operation in the body of an open loop, where
        no joiner's script can stand.
        """
        ...

    def committed(
        self,
        operation: Operation,
        *,
        kind: Kind,
        loop: int,
        epoch: int,
        step: int,
        table: bytes,
        metrics: dict[str, Any],
    ) -> None:
        """Hand over the record of a committed operation; in order, once, before the next `open`.

        `step` is the job's step, -1 for other kinds; `table` the rows of the summed `data.table.Table`;
        `metrics` the line of `metrics.jsonl` but for what the master adds (`since_s`, `redone_samples`).
        """
        ...

    def loop_opened(self, loop: int, spec: str) -> None:
        """A loop begins here: the JSON of its `data.indices.LoopSpec`, for the ledger."""
        ...

    def phase(self, name: str, step: int) -> None:
        """What the main thread does (`data`, `compute`, `reduce`, `script`, …); several times a step."""
        ...

    def busy(self, label: str, limit_s: float) -> AbstractContextManager[None]:
        """Inside, others are patient with this worker for up to `limit_s` seconds."""
        ...

    def ended(self, summary: dict[str, Any], digest: bytes = b"") -> int:
        """The script has ended with no loop open: wait for the end of the job, serving snapshots.

        `digest` is that of the final state, which must be equal on all members.

        Returns the exit code of the process.
        """
        ...

    def failed(self, kind: str, code: int, traceback: str, step: int) -> None:
        """Last words: the script raised (`exception`), exited (`exit`), ended inside a loop (`early_end`), a
        value was not finite (`nonfinite`), or godmw found a fault (`engine`, `mismatch`). Never raises."""
        ...
