"""A snapshot: everything that must be equal on all workers, at one boundary, as plain bytes and tensors.

`meta` is the plain part (see encoding), `entries` say what the tensors are, in the order `meta` counts them.
Digests are computed when asked for, once, from any thread. A snapshot that was collected owns its tensors; a
live one is a view of the running job, worth something only while nothing steps.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from godmw.checkpoint.digest import digest, join
from godmw.checkpoint.encoding import dtype_named, pack


@dataclass(frozen=True)
class Entry:
    """One tensor: its path in the state, its dtype by name, its shape."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * dtype_named(self.dtype).itemsize

    @classmethod
    def of(cls, path: str, tensor: Tensor) -> "Entry":
        return cls(path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


class Snapshot:
    """`digests`: 16 bytes a tensor; `digest`: 16 bytes over everything."""

    def __init__(
        self,
        meta: bytes,
        entries: Sequence[Entry],
        tensors: Sequence[Tensor],
        digests: Sequence[bytes] | None = None,
    ) -> None:
        self.meta, self.entries, self.tensors = meta, tuple(entries), list(tensors)
        self._digests = None if digests is None else tuple(digests)
        self._lock = threading.Lock()

    def copied(self) -> "Snapshot":
        """A snapshot of its own tensors, in CPU memory."""
        return Snapshot(self.meta, self.entries, [_copied(tensor) for tensor in self.tensors])

    @property
    def digests(self) -> tuple[bytes, ...]:
        with self._lock:
            if self._digests is None:
                self._digests = tuple(digest(memory(tensor)) for tensor in self.tensors)
            return self._digests

    @property
    def digest(self) -> bytes:
        return digest_of(self.meta, self.entries, self.digests)

    @property
    def nbytes(self) -> int:
        return len(self.meta) + sum(entry.nbytes for entry in self.entries)


def digest_of(meta: bytes, entries: Sequence[Entry], digests: Sequence[bytes]) -> bytes:
    """The digest of the whole from those of its tensors."""
    rows = [[entry.path, entry.dtype, list(entry.shape)] for entry in entries]
    return join([meta, pack(rows), *digests])


def _copied(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return tensor.detach().cpu().contiguous()


def memory(tensor: Tensor) -> Any:
    """The tensor's elements as contiguous bytes in CPU memory: its own where they are, else a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()
