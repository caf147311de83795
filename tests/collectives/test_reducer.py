"""Contributions and p.grad against plain autograd."""

import copy

import pytest
import torch
from torch import Tensor, nn

from godmw.collectives.reducer import Reducer
from godmw.errors import GradientMisuse
from tests.fakes.gradients import batch, commit, loss_of, mlp, plain_gradients, small


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared_result", [True, False])
def test_one_batch_is_bit_equal_to_plain_training(dtype: torch.dtype, shared_result: bool) -> None:
    ours, plain = mlp(dtype), mlp(dtype)
    reducer = small(ours)
    build = torch.optim.AdamW if dtype in (torch.float32, torch.float64) else torch.optim.SGD
    optimizers = [build(model.parameters(), lr=1e-2) for model in (ours, plain)]
    for seed in range(4):
        reducer.reset()
        reducer.backward(loss_of(ours, batch(seed, dtype=dtype)))
        parts = [reducer.parts(b) for b in range(reducer.buckets)]
        reducer.set_grads(parts if shared_result else [[p.clone() for p in ps] for ps in parts])
        optimizers[1].zero_grad()
        loss_of(plain, batch(seed, dtype=dtype)).backward()
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            assert a.grad is not None
            assert a.grad.dtype == dtype
            assert torch.equal(a.grad, b.grad)
        for optimizer in optimizers:
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contributions_are_weighted_sums_rounded_one_by_one(dtype: torch.dtype) -> None:
    model = mlp(dtype)
    reducer = small(model)
    reducer.reset()
    weights = [5.0, 3.0, 7.0]
    for seed, weight in enumerate(weights):
        reducer.backward(loss_of(model, batch(seed, dtype=dtype)), weight)
    commit(reducer, divisor=15.0)
    expected: list[Tensor] = []
    for seed, weight in enumerate(weights):
        data = batch(seed, dtype=dtype)
        scaled = [weight * g for g in plain_gradients(model, lambda m, data=data: loss_of(m, data))]
        expected = [a + b for a, b in zip(expected, scaled, strict=True)] if expected else scaled
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, value / 15.0)


def test_half_parameters_are_summed_in_fp32() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    reducer = Reducer([("w", weight)])
    reducer.reset()
    reducer.backward((weight * 1.0).sum(), 256.0)
    reducer.backward((weight * 1.0).sum(), 1.0)
    assert reducer.parts(0)[0][0].item() == 257.0  # bfloat16 has no 257
    commit(reducer, divisor=257.0)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.item() == 1.0


def test_complex_and_strided_parameters_keep_their_layout() -> None:
    torch.manual_seed(1)
    z = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)

    def loss() -> Tensor:
        return (z * z.conj() * (1 + 2j)).real.sum() * 3 + (conv(x) ** 2).mean()

    expected = torch.autograd.grad(loss(), [z, conv.weight, conv.bias])
    reducer = Reducer([("z", z), ("w", conv.weight), ("b", conv.bias)])
    for _ in range(2):
        reducer.reset()
        reducer.backward(loss(), 2.0)
        reducer.backward(loss(), 2.0)
        commit(reducer, divisor=4.0)
        for parameter, value in zip((z, conv.weight, conv.bias), expected, strict=True):
            assert torch.equal(parameter.grad, value)
    assert conv.weight.grad is not None
    assert conv.weight.grad.stride() == conv.weight.stride()


def test_gradients_of_other_strides_are_put_right() -> None:
    weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))
    other = torch.randn(4, 3)
    expected = torch.autograd.grad((weight.t() * other).sum(), weight)[0]
    reducer = Reducer([("w", weight)])
    reducer.reset()
    reducer.backward((weight.t() * other).sum())
    reducer.backward((weight * 1.0).sum())  # an expanded gradient
    commit(reducer)
    assert torch.equal(weight.grad, expected + 1.0)


