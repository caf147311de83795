"""A job of one worker to write tests about: a small model, its data, and the loop everybody writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import godmw
from godmw.worker.job import Job

SAMPLES = 20


def data(samples: int = SAMPLES) -> TensorDataset:
    """x float32 [n, 4], y int64 [n]; sample i has y = i % 3 and its number in x[i, 0]."""
    numbers = torch.arange(samples, dtype=torch.float32)
    x = torch.stack([numbers, numbers / 10, -numbers / 7, torch.ones(samples)], dim=1)
    return TensorDataset(x, torch.arange(samples) % 3)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


@contextmanager
def joined(*more: Any, **options: Any) -> Iterator[tuple[Job, nn.Module, torch.optim.Optimizer]]:
    """(job, model, optimizer); the process is given back however the test ends."""
    model, optimizer = build()
    job = godmw.join(model, optimizer, *more, **{"seed": 1, **options})
    try:
        yield job, model, optimizer
    finally:
        job._engine.loop = job._engine.guard.step = job._engine.guard._fault = None
        job.close()


def work(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    optimizer.step()
