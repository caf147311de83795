"""From dataset indices to a batch, in whichever process: samples, collate, and the random numbers in
between.

A `Fetcher` is what a loader process is given.  The generators of torch, numpy and random are seeded from the
given seed and the batch's indices before a sample is touched, so that an augmentation draws the same
wherever and however often the batch is made.  A `TensorDataset` needs none of it: its batches are
selected whole, to the same bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from godmw.data.indices import Indices, index_hash, mix

Collate = Callable[[list[Any]], Any]
FINGERPRINT_SAMPLES = 8


def seed_generators(seed: int) -> None:
    """Seed torch (CPU), numpy and random with a 64-bit word."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@dataclasses.dataclass
class Fetcher:
    """A map-style dataset and how its samples become a batch."""

    dataset: Any
    collate: Collate
    length: int

    def __post_init__(self) -> None:
        self.selects = self.collate is default_collate and _selectable(self.dataset)

    def batch(self, indices: Indices, seed: int) -> Any:
        """The collated batch.  Leaves the generators seeded, unless nothing was drawn from them."""
        if self.selects:
            return _select(self.dataset, torch.from_numpy(indices))
        seed_generators(mix(seed & (2**64 - 1)) ^ index_hash(indices))
        return self.collate(self.samples(indices.tolist()))

    def samples(self, indices: list[int]) -> list[Any]:
        """The samples, all at once from a dataset that can (`__getitems__`), else one by one."""
        together = getattr(self.dataset, "__getitems__", None)
        if together:
            samples: list[Any] = together(indices)
            return samples
        return [self.dataset[index] for index in indices]

    def fingerprint(self) -> bytes:
        """A digest of the length and of 8 samples spread over the dataset (all of a smaller one).

        Equal for equal datasets in any process; the generators go on from where they were.
        """
        kept = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
        last = self.length - 1
        positions = sorted({last * part // (FINGERPRINT_SAMPLES - 1) for part in range(FINGERPRINT_SAMPLES)})
        digest = hashlib.sha256(f"{self.length}".encode())
        try:
            for index in positions:
                seed_generators(index)
                _digest(self.samples([index])[0], digest.update)
        finally:
            torch.default_generator.set_state(kept[0])
            np.random.set_state(kept[1])
            random.setstate(kept[2])
        return digest.digest()


def _selectable(dataset: Any) -> bool:
    """Whether selecting whole batches gives what collating samples does, strides included."""
    if type(dataset) is Subset:
        return len(dataset) > 0 and _selectable(dataset.dataset)
    return type(dataset) is TensorDataset and all(_is_simple(tensor) for tensor in dataset.tensors)


def _is_simple(tensor: Tensor) -> bool:
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or not tensor.is_contiguous():
        return False
    try:
        tensor[:1].index_select(0, torch.zeros(1, dtype=torch.int64, device=tensor.device))
    except (NotImplementedError, RuntimeError, IndexError):
        return False  # a dtype that cannot be selected
    return not tensor.is_quantized


def _select(dataset: Any, indices: Tensor) -> list[Tensor]:
    if type(dataset) is Subset:
        inner = [dataset.indices[index] for index in indices.tolist()]
        return _select(dataset.dataset, torch.tensor(inner, dtype=torch.int64))
    return [tensor.index_select(0, indices.to(tensor.device)) for tensor in dataset.tensors]


def _digest(value: Any, update: Callable[[bytes], Any]) -> None:
    """Feed a sample's content; of an object of unknown kind, its type."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        if tensor.layout is not torch.strided or tensor.is_quantized:
            tensor = tensor.to_dense() if not tensor.is_quantized else tensor.int_repr()
        update(f"tensor {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
        update(flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array_interface__"):
        array = np.ascontiguousarray(value)
        update(f"array {array.dtype} {array.shape}".encode())
        update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    elif isinstance(value, (str, int, float, complex, bool, type(None))):
        update(f"{type(value).__name__} {value!r}".encode())
    elif isinstance(value, (bytes, bytearray)):
        update(b"bytes %d " % len(value) + value)
    elif isinstance(value, Mapping):
        update(f"mapping {len(value)}".encode())
        for key, item in value.items():
            update(f"{key!r}".encode() if isinstance(key, (str, int)) else type(key).__name__.encode())
            _digest(item, update)
    elif isinstance(value, (list, tuple)):
        update(f"sequence {len(value)}".encode())
        for item in value:
            _digest(item, update)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        update(type(value).__qualname__.encode())
        for field in dataclasses.fields(value):
            _digest(getattr(value, field.name), update)
    else:
        update(f"object {type(value).__qualname__}".encode())
