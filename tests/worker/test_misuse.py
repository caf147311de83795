"""Every misuse of gradients and loops raises at the offending line and names the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import godmw
from godmw.errors import GodmwError, GradientMisuse, UsageError
from tests.worker.loop import build, data, joined, work


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def inner_backward(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for batch in step:
            loss_of(model, batch).backward()


def inner_optimizer(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for batch in step:
            step.backward(loss_of(model, batch))
            optimizer.step()


def no_inner_loop(job: Any, model: Any, optimizer: Any) -> None:
    for _ in job.steps(data(), batch_size=5, epochs=1):
        optimizer.step()


def no_inner_loop_and_no_optimizer(job: Any, model: Any, optimizer: Any) -> None:
    for _ in job.steps(data(), batch_size=5, epochs=1):
        pass


def neither(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for batch in step:
            loss_of(model, batch)


def only_last_false(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for batch in step:
            step.backward(loss_of(model, batch), last=False)


def left_early_then_optimizer(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=8, epochs=1, micro_batch=2):
        for batch in step:
            step.backward(loss_of(model, batch))
            break
        optimizer.step()


def left_early_then_on(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=8, epochs=1, micro_batch=2):
        for batch in step:
            step.backward(loss_of(model, batch))
            break


def collective_inside(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for _ in step:
            job.evaluate(lambda batch: len(batch[0]), data(), batch_size=5)


def allreduce_before_the_inner_loop(job: Any, model: Any, optimizer: Any) -> None:
    for _ in job.steps(data(), batch_size=5, epochs=1):
        job.allreduce(1.0)


def twice_over_a_step(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        work(step, model, optimizer)
        work(step, model, optimizer)


def two_backwards(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for batch in step:
            step.backward(loss_of(model, batch))
            step.backward(loss_of(model, batch))


def skip_after_backward(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        for batch in step:
            step.backward(loss_of(model, batch), last=False)
            step.skip("changed my mind")


def backward_outside(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        step.backward(torch.zeros((), requires_grad=True))


def loops_nested(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        work(step, model, optimizer)
        for _ in job.steps(data(), batch_size=5, epochs=1):
            pass


def backward_between_steps(job: Any, model: Any, optimizer: Any) -> None:
    for step in job.steps(data(), batch_size=5, epochs=1):
        work(step, model, optimizer)
        loss_of(model, data()[:]).backward()


def own_gradients_before(job: Any, model: Any, optimizer: Any) -> None:
    model.weight.grad = torch.ones_like(model.weight)
    for step in job.steps(data(), batch_size=5, epochs=1):
        work(step, model, optimizer)


CASES: list[tuple[Callable[..., None], str, str, str]] = [
    (inner_backward, "loss_of(model, batch).backward()", "loss.backward", "step.backward"),
    (inner_optimizer, "optimizer.step()", "inside the inner loop", "behind the inner loop"),
    (no_inner_loop, "optimizer.step()", "before the inner loop", "behind the inner loop"),
    (no_inner_loop_and_no_optimizer, "for _ in job.steps", "without taking", "write the inner loop"),
    (neither, "for batch in step", "neither", "for every batch"),
    (only_last_false, "for batch in step", "neither", "last=False"),
    (left_early_then_optimizer, "optimizer.step()", "left before its last batch", "no break"),
    (left_early_then_on, "for step in job.steps", "left before its last batch", "step.skip"),
    (collective_inside, "job.evaluate(", "inside step 0", "after the inner loop"),
    (allreduce_before_the_inner_loop, "job.allreduce(1.0)", "inside step 0", "after the inner loop"),
    (twice_over_a_step, "work(step, model, optimizer)", "asked for twice", "last=False"),
    (two_backwards, "step.backward(loss_of(model, batch))", "last backward", "last=False"),
    (skip_after_backward, "step.skip", "after step.backward", "before the first backward"),
    (backward_outside, "step.backward(torch.zeros", "outside the inner loop", "inside `for batch in step`"),
    (loops_nested, "for _ in job.steps", "inside the body", "finish the outer loop"),
    (backward_between_steps, ".backward()", "loss.backward", "torch.autograd.grad"),
    (own_gradients_before, "for step in job.steps", "already has a gradient", "zero_grad"),
]


@pytest.mark.parametrize(("script", "line", "seen", "fix"), CASES, ids=[case[0].__name__ for case in CASES])
def test_misuse_raises_at_the_line_and_names_the_fix(
    script: Callable[..., None], line: str, seen: str, fix: str
) -> None:
    with joined() as (job, model, optimizer):
        with pytest.raises(GradientMisuse) as raised:
            script(job, model, optimizer)
        model.weight.grad = model.bias.grad = None
    assert seen in raised.value.message
    assert raised.value.hint is not None
    assert fix in raised.value.hint
    frames = [frame for frame in raised.traceback if frame.frame.code.name == script.__name__]
    statement = str(frames[-1].frame.code.fullsource[frames[-1].lineno]).strip()
    assert line in statement


def steps(**options: Any) -> Callable[[Any], Any]:
    return lambda job: list(job.steps(data(), **{"batch_size": 5, "epochs": 1, **options}))


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (steps(reduction="exact"), "not built yet"),
        (steps(reduction="fat"), '"fast" was expected'),
        (steps(codec="bf16"), "not built yet"),
        (steps(sampler=lambda seed, epoch: []), "not built yet"),
        (steps(non_finite="ignore"), "stop, skip"),
        (steps(epochs=None), "neither epochs nor steps"),
        (steps(batch_size=0), "batch_size=0"),
        (steps(micro_batch=0), "micro_batch=0"),
        (lambda job: list(job.steps(data(0), batch_size=5, epochs=1)), "empty"),
        (lambda job: job.allreduce(1.0, op="max"), "not built"),
        (lambda job: job.allreduce(torch.tensor([True])), "bool"),
        (lambda job: job.evaluate(lambda batch: "good", data(), batch_size=5), "sums are numbers"),
        (lambda job: job.evaluate(lambda batch: torch.zeros(90000), data(), batch_size=5), "65536"),
        (lambda job: job.once("x", object), "not a value"),
        (lambda job: job.busy("x", 0), "limit_s"),
        (lambda job: job.epochs(-1), "whole number of passes"),
        (lambda job: next(job.epochs(1)).steps(data(), batch_size=5, epochs=2), "one pass"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(call: Callable[[Any], Any], seen: str) -> None:
    with joined() as (job, _, _), pytest.raises(UsageError, match=seen):
        call(job)


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (lambda: godmw.join(), "no module"),
        (lambda: godmw.join(build()[0], {"lr": 1}), "argument 2 is a dict"),
        (lambda: godmw.join(build()[0], seed=-1), "seed=-1"),
        (lambda: godmw.join(build()[0], godmw=build()[0]), "the name is taken"),
    ],
)
def test_join_says_what_it_cannot_keep_equal(call: Callable[[], Any], seen: str) -> None:
    with pytest.raises(GodmwError, match=seen):
        call()


def test_a_worker_with_an_address_that_has_no_token_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GODMW_JOIN", "godmw://127.0.0.1:7")
    with pytest.raises(UsageError, match="no token"):
        godmw.join(*build())


def test_unregistered_optimizers_and_schedulers_are_named_once() -> None:
    with joined() as (job, model, optimizer):
        other = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        stranger = torch.optim.Adam(torch.nn.Linear(1, 1).parameters())
        with pytest.warns(UserWarning, match=r"Adam, StepLR; give") as warned:
            job.allreduce(1.0)
        for step in job.steps(data(), batch_size=5, epochs=1):
            work(step, model, optimizer)
        assert len(warned) == 1
        assert "join(model, optimizer, scheduler)" in str(warned[0].message)
        assert warned[0].filename == __file__
        del other, schedule, stranger


def test_nothing_is_said_when_everything_is_registered() -> None:
    model, optimizer = build()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    job = godmw.join(model, optimizer, schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in job.steps(data(), batch_size=5, epochs=1):
            work(step, model, optimizer)
    job.close()


def test_zero_grad_anywhere_is_harmless() -> None:
    results = []
    for zealous in (False, True):
        with joined() as (job, model, optimizer):
            for step in job.steps(data(), batch_size=6, epochs=1, micro_batch=2):
                for batch in step:
                    if zealous:
                        optimizer.zero_grad()
                    step.backward(loss_of(model, batch))
                    if zealous:
                        optimizer.zero_grad(set_to_none=False)
                optimizer.step()
            results.append(model.weight.detach().clone())
    assert torch.equal(*results)
