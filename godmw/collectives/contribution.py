"""The memory a worker's contribution lies in: one flat buffer a dtype, buckets are slices of it.

Gradients are added as weight * gradient in fp32 (fp64 for fp64 parameters; halves contribute in fp32; a
complex number is a pair), each product and each sum rounded. The first gradient of an operation overwrites,
so nothing is cleared that will be written. Padding between parameters is zero for ever. The reduction reads
`parts`, it never writes them. This module knows nothing of autograd's hooks, of order or of launching.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from godmw.collectives.bucket import BucketLayout, Item, Piece
from godmw.errors import UsageError
from godmw.kernels import dispatch

SUMMED_IN = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex64: torch.float32,
    torch.float64: torch.float64,
    torch.complex128: torch.float64,
}
DIRTY, ZERO, FILLED = range(3)  # what a piece holds: leftovers (logically zero), zeros, a contribution


def item_of(name: str, parameter: Tensor) -> Item:
    """What the layout must know of a parameter. UsageError for a dtype that has no sum here."""
    dtype = SUMMED_IN.get(parameter.dtype)
    if dtype is None:
        raise UsageError(
            f"parameter {name} is {dtype_name(parameter.dtype)}, which gradients are not summed in",
            hint="use float32, float64, float16 or bfloat16 parameters, or freeze it",
        )
    numel = parameter.numel() * (2 if parameter.is_complex() else 1)
    return Item(numel, dtype.itemsize, f"{dtype_name(dtype)}@{parameter.device}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Home:
    """Where one parameter's contribution lies, and how its gradient gets there and back."""

    def __init__(self, name: str, parameter: Tensor, piece: Piece) -> None:
        self.name, self.piece = name, piece
        self.dtype, self.shape = parameter.dtype, parameter.shape
        self.complex = parameter.is_complex()
        self.stride = parameter.stride() if dense(parameter) else contiguous_stride(parameter.shape)
        # the kernels read contiguous fp32 in CPU memory
        self.kernel = self.dtype == torch.float32 and parameter.device.type == "cpu"
        self.plain = self.kernel and self.stride == contiguous_stride(parameter.shape)

    def view(self, part: Tensor) -> Tensor:
        """The piece of a flat `part` as a tensor of the parameter's shape and strides."""
        start, numel = self.piece.start, self.piece.numel
        if self.complex:
            pairs = part[start : start + numel].view(-1, 2)
            return torch.view_as_complex(pairs).as_strided(self.shape, self.stride)
        return part.as_strided(self.shape, self.stride, part.storage_offset() + start)

    def flat(self, gradient: Tensor) -> Tensor | None:
        """The gradient's own memory, in the order the piece has, where the kernels can read it."""
        if not self.kernel or gradient.dtype != torch.float32:
            return None
        if self.plain and gradient.is_contiguous():
            return gradient
        if gradient.stride() != self.stride:
            return None
        return gradient.as_strided((self.piece.numel,), (1,))


