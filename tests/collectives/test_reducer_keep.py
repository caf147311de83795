"""Gradients that are set aside because nobody else needs them, and what happens when somebody does."""

from __future__ import annotations

import torch

from tests.fakes.gradients import batch, loss_of, mlp, plain_gradients, small


def test_what_was_kept_is_what_autograd_made() -> None:
    model = mlp()
    reducer = small(model)
    expected = plain_gradients(model, lambda twin: loss_of(twin, batch(1)))
    reducer.reset()
    reducer.backward(loss_of(model, batch(1)), keep=True)
    model.zero_grad(set_to_none=False)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert reducer.touched().tolist() == [1] * len(expected)
    reducer.give_kept()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))
    reducer.reset()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_several_backwards_add_up_as_in_plain_torch() -> None:
    model = mlp()
    reducer = small(model)
    reducer.reset()
    for seed in (1, 2, 3):
        reducer.backward(loss_of(model, batch(seed)), keep=True)
    reducer.give_kept()
    twin = mlp()
    for seed in (1, 2, 3):
        loss_of(twin, batch(seed)).backward()
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_asked_for_its_parts_it_packs_what_it_kept() -> None:
    parts = []
    for keep in (False, True):
        model = mlp()
        reducer = small(model)
        reducer.reset()
        reducer.backward(loss_of(model, batch(1)), keep=keep)
        parts.append([part.clone() for bucket in range(reducer.buckets) for part in reducer.parts(bucket)])
        assert not reducer.kept
        assert reducer.touched().tolist() == [1] * len(list(model.parameters()))
    assert all(torch.equal(packed, kept) for packed, kept in zip(*parts, strict=True))


def test_parameters_that_had_no_gradient_keep_none() -> None:
    model = mlp()
    reducer = small(model)
    reducer.reset()
    reducer.backward(model[0](batch(1)[0]).sum(), keep=True)
    assert reducer.touched().tolist() == [1, 1, 0, 0, 0, 0]
    reducer.give_kept()
    assert [parameter.grad is None for parameter in model.parameters()] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
