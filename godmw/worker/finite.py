"""Losses and gradients that are infinite or not a number: finding them, and saying whose they are.

Each worker looks at its own contribution before it sends it, because afterwards the sum no longer says who
spoiled it; the table carries the answer to all, so that all decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from godmw.collectives.reducer import Reducer
from godmw.data import table as tables
from godmw.data.indices import Bounds, Indices
from godmw.data.table import Totals, Words
from godmw.errors import JobFailed

SHOWN_SAMPLES = 8


class NotFinite(JobFailed):
    """A loss or gradient is infinite or not a number, and the loop says `non_finite="stop"`."""


def gradients_finite(reducer: Reducer) -> bool:
    """Whether everything that this worker contributes is finite. One pass over memory."""
    if reducer.kept:
        return _finite(list(reducer.kept.values()))
    return _finite([part for bucket in range(reducer.buckets) for part in reducer.parts(bucket)])


def _finite(tensors: list[Tensor]) -> bool:
    dense = [tensor if tensor.layout == torch.strided else tensor.coalesce().values() for tensor in tensors]
    with torch.no_grad():
        # a norm may overflow where no value is infinite: then every value is asked
        norm = float(torch.nn.utils.get_total_norm(dense)) if dense else 0.0
        return math.isfinite(norm) or all(bool(tensor.isfinite().all()) for tensor in dense)


def first_bad_gradient(reducer: Reducer) -> str:
    """The name of the first parameter whose contribution is not finite; p.grad is spoiled by asking."""
    reducer.set_grads([reducer.parts(bucket) for bucket in range(reducer.buckets)])
    for name, parameter in zip(reducer.names, reducer.parameters, strict=True):
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name
    return ""


def not_finite(
    step: int, totals: Totals, *, worker: str, samples: Sequence[int], parameter: str
) -> NotFinite:
    """The error for a step whose `totals` say so; `worker` holds `samples`, `parameter` if this is it."""
    what = "the loss is"
    if totals.nonfinite:
        what = f"the gradient of {parameter} is" if parameter else "a gradient is"
    shown = ", ".join(map(str, samples[:SHOWN_SAMPLES])) + (", …" if len(samples) > SHOWN_SAMPLES else "")
    return NotFinite(
        f"step {step}: {what} not finite on worker {worker}; samples {shown}",
        hint='look at those samples, lower the learning rate, or job.steps(…, non_finite="skip")',
    )


def bad_samples(totals: Totals, table: Words, bounds: Bounds, indices: Indices) -> tuple[int, list[int]]:
    """(rank, samples) of the first member with a shard that is not finite."""
    rank = tables.holder(table, totals.bad_shards[0])
    shards = [shard for shard in totals.bad_shards if tables.holder(table, shard) == rank]
    return rank, [int(i) for shard in shards for i in indices[slice(*bounds[shard])]]
