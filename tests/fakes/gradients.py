"""A small model, its batches, and a reduction in which every member has the same contribution."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from godmw.collectives.reducer import Reducer


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3)).to(
        dtype
    )


def batch(seed: int, n: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g).to(dtype), torch.randn(n, 3, generator=g).to(dtype)


def loss_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(model(data[0]), data[1])


def reducer_of(model: nn.Module, **sizes: int) -> Reducer:
    return Reducer(list(model.named_parameters()), **sizes)


def small(model: nn.Module) -> Reducer:
    """Several buckets even for a tiny model."""
    return reducer_of(model, bucket_bytes=500, edge_bytes=100)


def commit(reducer: Reducer, divisor: float = 1.0, members: int = 1) -> None:
    """What `members` with the same contribution would get."""
    results = [[part * members for part in reducer.parts(b)] for b in range(reducer.buckets)]
    reducer.set_grads(results, divisor)


def plain_gradients(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    twin = copy.deepcopy(model)
    return list(torch.autograd.grad(loss(twin), list(twin.parameters())))