def test_gradients_are_none_between_backwards_and_zero_grad_is_harmless() -> None:
    model = mlp()
    reducer = small(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reducer.reset()
    for seed in range(2):
        optimizer.zero_grad()
        reducer.backward(loss_of(model, batch(seed)), 1.0)
        assert all(p.grad is None for p in model.parameters())
        optimizer.zero_grad(set_to_none=False)
    commit(reducer, divisor=2.0)
    first = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(first) == 6
    optimizer.zero_grad(set_to_none=False)
    reducer.reset()
    assert all(p.grad is None for p in model.parameters())


def test_several_backwards_of_one_graph_add() -> None:
    model = mlp()
    reducer = small(model)
    expected = plain_gradients(model, lambda m: 2 * loss_of(m, batch(0)))
    reducer.reset()
    loss = loss_of(model, batch(0))
    reducer.backward(loss, retain_graph=True)
    reducer.backward(loss)
    commit(reducer)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


def test_a_higher_order_graph_is_not_kept_by_the_contribution() -> None:
    model = mlp()
    reducer = small(model)
    expected = plain_gradients(model, lambda m: loss_of(m, batch(0)))
    reducer.reset()
    with pytest.warns(UserWarning, match="create_graph"):
        reducer.backward(loss_of(model, batch(0)), create_graph=True)
    commit(reducer)
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert not parameter.grad.requires_grad
        assert torch.equal(parameter.grad, value)


# ---- shared, unused, frozen ----


def test_shared_and_unused_parameters() -> None:
    torch.manual_seed(0)
    used, unused = nn.Linear(4, 4), nn.Linear(4, 4)
    named = [*used.named_parameters("a"), *unused.named_parameters("b"), *used.named_parameters("again")]
    reducer = Reducer(named)
    assert reducer.names == ("a.weight", "a.bias", "b.weight", "b.bias")
    reducer.reset()
    launched: list[int] = []
    reducer.backward(used(used(torch.ones(1, 4))).sum(), 1.0, launched.append)
    reducer.launch_rest(launched.append)
    assert launched == list(range(reducer.buckets))
    assert reducer.touched().tolist() == [1, 1, 0, 0]
    commit(reducer)
    assert used.weight.grad is not None
    assert unused.weight.grad is None


def test_a_parameter_that_only_another_member_touched_gets_its_gradient() -> None:
    model = mlp()
    reducer = small(model)
    reducer.reset()
    assert reducer.touched().tolist() == [0] * 6
    results = [[torch.ones_like(part) for part in reducer.parts(b)] for b in range(reducer.buckets)]
    reducer.set_grads(results, 4.0, torch.tensor([0, 3, 1, 0, 0, 1]))
    grads = [p.grad for p in model.parameters()]
    assert [g is not None for g in grads] == [False, True, True, False, False, True]
    assert torch.equal(grads[1], torch.full((20,), 0.25))


def test_leftovers_of_the_last_operation_count_as_zero() -> None:
    model = mlp()
    reducer = small(model)
    for data in (batch(0), None):
        reducer.reset()
        if data is not None:
            reducer.backward(loss_of(model, data))
        everything = torch.cat([part for b in range(reducer.buckets) for part in reducer.parts(b)])
        assert bool(everything.any()) is (data is not None)
    reducer.reset()
    reducer.backward(model[4](torch.ones(1, 20)).sum())  # the last layer alone
    reached = {p.shape: p for p in model[4].parameters()}
    total = sum(part.abs().sum() for b in range(reducer.buckets) for part in reducer.parts(b))
    assert total.item() == sum(p.numel() for p in reached.values())


def test_frozen_parameters_cost_nothing_and_may_thaw_between_steps() -> None:
    model = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    reducer = small(model)
    elements = sum(part.numel() for b in range(reducer.buckets) for part in reducer.parts(b))
    assert elements == 400 + 32 + 64 + 16
    reducer.reset()
    reducer.backward(loss_of(model, batch(0)))
    commit(reducer)
    assert model[0].weight.grad is None
    assert reducer.touched().tolist() == [0, 0, 1, 1, 1, 1]
    for parameter in model[0].parameters():
        parameter.requires_grad_(True)
    model[4].bias.requires_grad_(False)
    expected = plain_gradients_of_trainable(model)
    reducer.reset()
    reducer.backward(loss_of(model, batch(1)))
    commit(reducer)
    for name, parameter in model.named_parameters():
        if name in expected:
            assert torch.equal(parameter.grad, expected[name])
        else:
            assert parameter.grad is None


def plain_gradients_of_trainable(model: nn.Module) -> dict[str, Tensor]:
    twin = copy.deepcopy(model)
    named = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss_of(twin, batch(1)), list(named.values()))
    return dict(zip(named, grads, strict=True))


@pytest.mark.parametrize("known", [True, False])
def test_thawing_inside_a_step_is_named(known: bool) -> None:
    model = mlp()
    model[4].bias.requires_grad_(known)  # known: it has a hook, from when it was trainable
    reducer = small(model)
    model[4].bias.requires_grad_(False)
    reducer.reset()
    model[4].bias.requires_grad_(True)

    def step() -> None:
        reducer.backward(loss_of(model, batch(0)))
        commit(reducer)

    with pytest.raises(GradientMisuse, match=r"4\.bias was made trainable inside a step"):
        step()
