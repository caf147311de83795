"""What a loop of steps hands out, sums, logs and leaves behind, with one worker."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import godmw
from godmw.data.indices import LoopSpec
from godmw.worker.finite import NotFinite
from tests.worker.loop import SAMPLES, data, joined, work


def numbers(batch: Any) -> list[int]:
    return [int(value) for value in batch[0][:, 0]]


def test_batches_are_the_slice_of_the_permutation_in_order() -> None:
    spec = LoopSpec(length=SAMPLES, batch_size=8, epochs=2, seed=1)
    seen = []
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=8, epochs=2, micro_batch=3):
            taken = []
            for batch in step:
                taken += numbers(batch)
                step.backward(model(batch[0]).mean())
            assert taken == spec.step_indices(step.index).tolist() == step.indices.tolist()
            seen.append((step.index, step.epoch, step.samples, step.ends_epoch))
    assert seen == [
        (0, 0, 8, False),
        (1, 0, 8, False),
        (2, 0, 4, True),
        (3, 1, 8, False),
        (4, 1, 8, False),
        (5, 1, 4, True),
    ]


def test_steps_and_epochs_count_on_over_loops() -> None:
    with joined() as (job, model, optimizer):
        seen = []
        for _ in range(2):
            for step in job.steps(data(), batch_size=10, epochs=1, shuffle=False):
                work(step, model, optimizer)
                seen.append((step.index, step.epoch, step.indices[0]))
    assert seen == [(0, 0, 0), (1, 0, 10), (2, 1, 0), (3, 1, 10)]


def test_a_dataloader_is_taken_over_with_its_arguments() -> None:
    loader = DataLoader(
        data(), batch_size=6, drop_last=True, collate_fn=lambda items: torch.stack([x for x, _ in items])
    )
    with joined() as (job, model, _):
        taken = []
        for step in job.steps(loader, epochs=1):
            for x in step:
                taken.append(x[:, 0].tolist())
                step.backward(model(x).sum())
    assert taken == [[6 * n + k for k in range(6)] for n in range(3)]


class Noisy(Dataset[torch.Tensor]):
    """Its samples draw from torch, numpy and random."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random(), float(index)])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_random_numbers_are_the_same_in_every_run_and_differ_from_step_to_step(num_workers: int) -> None:
    runs = []
    for noise in range(2):
        torch.manual_seed(noise)
        np.random.seed(noise)
        random.seed(noise)
        drawn = []
        with joined() as (job, model, _):
            for step in job.steps(Noisy(), batch_size=4, epochs=3, shuffle=False, num_workers=num_workers):
                for batch in step:
                    own = [torch.rand(()).item(), float(np.random.rand()), random.random()]
                    drawn.append([*batch.flatten().tolist(), *own])
                    step.backward(model(batch).mean())
                drawn.append([torch.rand(()).item(), float(np.random.rand()), random.random()])
        runs.append(drawn)
    assert runs[0] == runs[1]
    flat = [value for row in runs[0] for value in row if value != int(value)]
    assert len(set(flat)) == len(flat)


def test_loss_is_the_weighted_mean_and_known_after_the_inner_loop() -> None:
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=SAMPLES, epochs=1, micro_batch=7):
            parts = []
            for x, _ in step:
                loss = (model(x) * 0).sum() + len(x)
                step.backward(loss, weight=2.0 * len(x))
                parts.append(len(x))
                with pytest.raises(godmw.errors.UsageError, match="after the inner loop"):
                    _ = step.loss
            assert step.loss == pytest.approx(sum(n * n for n in parts) / SAMPLES, abs=1e-12)


def test_weights_divide_the_gradient() -> None:
    """Tokens: the mean over all of them, however they fall into batches."""
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=9, epochs=1, micro_batch=2, shuffle=False):
            for x, _ in step:
                tokens = x[:, 0] + 1  # sample i has i + 1 tokens, each with loss w·x
                total = (model(x)[:, 0] * tokens).sum() / tokens.sum()
                step.backward(total, weight=float(tokens.sum()))
            x = data().tensors[0][step.indices]
            tokens = x[:, 0] + 1
            expected = (x * tokens[:, None]).sum(0) / tokens.sum()
            assert torch.allclose(model.weight.grad[0], expected, rtol=1e-6)


