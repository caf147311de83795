"""The kernels in numpy, slow and obvious: the oracle of every faster one, and what runs without a compiler.

Arrays are contiguous float32 in CPU memory, of any shape: numpy arrays, torch tensors, or whatever offers
`__array__` without a copy. Everything is checked before anything is written. Each operation is rounded to
float32 on its own, as IEEE 754 prescribes. This module knows nothing of torch and of who calls it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def pack(flat: Any, offsets: Sequence[int], tensors: Sequence[Any], weight: float, accumulate: bool) -> None:
    """flat[offset : offset + n] = weight * tensor, or += where `accumulate`; see `dispatch.pack`."""
    factor = _scalar(weight)
    if not np.isfinite(factor):
        raise ValueError("the weight is not finite in float32")
    buffer = _view(flat, "the flat buffer", writable=True)
    pieces = [_view(tensor, f"tensor {i}", writable=False) for i, tensor in enumerate(tensors)]
    _check(buffer, offsets, pieces)
    with np.errstate(all="ignore"):
        for offset, piece in zip(offsets, pieces, strict=True):
            part = buffer[offset : offset + piece.size]
            product = piece * factor
            part[:] = part + product if accumulate else product


def unpack(flat: Any, offsets: Sequence[int], tensors: Sequence[Any], divisor: float) -> None:
    """tensor = flat[offset : offset + n] / divisor; see `dispatch.unpack`."""
    denominator = _scalar(divisor)
    if not np.isfinite(denominator) or denominator == 0:
        raise ValueError("the divisor is zero or not finite in float32")
    buffer = _view(flat, "the flat buffer", writable=False)
    pieces = [_view(tensor, f"tensor {i}", writable=True) for i, tensor in enumerate(tensors)]
    _check(buffer, offsets, pieces)
    with np.errstate(all="ignore"):
        for offset, piece in zip(offsets, pieces, strict=True):
            piece[:] = buffer[offset : offset + piece.size] / denominator


def _scalar(value: float) -> np.float32:
    with np.errstate(all="ignore"):
        rounded: np.float32 = np.float32(value)
    return rounded


def _view(array: Any, name: str, *, writable: bool) -> Array:
    """The array's own memory as one dimension; ValueError where that cannot be had without a copy."""
    if hasattr(array, "detach"):
        array = array.detach()
    if not hasattr(array, "__array__"):
        raise ValueError(f"{name} is not an array that can be read: {type(array).__name__}")
    try:
        view = np.asarray(array)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{name} is not in CPU memory, or not of a type numpy has: {error}") from error
    if view.dtype != np.float32:
        raise ValueError(f"{name} is not float32 but {view.dtype}")
    if not view.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous")
    if writable and not view.flags.writeable:
        raise ValueError(f"{name} is not an array that can be written")
    return view.reshape(-1)


def _check(buffer: Array, offsets: Sequence[int], pieces: Sequence[Array]) -> None:
    if len(offsets) != len(pieces):
        raise ValueError(f"{len(offsets)} offsets for {len(pieces)} tensors")
    ranges = []
    for i, (offset, piece) in enumerate(zip(offsets, pieces, strict=True)):
        if offset < 0:
            raise ValueError(f"tensor {i} has the negative offset {offset}")
        if offset + piece.size > buffer.size:
            raise ValueError(
                f"tensor {i} at [{offset}, {offset + piece.size}) does not fit into the flat buffer of "
                f"{buffer.size} elements"
            )
        if np.may_share_memory(buffer, piece):
            raise ValueError(f"tensor {i} shares memory with the flat buffer")
        if piece.size:
            ranges.append((offset, offset + piece.size, i))
    ranges.sort()
    for (_, end, i), (start, _, j) in pairwise(ranges):
        if start < end:
            raise ValueError(f"tensor {i} and tensor {j} overlap in the flat buffer")
