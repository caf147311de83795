"""Misuse is named at its line; a backward that fails leaves nothing behind."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from godmw.collectives.reducer import Reducer
from godmw.errors import GradientMisuse, InternalError, UsageError
from tests.fakes.gradients import batch, commit, loss_of, mlp, plain_gradients, reducer_of, small


def test_a_backward_of_the_users_own_is_stopped_at_its_line() -> None:
    model = mlp()
    reducer = small(model)
    loss = loss_of(model, batch(0))
    with pytest.raises(GradientMisuse, match=r"loss\.backward\(\) reached parameter 4\.") as caught:
        loss.backward()
    assert "loss.backward()" in str(caught.traceback[0].statement)
    assert "step.backward(loss)" in (caught.value.hint or "")
    with pytest.raises(GradientMisuse, match="already has a gradient"):
        reducer.reset()
    model.zero_grad()
    reducer.reset()
    assert torch.autograd.grad(loss_of(model, batch(0)), model[0].weight)[0].any()
    reducer.close()
    loss_of(model, batch(0)).backward()


def test_gradients_set_by_hand_inside_a_step_are_named() -> None:
    model = mlp()
    reducer = small(model)
    reducer.reset()
    model[2].weight.grad = torch.zeros(20, 20)
    with pytest.raises(GradientMisuse, match=r"2\.weight already has a gradient"):
        reducer.backward(loss_of(model, batch(0)))


def test_sparse_gradients_are_refused_by_name() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    reducer = Reducer([("table", embedding.weight)])
    reducer.reset()
    with pytest.raises(UsageError, match="parameter table has a sparse gradient"):
        reducer.backward(embedding(torch.tensor([1, 2])).sum())


def test_integer_like_parameters_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="parameter q is float8_e4m3fn"):
        Reducer([("q", nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn)))])


class Bomb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise RuntimeError("boom")


def test_a_failed_backward_leaves_no_gradient_and_spoils_the_step() -> None:
    model = mlp()
    reducer = reducer_of(model, bucket_bytes=1, edge_bytes=1)
    reducer.reset()
    x, y = batch(0)
    hidden = Bomb.apply(model[:2](x))
    with pytest.raises(RuntimeError, match="boom"):
        reducer.backward(functional.mse_loss(model[2:](hidden), y))
    assert all(p.grad is None for p in model.parameters())
    assert reducer.broken
    with pytest.raises(GradientMisuse, match="failed half way"):
        reducer.backward(loss_of(model, batch(0)))
    reducer.reset()
    reducer.backward(loss_of(model, batch(0)))
    expected = plain_gradients(model, lambda m: loss_of(m, batch(0)))
    commit(reducer)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


def test_a_backward_that_fails_before_any_gradient_spoils_nothing() -> None:
    model = mlp()
    reducer = small(model)
    reducer.reset()
    with pytest.raises(RuntimeError, match="does not require grad"):
        reducer.backward(torch.zeros(()))
    assert not reducer.broken
    reducer.backward(loss_of(model, batch(0)))


def test_a_hook_that_takes_gradients_away_is_named() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    reducer = Reducer([("w", weight)])
    reducer.reset()
    with pytest.raises(GradientMisuse, match="gradient of parameter w was taken away"):
        reducer.backward((weight * 2).sum())


def test_backward_needs_an_operation() -> None:
    model = mlp()
    reducer = small(model)
    with pytest.raises(InternalError, match="outside an operation"):
        reducer.backward(loss_of(model, batch(0)))


def test_an_optimizer_may_change_gradients_before_the_next_step() -> None:
    model = mlp()
    reducer = small(model)
    reducer.reset()
    reducer.backward(loss_of(model, batch(0)))
    commit(reducer)
    model[0].weight.grad = torch.zeros(20, 6)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    reducer.reset()
    assert all(p.grad is None for p in model.parameters())


def test_compiled_modules_are_hooked_like_others() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    reducer = reducer_of(compiled)
    expected = plain_gradients(model, lambda m: loss_of(m, batch(0)))
    for _ in range(2):
        reducer.reset()
        reducer.backward(loss_of(compiled, batch(0)), 2.0)
        commit(reducer, divisor=2.0)
        for parameter, value in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, value)