def test_several_losses_of_one_batch_add_up() -> None:
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=SAMPLES, epochs=1):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y), last=False)
                step.backward(model(x).pow(2).mean())
            both = F.cross_entropy(model(x), y) + model(x).pow(2).mean()
            expected = torch.autograd.grad(both, model.weight)[0]
            assert torch.allclose(model.weight.grad, expected, rtol=1e-5)
            assert step.loss == pytest.approx(both.item(), rel=1e-6)


def test_a_skipped_batch_counts_as_seen_and_contributes_nothing() -> None:
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=SAMPLES, epochs=1, micro_batch=10, shuffle=False):
            for n, (x, y) in enumerate(step):
                if n == 0:
                    step.skip("too long")
                else:
                    step.backward(F.cross_entropy(model(x), y))
            x, y = (tensor[10:] for tensor in data().tensors)
            expected = torch.autograd.grad(F.cross_entropy(model(x), y), model.weight)[0]
            assert torch.allclose(model.weight.grad, expected, rtol=1e-6)
            assert not step.skipped


def test_a_step_of_skipped_batches_leaves_no_gradient() -> None:
    with joined() as (job, model, optimizer):
        before = model.weight.detach().clone()
        for step in job.steps(data(), batch_size=10, epochs=1):
            for _ in step:
                step.skip()
            assert step.skipped
            assert model.weight.grad is None
            optimizer.step()
        assert torch.equal(model.weight, before)


def test_gradients_stay_none_where_nothing_was_produced() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(4, 3)})
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    job = godmw.join(model, optimizer)
    before = model["unused"].weight.detach().clone()
    for step in job.steps(data(), batch_size=10, epochs=1, micro_batch=5):
        for x, y in step:
            step.backward(F.cross_entropy(model["used"](x), y))
        assert model["unused"].weight.grad is None
        optimizer.step()
    job.close()
    assert torch.equal(model["unused"].weight, before)


def test_layers_can_be_frozen_and_thawed_between_steps() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = godmw.join(model, optimizer)
    for step in job.steps(data(), batch_size=5, epochs=1, micro_batch=3):
        frozen = model[0].weight.detach().clone()
        work(step, model, optimizer)
        assert torch.equal(model[0].weight, frozen) == (step.index in (1, 2))
        model[0].requires_grad_(step.index not in (0, 1))
    job.close()


def test_sums_are_totals_after_the_inner_loop() -> None:
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=12, epochs=1, micro_batch=4):
            for x, y in step:
                step.sum(hits=torch.tensor(2), n=len(x))
                step.backward(F.cross_entropy(model(x), y))
                step.sum(loss=0.25)
            batches = math.ceil(step.samples / 4)
            assert step.totals == {"hits": 2 * batches, "n": step.samples, "loss": 0.25 * batches}


def test_stop_in_the_inner_loop_is_that_step_and_after_it_the_next() -> None:
    with joined() as (job, model, optimizer):
        for step in job.steps(data(), batch_size=2, epochs=1):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
                if step.index == 2:
                    job.stop("inside")
        assert (step.index, job.stopped) == (2, "inside")
        for step in job.steps(data(), batch_size=2, epochs=1):
            work(step, model, optimizer)
            if step.index == 5:
                job.stop("behind")
        assert (step.index, job.stopped) == (6, "behind")
        for step in job.steps(data(), batch_size=10, epochs=1):
            work(step, model, optimizer)
        assert (step.index, job.stopped) == (8, None)


def test_stop_outside_a_loop_ends_the_next_one_before_it_begins() -> None:
    with joined() as (job, model, optimizer):
        for step in job.steps(data(), batch_size=10, epochs=1):
            work(step, model, optimizer)
        job.stop("enough")
        assert list(job.steps(data(), batch_size=10, epochs=1)) == []
        assert job.stopped == "enough"
        assert (
            len([work(step, model, optimizer) for step in job.steps(data(), batch_size=10, epochs=1)]) == 2
        )


