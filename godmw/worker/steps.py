"""One optimizer step as the user's script sees it: batches, backward, skip, sums; then the commit.

A `Step` is yielded with its operation open. Its inner loop hands out this worker's batches, and more when
somebody died; the line that asks for a batch after the last one reduces and commits. Rules of DESIGN on
gradients are enforced here at the offending line. It does not know loops, stories or how sums travel.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from godmw.data import table as tables
from godmw.data.batches import Batch, fuse
from godmw.data.indices import Bounds, Indices, shard_hashes
from godmw.errors import GradientMisuse, UsageError
from godmw.worker import chance
from godmw.worker.contribution import Expected, StepContribution
from godmw.worker.engine import check_number
from godmw.worker.finite import bad_samples, first_bad_gradient, gradients_finite, not_finite
from godmw.worker.interface import Operation
from godmw.worker.values import decode, encode

if TYPE_CHECKING:
    from godmw.worker.loops import StepLoop


@dataclasses.dataclass(slots=True)
class Current:
    """The batch that the user's code has now."""

    batch: Batch
    indices: Indices
    early: bool  # the last of this assignment: buckets may leave during its backward
    whole: bool  # it is the whole step: its gradient is taken as it is
    weight: float | None = None
    loss: float = 0.0
    done: bool = False  # had its last backward, or was skipped
    sums: dict[str, float | int] = dataclasses.field(default_factory=dict)


