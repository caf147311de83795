"""Objects between processes: what arrives is what was sent, writable, its own, and leaks nothing."""

import os
import socket
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from godmw.data import handover

Pair = namedtuple("Pair", ["x", "y"])
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
]


def there_and_back(value: Any) -> Any:
    return handover.unpack(handover.pack(value))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 7, 2)], ids=str)
def test_tensors_of_every_kind(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = (torch.randn(shape) * 100).to(dtype)
    got = there_and_back(sent)
    assert (got.dtype, got.shape, got.stride()) == (sent.dtype, sent.shape, sent.stride())
    assert torch.equal(got, sent)


def test_views_conjugates_gradients_and_parameters() -> None:
    base = torch.arange(12.0).view(3, 4)
    assert torch.equal(there_and_back(base.t()[1:, ::2]), base.t()[1:, ::2])
    wave = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert torch.equal(there_and_back(wave), torch.tensor([1 - 2j, 3 + 1j]))
    assert there_and_back(torch.ones(2, requires_grad=True)).requires_grad
    parameter = there_and_back(nn.Parameter(torch.ones(3)))
    assert type(parameter) is nn.Parameter
    assert torch.equal(parameter, torch.ones(3))


def test_tensors_that_are_not_plain() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([1.0, 5.0]), (4,), check_invariants=True
    )
    assert torch.equal(there_and_back(sparse).to_dense(), torch.tensor([1.0, 0.0, 5.0, 0.0]))
    storage = torch.arange(3.0).untyped_storage()
    assert list(there_and_back(storage)) == list(storage)


def test_whole_structures() -> None:
    shared = torch.ones(2)
    sent = {
        "pair": Pair(np.arange(5, dtype=np.int16), "y"),
        "list": [shared, shared, None, 2.5, b"bytes", {1, 2}],
        "names": np.array(["a", "bc"]),
    }
    got = there_and_back(sent)
    assert got["pair"].x.tolist() == [0, 1, 2, 3, 4]
    assert got["pair"].x.dtype == np.int16
    assert got["list"][2:] == sent["list"][2:]
    assert got["list"][0] is got["list"][1]
    assert got["names"].tolist() == ["a", "bc"]


def test_what_arrives_is_the_receivers_own() -> None:
    fd = handover.pack(torch.zeros(100_000))
    twin = os.dup(fd)
    first, second = handover.unpack(fd), handover.unpack(twin)
    first += 1
    assert second.sum() == 0
    assert first.data_ptr() % 64 == 0


def test_large_tensors_travel_without_a_reader() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = [torch.full((1_000_000,), float(n)) for n in range(8)]
        for tensor in sent:
            handover.send(ours, tensor)  # 32 MB, and nobody reads
        assert all(torch.equal(handover.receive(theirs), tensor) for tensor in sent)


def test_the_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        handover.send(ours, 1)
        handover.send_end(ours)
        assert handover.receive(theirs) == 1
        with pytest.raises(EOFError):
            handover.receive(theirs)
        ours.close()
        with pytest.raises(EOFError):
            handover.receive(theirs)


def test_no_descriptor_is_left() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        kept = []
        for n in range(50):
            handover.send(ours, torch.full((1000,), float(n)))
            kept.append(handover.receive(theirs))
        with pytest.raises(Exception, match="lambda"):
            handover.pack(lambda: 0)
        assert len(os.listdir("/proc/self/fd")) == before
    assert [tensor[0] for tensor in kept] == list(range(50))