def test_break_leaves_that_loop_only() -> None:
    with joined() as (job, model, optimizer):
        for step in job.steps(data(), batch_size=2, epochs=1):
            work(step, model, optimizer)
            if step.index == 1:
                break
        seen = []
        for step in job.steps(data(), batch_size=10, epochs=1):
            work(step, model, optimizer)
            seen.append(step.index)
    assert seen == [2, 3]


@pytest.mark.parametrize(
    ("micro_batch", "samples"),
    [(20, "10, 11, 12, 13, 14, 15, 16, 17, …"), (4, "13, 14, 15, 16")],
)
def test_a_loss_that_is_not_finite_ends_the_job_and_names_the_samples(
    micro_batch: int, samples: str
) -> None:
    def script(job: Any, model: Any, optimizer: Any) -> None:
        for step in job.steps(data(), batch_size=10, epochs=1, micro_batch=micro_batch, shuffle=False):
            for x, y in step:
                spoiled = math.nan if 13 in x[:, 0] else 1.0
                step.backward(F.cross_entropy(model(x), y) * spoiled)
            optimizer.step()

    with joined() as (job, model, optimizer):
        with pytest.raises(NotFinite, match="step 1: the loss is not finite on worker w0") as raised:
            script(job, model, optimizer)
        assert torch.isfinite(model.weight).all()
    assert raised.value.message.endswith(f"; samples {samples}")
    assert "non_finite" in str(raised.value.hint)


@pytest.mark.parametrize("micro_batch", [10, 4])
def test_a_gradient_that_is_not_finite_names_the_parameter(micro_batch: int) -> None:
    def script(job: Any, model: Any, optimizer: Any) -> None:
        for step in job.steps(data(), batch_size=10, epochs=1, micro_batch=micro_batch):
            work(step, model, optimizer)

    with joined() as (job, model, optimizer):
        model.weight.register_hook(lambda gradient: gradient * math.inf)
        with pytest.raises(NotFinite, match="step 0: the gradient of weight is not finite on worker w0"):
            script(job, model, optimizer)


def test_non_finite_skip_leaves_the_step_out() -> None:
    with joined() as (job, model, optimizer):
        skipped = []
        for step in job.steps(data(), batch_size=5, epochs=1, non_finite="skip"):
            before = model.weight.detach().clone()
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y) * (math.inf if step.index == 2 else 1.0))
            assert (model.weight.grad is None) == step.skipped
            optimizer.step()
            skipped.append(step.skipped)
            assert torch.equal(before, model.weight) == step.skipped
    assert skipped == [False, False, True, False]


def test_large_gradients_are_not_taken_for_infinite() -> None:
    with joined() as (job, model, _):
        for step in job.steps(data(), batch_size=SAMPLES, epochs=1):
            for x, _ in step:
                step.backward(model(x).sum() * 1e30)
            assert model.weight.grad.abs().max() > 1e30


def test_every_batch_starts_from_the_steps_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=0.5), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job = godmw.join(model, optimizer)
    x = data().tensors[0]
    mean, count = torch.zeros(4, dtype=torch.float64), 0
    for step in job.steps(data(), batch_size=10, epochs=2, micro_batch=4, shuffle=False):
        means = []
        for batch in step:
            means.append((len(batch[0]), batch[0].double().mean(0)))
            step.backward(F.cross_entropy(model(batch[0]), batch[1]))
            assert model[0].num_batches_tracked == count + 1
        change = sum(n * (m - mean) * 0.5 for n, m in means) / sum(n for n, _ in means)
        mean, count = mean + change, count + 1
        assert torch.allclose(model[0].running_mean.double(), mean, rtol=1e-5)
        assert model[0].num_batches_tracked == count
        optimizer.step()
    job.close()
    assert len(x) == SAMPLES
