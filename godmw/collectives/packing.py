"""Several flat tensors of any dtype as ranges of one buffer, and the result buffers a generation owns.

A bucket's parts (gradients in fp32, a table in int64) lie behind each other in one buffer of bytes, each
on a 64-byte boundary, so one message carries them all and what arrives is already where it belongs.
`Results` hands out such buffers as views, one for each position in a layout, and keeps them as long as
the generation lives. Knows neither ranks nor messages.
"""

import contextlib
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from godmw.collectives.schedule import UNIT_BYTES

MAPPED_BYTES = 64 << 10

Shape = tuple[tuple[int, torch.dtype], ...]  # (elements, dtype) of each part
Allocate = Callable[[int], Tensor]


def shape_of(parts: Sequence[Tensor]) -> Shape:
    return tuple([(part.numel(), part.dtype) for part in parts])


def memory(length: int) -> Tensor:
    """`length` bytes (uint8, 1-D), 64-byte aligned; what is large is mapped for itself.

    Buffers come and go with generations: mapped ones return to the system at once and leave no holes in the
    heap, and huge pages make the first write after a recovery cheap.
    """
    if length < MAPPED_BYTES:
        return torch.empty(length, dtype=torch.uint8)
    mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [low, high) of one part."""

    part: int
    low: int
    high: int


class Packing:
    """Where each part of a shape lies in a buffer of `length` bytes."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.offsets: list[int] = []
        end = 0
        for count, dtype in shape:
            self.offsets.append(end)
            end += -(-count * dtype.itemsize // UNIT_BYTES) * UNIT_BYTES
        self.length = end

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The parts as typed views of a uint8 buffer."""
        return [
            buffer[offset : offset + count * dtype.itemsize].view(dtype)
            for (count, dtype), offset in zip(self.shape, self.offsets, strict=True)
        ]

    def pieces(self, low: int, high: int) -> list[Piece]:
        """The elements that lie in bytes [low, high); the bounds are multiples of 64 or the end."""
        found = []
        for part, ((count, dtype), offset) in enumerate(zip(self.shape, self.offsets, strict=True)):
            first = max(0, low - offset) // dtype.itemsize
            last = min(count, (max(0, high - offset)) // dtype.itemsize)
            if first < last:
                found.append(Piece(part, first, last))
        return found

    def nbytes(self, piece: Piece) -> int:
        return (piece.high - piece.low) * self.shape[piece.part][1].itemsize


class Packed:
    """A buffer of bytes and its parts."""

    def __init__(self, packing: Packing, allocate: Allocate) -> None:
        self.packing = packing
        self.buffer = allocate(packing.length)
        self.parts = packing.views(self.buffer)
        ends = [*packing.offsets, packing.length][1:]
        for part, offset, end in zip(self.parts, packing.offsets, ends, strict=True):
            self.buffer[offset + part.nbytes : end].zero_()  # the gaps travel too: nobody's memory leaks
        self.exchanges: list[Any] | None = None  # what the ring prepared for this buffer


class Results:
    """The result buffers of one generation; for an equal layout the same tensors again."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._layouts: dict[tuple[Shape, ...], list[list[Tensor]]] = {}
        self._packed: dict[int, Packed] = {}

    def of(self, like: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """For each bucket and part of `like` a tensor of the same length and dtype, contents undefined."""
        key = tuple([shape_of(parts) for parts in like])
        if key not in self._layouts:
            made = [Packed(Packing(shape), self._allocate) for shape in key]
            self._packed.update(
                {packed.buffer.data_ptr(): packed for packed in made if packed.packing.length}
            )
            self._layouts[key] = [packed.parts for packed in made]
        return self._layouts[key]

    def packed(self, out: Sequence[Tensor]) -> Packed | None:
        """The buffer that `out` is the whole list of parts of, None if it came from elsewhere."""
        first = next((part for part in out if part.numel()), None)
        found = None if first is None else self._packed.get(first.data_ptr())
        if found is None or found.packing.shape != shape_of(out):
            return None
        same = all(a.data_ptr() == b.data_ptr() for a, b in zip(out, found.parts, strict=True))
        return found if same else None
