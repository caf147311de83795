"""Evaluate, allreduce, once, passes and job.state, with one worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import godmw
from godmw.errors import UsageError
from godmw.worker.values import RECORD_BYTES
from tests.worker.loop import SAMPLES, data, joined, work


def test_evaluate_sees_each_sample_once_in_order_and_sums_what_fn_returns() -> None:
    seen: list[int] = []

    def fn(batch: Any) -> dict[str, Any]:
        seen.extend(int(n) for n in batch[0][:, 0])
        return {
            "n": len(batch[0]),
            "sum": batch[0][:, 0].sum(),
            "classes": torch.bincount(batch[1], minlength=3),
        }

    with joined() as (job, _, _):
        found = job.evaluate(fn, data(), batch_size=6)
    assert seen == list(range(SAMPLES))
    assert found["n"] == SAMPLES
    assert found["sum"] == sum(range(SAMPLES))
    assert found["classes"].tolist() == [7, 7, 6]


@pytest.mark.parametrize(
    ("value", "expected"), [(1.5, 6.0), ((1, 2.5), (4, 10.0)), (torch.tensor(2), 8), (True, 4)]
)
def test_evaluate_returns_the_form_that_fn_returned(value: Any, expected: Any) -> None:
    with joined() as (job, _, _):
        assert job.evaluate(lambda batch: value, data(), batch_size=5) == expected


def test_evaluate_leaves_gradients_generators_and_buffers_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    job = godmw.join(model)
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    expected = (torch.rand(3).tolist(), np.random.rand(), random.random())
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def fn(batch: Any) -> float:
        scores = model(batch[0])
        assert not scores.requires_grad
        random.random()
        np.random.rand()
        return float(scores.sum())

    first, second = (job.evaluate(fn, data(), batch_size=8) for _ in range(2))
    assert first == second
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == expected
    job.close()


def test_evaluate_takes_a_dataloader_without_its_order() -> None:
    seen: list[int] = []
    loader = DataLoader(data(), batch_size=7, shuffle=True)
    with joined() as (job, _, _):
        job.evaluate(lambda batch: seen.extend(batch[0][:, 0].tolist()) or 0, loader)
    assert seen == list(range(SAMPLES))


def test_evaluate_in_a_loops_body_may_return_much() -> None:
    with joined() as (job, model, optimizer):
        for step in job.steps(data(), batch_size=10, epochs=1):
            work(step, model, optimizer)
            found = job.evaluate(lambda batch: torch.ones(RECORD_BYTES), data(), batch_size=10)
            assert found.sum() == 2 * RECORD_BYTES


def test_data_that_is_wrapped_anew_for_every_pass_is_not_kept_for_ever() -> None:
    with joined() as (job, _, _):
        for _ in range(30):
            assert job.evaluate(lambda batch: len(batch[0]), data(), batch_size=20) == SAMPLES
        assert len(job._engine._sources) == 8


def test_allreduce_of_one_is_the_value_itself_and_a_copy() -> None:
    with joined() as (job, _, _):
        value = torch.arange(6, dtype=torch.int32).reshape(2, 3)
        total = job.allreduce(value)
        assert torch.equal(total, value)
        assert total.dtype == torch.int32
        total.zero_()
        assert value.sum() == 15
        assert job.allreduce(2.5, op="mean") == 2.5
        assert torch.equal(job.allreduce(torch.empty(0)), torch.empty(0))


def test_once_runs_once_and_gives_its_value_ever_after() -> None:
    calls = []

    def fn() -> dict[str, Any]:
        calls.append(1)
        return {"words": ["a", "b"], "table": torch.arange(3), "rate": 0.1, "none": None}

    with joined() as (job, _, _):
        for _ in range(3):
            found = job.once("vocabulary", fn)
            assert found["table"].tolist() == [0, 1, 2]
            assert {**found, "table": 0} == {"words": ["a", "b"], "table": 0, "rate": 0.1, "none": None}
        assert job.once("other", lambda: 5) == 5
        with pytest.raises(UsageError, match="65536"):
            job.once("large", lambda: "x" * RECORD_BYTES)
    assert calls == [1]


def test_passes_run_their_body_and_stop_after_it() -> None:
    with joined() as (job, model, optimizer):
        seen = []
        for epoch in job.epochs(9):
            for step in epoch.steps(data(), batch_size=10):
                work(step, model, optimizer)
                seen.append((int(epoch), step.epoch, step.index))
            if epoch.index == 2:
                job.stop("good enough")
        assert job.stopped == "good enough"
        again = [epoch.index for epoch in job.epochs(2)]
    assert seen == [(n // 2, n // 2, n) for n in range(6)]
    assert again == [0, 1]


def test_stop_in_a_pass_ends_its_loop_and_the_passes() -> None:
    with joined() as (job, model, optimizer):
        seen, bodies = [], []
        for epoch in job.epochs(5):
            for step in epoch.steps(data(), batch_size=5):
                work(step, model, optimizer)
                seen.append(step.index)
                if step.index == 5:
                    job.stop()
            bodies.append(epoch.index)
    assert seen == list(range(7))
    assert bodies == [0, 1]


def test_passes_left_by_break_are_over() -> None:
    with joined() as (job, model, optimizer):
        for epoch in job.epochs(5):
            for step in epoch.steps(data(), batch_size=10):
                work(step, model, optimizer)
            if epoch.index == 1:
                break
        after = [
            step.index
            for step in job.steps(data(), batch_size=20, epochs=1)
            if not work(step, model, optimizer)
        ]
    assert after == [4]


def test_a_job_says_who_it_is() -> None:
    with joined() as (job, _, _):
        assert (job.is_leader, job.world_size) == (True, 1)
        assert job.run_id.startswith("job-")
        with job.busy("saving", 30):
            job.state["best"] = 1
        assert job.state == {"best": 1}
    assert godmw.device() == torch.device("cuda" if torch.cuda.is_available() else "cpu")