class Step:
    """`index` counts the job's steps from 0, `epoch` its passes; `samples` are those of all workers,
    `indices` which they are (int64, in order), `number` counts the loop's steps.

    `ends_epoch`: the pass ends with this step. `skipped`: nothing was contributed, or it was not finite and
    the loop says `non_finite="skip"`; every `p.grad` is None then.
    """

    def __init__(self, loop: StepLoop, number: int) -> None:
        spec, engine = loop.spec, loop.engine
        self.index = spec.first_step + number
        self.epoch = loop.first_epoch + spec.epoch_of(number)
        self.ends_epoch = (number + 1) % spec.steps_per_epoch == 0
        self.totals: dict[str, float | int] = {}
        self.skipped = False
        self.stopping = False
        self._loop, self.number, self._engine = loop, number, engine
        self.indices = spec.step_indices(number)
        self._bounds: Bounds = spec.shard_bounds(number)
        self.samples = len(self.indices)
        self._taken = self._committed = False
        self._current: Current | None = None
        self._logged: dict[str, Any] = {}
        self._loss = math.nan
        self._data_s = self._compute_s = self._comm_s = 0.0
        self._poisoned = False  # by a gradient of this worker
        self._open()

    def _open(self) -> None:
        engine = self._engine
        hashes = shard_hashes(self.indices, self._bounds)

        def make(settings: int) -> StepContribution:
            engine.reducer.reset()
            engine.buffers.open()
            expected = Expected(settings, self._bounds, hashes)
            self._contribution = StepContribution(engine.reducer, engine.buffers, engine.progress, expected)
            return self._contribution

        self._operation: Operation = engine.begin("step", self._loop.what, len(self._bounds), make)
        engine.guard.open(self.index)

    # ---- what the script calls ----

    def __iter__(self) -> Iterator[Any]:
        """This worker's batches, as the dataset's collate function made them."""
        self._engine.guard.raise_fault()
        if self._taken:
            raise GradientMisuse(
                f"step {self.index}: its batches were asked for twice",
                hint="one inner loop `for batch in step` a step; for several losses on a batch use "
                "step.backward(loss, last=False)",
            )
        self._taken = True
        return self._batches()

    def backward(
        self,
        loss: Tensor,
        weight: float | None = None,
        *,
        last: bool = True,
        scaler: Any = None,
        **options: Any,
    ) -> None:
        """Run autograd from `loss`, a scalar, and add weight × gradient to this worker's share of the step.

        `loss` is a mean; `weight` is how many things it is a mean of, by default the samples of the batch
        (for a loss over tokens: their number). `last=False` on all but the last of several calls for one
        batch. Other keywords are `torch.Tensor.backward`'s. Raises GradientMisuse outside a batch.
        """
        current = self._batch("step.backward(loss)")
        if scaler is not None:
            raise UsageError("step.backward(scaler=…) is not built yet", hint="train in float32 or bfloat16")
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(
                f"step.backward(loss): a scalar tensor was expected, not {shape}", hint="loss.mean()"
            )
        weight = float(current.batch.samples) if weight is None else check_number("weight", float(weight))
        if current.weight is not None and weight != current.weight:
            raise UsageError(f"weight={weight} after weight={current.weight} on the same batch")
        current.weight = weight
        value = float(loss.detach())
        current.loss += value
        current.whole = current.whole and weight > 0
        if math.isfinite(value) and weight:
            launch = self._launch if last and current.early else None
            scale, keep = (1.0, self._operation.world_size == 1) if current.whole else (weight, False)
            self._engine.reducer.backward(loss, scale, None if keep else launch, keep=keep, **options)
        if last:
            current.done = True
            self._contribution.fill(
                current.batch,
                current.indices,
                self._operation.rank,
                weight=weight,
                loss_sum=weight * current.loss,
            )
            if current.whole:
                self._contribution.table.flag(tables.SINGLE)

    def skip(self, reason: str = "") -> None:
        """Leave this batch out: its samples count as seen and contribute nothing."""
        current = self._batch("step.skip(reason)")
        if current.weight is not None:
            raise GradientMisuse(
                f"step {self.index}: step.skip after step.backward on the same batch",
                hint="decide before the first backward of a batch",
            )
        current.done, current.weight, current.whole = True, 0.0, False
        self._contribution.fill(
            current.batch, current.indices, self._operation.rank, weight=0.0, loss_sum=0.0
        )
        self._contribution.table.flag(tables.SKIPPED)

    def sum(self, **numbers: float) -> None:
        """Add to `totals`, which every worker has after the inner loop: sums over the whole step."""
        current = self._batch("step.sum(…)", done=True)
        for name, number in numbers.items():
            value = number.item() if hasattr(number, "item") else number
            if not isinstance(value, (int, float)):
                raise UsageError(f"step.sum({name}={number!r}): a number was expected")
            current.sums[name] = current.sums.get(name, 0) + value

    def log(self, **values: Any) -> None:
        """Put values into the step's line of `metrics.jsonl`, on the leader's word."""
        for name, value in values.items():
            item = value.item() if hasattr(value, "item") else value
            if not isinstance(item, (str, int, float, bool, type(None))):
                raise UsageError(
                    f"step.log({name}=…): a number or a string was expected, not {type(item).__name__}"
                )
            self._logged[name] = item

    @property
    def loss(self) -> float:
        """The mean loss over the whole step, the same on every worker; known after the inner loop."""
        if not self._committed:
            raise UsageError(
                f"step {self.index}: step.loss is known after the inner loop `for batch in step`"
            )
        return self._loss

    def _batch(self, call: str, *, done: bool = False) -> Current:
        self._engine.guard.raise_fault()
        current = self._current
        if current is None:
            raise GradientMisuse(
                f"step {self.index}: {call} outside the inner loop",
                hint="call it inside `for batch in step`",
            )
        if current.done and not done:
            raise GradientMisuse(
                f"step {self.index}: {call} on a batch that has had its last backward, or was skipped",
                hint="step.backward(loss, last=False) on all but the last of several losses",
            )
        return current

    # ---- the inner loop ----

    def _batches(self) -> Iterator[Any]:
        engine, operation = self._engine, self._operation
        while True:
            todo = fuse(
                operation.todo(),
                self._bounds,
                self._loop.micro_batch,
                batch_statistics=self._loop.spec.batch_statistics,
            )
            self._loop.expect(self, todo)
            for number, batch in enumerate(todo):
                if not operation.begin(batch.shards):
                    break
                yield from self._one(batch, early=number == len(todo) - 1)
            self._launch_all()
            committed = engine.finish(operation, self._contribution)
            self._comm_s += engine.comm_s
            if committed:
                break
        self._commit()

    def _one(self, batch: Batch, *, early: bool) -> Iterator[Any]:
        engine = self._engine
        indices = batch.take(self.indices)
        whole = len(batch.complete) == len(self._bounds) and not self._contribution.filled
        self._current = current = Current(batch, indices, early, whole)
        engine.phase("data")
        start = time.perf_counter()
        data = self._loop.source.fetch(indices, self._loop.fetch_seed(self.number))
        self._data_s += time.perf_counter() - start
        progress = engine.progress
        chance.seed_all(chance.word(progress.seed, self._loop.spec.loop, self.number, batch.shards[0]))
        engine.phase("compute" if engine.last_commit_s else "first step")
        engine.guard.batch_open = True
        start = time.perf_counter()
        try:
            yield data
        except GeneratorExit:
            engine.guard.leave()
            raise
        self._compute_s += time.perf_counter() - start
        engine.guard.batch_open = False
        engine.guard.raise_fault()
        if not current.done:
            raise GradientMisuse(
                f"step {self.index}: a batch had neither step.backward(loss) nor step.skip(reason)",
                hint="call one of them for every batch; with last=False only on all but the last of several",
            )
        engine.buffers.take(current.weight or 0.0, whole=current.whole)
        if current.sums:
            self._contribution.add_sums(batch.shards[0], current.sums)
        self._current = None

    def _launch(self, bucket: int) -> None:
        """The last bucket waits for what the tail will say."""
        if bucket != self._contribution.last:
            self._operation.launch(bucket)

    def _launch_all(self) -> None:
        contribution, engine = self._contribution, self._engine
        if not gradients_finite(engine.reducer):
            contribution.poison()
            self._poisoned = True
        if engine.stop_asked is not None:
            contribution.table.flag(tables.STOP)
        contribution.pieces = {shard: encode(sums, "step.sum") for shard, sums in contribution.sums.items()}
        engine.reducer.launch_rest(self._launch)
        self._operation.launch(contribution.last)

    # ---- the commit ----

    def _commit(self) -> None:
        engine, operation, contribution = self._engine, self._operation, self._contribution
        totals = contribution.totals()
        finite = not (totals.nonfinite or totals.bad_shards)
        if not finite and self._loop.non_finite == "stop":
            rank, samples = bad_samples(totals, contribution.summed["table"], self._bounds, self.indices)
            parameter = first_bad_gradient(engine.reducer) if self._poisoned else ""
            worker = operation.worker(rank)
            raise not_finite(self.index, totals, worker=worker, samples=samples, parameter=parameter)
        self.skipped = not finite or not totals.weight
        gradients = contribution.gradients(operation.results)
        if engine.reducer.kept and not self.skipped:
            engine.reducer.give_kept()
            contribution.commit_buffers(operation.results, None)
        elif self.skipped:
            none = torch.zeros(len(engine.reducer.parameters), dtype=torch.int64)
            engine.reducer.set_grads(gradients, 1.0, none)
        else:
            divisor = 1.0 if totals.single else totals.weight
            engine.reducer.set_grads(gradients, divisor, torch.from_numpy(contribution.summed["touched"]))
            contribution.commit_buffers(operation.results, None if totals.single else divisor)
        self._loss = totals.loss
        for sums in contribution.pieces_summed().values():
            for name, value in decode(sums).items():
                self.totals[name] = self.totals.get(name, 0) + value
        self._advance()
        chance.seed_all(
            chance.word(engine.progress.seed, self._loop.spec.loop, self.number, len(self._bounds))
        )
        self._committed = True
        engine.guard.close()
        self.stopping = self._loop.agreed(totals.stop)
        engine.phase("script")
        self._owe()

    def _advance(self) -> None:
        """What the commit does to the engine's own part of the state."""
        progress, contribution = self._engine.progress, self._contribution
        if contribution.order_asked:
            progress.order = contribution.order()
        progress.steps += 1
        progress.samples += self.samples
        progress.epochs = max(progress.epochs, self.epoch + 1)
        progress.sums_words, progress.buffers = contribution.words, contribution.active
        if progress.loss_first is None:
            progress.loss_first = self._loss
        progress.loss_last = self._loss
        self._loop.entry["steps"] = self.number + 1

    def _owe(self) -> None:
        engine, operation = self._engine, self._operation
        now, table = time.perf_counter(), tables.to_bytes(self._contribution.summed["table"])
        wait_s = engine.wait_s
        step_s = now - engine.last_commit_s if engine.last_commit_s else self._data_s + self._compute_s
        engine.last_commit_s = now
        t, generation, world_size = time.time(), operation.generation, operation.world_size
        epoch = self._loop.spec.epoch_of(self.number)

        def record() -> None:
            engine.record(
                operation,
                "step",
                table,
                epoch=epoch,
                step=self.index,
                metrics={
                    "t": t,
                    "step": self.index,
                    "epoch": self.epoch,
                    "generation": generation,
                    "world_size": world_size,
                    "samples": self.samples,
                    "loss": self._loss,
                    "step_s": step_s,
                    "data_s": self._data_s,
                    "compute_s": self._compute_s,
                    "exposed_comm_s": self._comm_s,
                    "wait_s": wait_s,
                    "logged": self._logged,
                },
            )

        engine.owe(record)

    def require_committed(self) -> None:
        """The script asks for the next step. GradientMisuse when this one is not finished."""
        self._engine.guard.raise_fault()
        if not self._committed:
            raise GradientMisuse(
                f"step {self.index}: the script went on without taking the step's batches",
                hint="write the inner loop: for batch in step: step.backward(loss)",
            )