class Contribution:
    """Contribution memory of `parameters` {index: (name, parameter)}, laid out by `layout`."""

    def __init__(self, parameters: Mapping[int, tuple[str, Tensor]], layout: BucketLayout) -> None:
        flat: dict[str, Tensor] = {}
        for kind, length in layout.lengths.items():
            dtype, _, device = kind.partition("@")
            flat[kind] = torch.zeros(length, dtype=getattr(torch, dtype), device=device)
        self._parts = [
            [flat[part.kind][part.start : part.stop] for part in bucket.parts] for bucket in layout.buckets
        ]
        self.homes: dict[int, Home] = {}
        self._views: dict[int, Tensor] = {}
        self._state = dict.fromkeys(parameters, ZERO)
        self._start: dict[int, int] = {}
        self._members = [[piece.index for piece in bucket.pieces] for bucket in layout.buckets]
        for parts, bucket in zip(self._parts, layout.buckets, strict=True):
            for piece in bucket.pieces:
                home = Home(*parameters[piece.index], piece)
                self.homes[piece.index] = home
                self._views[piece.index] = home.view(parts[piece.part])
                self._start[piece.index] = piece.start
        self._plain = [
            len(parts) == 1 and all(self.homes[index].plain for index in members)
            for parts, members in zip(self._parts, self._members, strict=True)
        ]
        self._scratch: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def reset(self) -> None:
        """A new operation: logically zero everywhere; costs no memory traffic."""
        for index, state in self._state.items():
            if state == FILLED:
                self._state[index] = DIRTY

    def filled(self, index: int) -> bool:
        return self._state.get(index) == FILLED

    def add(self, bucket: int, indices: Sequence[int], gradients: Sequence[Tensor], weight: float) -> None:
        """contribution += weight * gradient for parameters of one bucket; the first one overwrites."""
        state = self._state
        filled = sum(state[index] == FILLED for index in indices)
        if self._plain[bucket] and filled in (0, len(indices)):
            offsets = [self._start[index] for index in indices]
            try:
                dispatch.pack(self._parts[bucket][0], offsets, gradients, weight, filled > 0)
            except ValueError:  # nothing was written: some gradient is not what the kernels read
                self._add_each(bucket, indices, gradients, weight)
        else:
            self._add_each(bucket, indices, gradients, weight)
        for index in indices:
            state[index] = FILLED

    def _add_each(
        self, bucket: int, indices: Sequence[int], gradients: Sequence[Tensor], weight: float
    ) -> None:
        """`add` for a bucket in which some gradient, or some piece, is not like the others."""
        groups: dict[tuple[int, bool], tuple[list[int], list[Tensor]]] = {}
        for index, gradient in zip(indices, gradients, strict=True):
            home = self.homes[index]
            accumulate = self._state[index] == FILLED
            if gradient.layout != torch.strided:
                raise UsageError(
                    f"parameter {home.name} has a sparse gradient, which cannot be summed over workers",
                    hint="build the layer with sparse=False",
                )
            gradient = gradient.detach()
            flat = home.flat(gradient)
            if flat is None:
                self._add_slowly(index, gradient, weight, accumulate)
            else:
                offsets, tensors = groups.setdefault((home.piece.part, accumulate), ([], []))
                offsets.append(home.piece.start)
                tensors.append(flat)
        for (part, accumulate), (offsets, tensors) in groups.items():
            dispatch.pack(self._parts[bucket][part], offsets, tensors, weight, accumulate)

    def _add_slowly(self, index: int, gradient: Tensor, weight: float, accumulate: bool) -> None:
        """What the kernels do not read: other dtypes, devices and strides. The same roundings."""
        view = self._views[index]
        if not accumulate:
            view.copy_(gradient)
            if weight != 1.0:
                view.mul_(weight)
        elif weight == 1.0 and gradient.dtype == view.dtype:
            view.add_(gradient)
        else:
            scratch = self._scratch_like(view)
            scratch.copy_(gradient)
            if weight != 1.0:
                scratch.mul_(weight)
            view.add_(scratch)

    def _scratch_like(self, view: Tensor) -> Tensor:
        """Memory for one gradient in the dtype it is summed in, kept for the next."""
        key = (view.dtype, view.device)
        if key not in self._scratch:
            numel = max(v.numel() for v in self._views.values() if (v.dtype, v.device) == key)
            self._scratch[key] = torch.empty(numel, dtype=view.dtype, device=view.device)
        return self._scratch[key].as_strided(view.shape, view.stride())

    def parts(self, bucket: int) -> list[Tensor]:
        """The bucket's flat slices, one a dtype and device, zeros where nothing was contributed."""
        members = self._members[bucket]
        dirty = [index for index in members if self._state[index] == DIRTY]
        if len(dirty) == len(members):
            for part in self._parts[bucket]:
                part.zero_()
        else:
            for index in dirty:
                self._views[index].zero_()
        for index in dirty:
            self._state[index] = ZERO
        return self._parts[bucket]


def dense(tensor: Tensor) -> bool:
    """Whether the strides are a permutation of the contiguous ones: every element once, no gaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
