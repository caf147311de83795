"""Results of operations as bytes: numbers, strings, lists, dicts and small tensors, to the last bit.

What a shard contributes to an evaluation, what `job.once` returned and what an operation outside a loop
recorded all travel and rest in this form: MessagePack with one kind of extra value, a map that holds a
tensor's dtype, shape and bytes. Reading never builds anything but these.
"""

from __future__ import annotations

from typing import Any

import msgpack
import torch

from godmw.errors import UsageError

RECORD_BYTES = 64 * 1024  # the largest result that becomes part of the state
_TENSOR = "\0tensor"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


def encode(value: Any, what: str) -> bytes:
    """The bytes of `value`. UsageError, naming `what`, for anything that is not a value."""
    try:
        packed: bytes = msgpack.packb(_plain(value, what), use_bin_type=True)
    except OverflowError as error:
        raise UsageError(f"{what}: whole numbers are of at most 64 bits") from error
    return packed


def decode(data: bytes) -> Any:
    """What `encode` was given; tuples come back as lists, tensors on the CPU. ValueError for other bytes."""
    try:
        return _rich(msgpack.unpackb(data, raw=False, strict_map_key=False))
    except (KeyError, TypeError, ValueError, RuntimeError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"{len(data)} bytes are no value: {error}") from error


def check_size(data: bytes, what: str) -> None:
    """UsageError when a result is too large to be part of the state."""
    if len(data) > RECORD_BYTES:
        raise UsageError(
            f"{what}: a result of {len(data)} bytes; outside a step loop results are part of the state and "
            f"have at most {RECORD_BYTES}",
            hint="return a smaller summary, put tensors into job.state, or call it inside a step loop",
        )


def _plain(value: Any, what: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in _DTYPES or value.layout != torch.strided:
            raise UsageError(f"{what}: a tensor of {value.dtype} {value.layout} is not a value")
        flat = value.detach().cpu().contiguous().reshape(-1)
        return {_TENSOR: name, "shape": list(value.shape), "data": flat.view(torch.uint8).numpy().tobytes()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, what) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, what) for key, item in value.items()}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a numpy scalar
        return _plain(value.item(), what)
    raise UsageError(
        f"{what}: {type(value).__name__} is not a value that can be shared",
        hint="numbers, strings, tensors, and lists and dicts (with string keys) of them",
    )


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return [_rich(item) for item in value]
    if isinstance(value, dict):
        if _TENSOR in value:
            dtype = _DTYPES[value[_TENSOR]]
            raw = torch.frombuffer(bytearray(value["data"]), dtype=torch.uint8) if value["data"] else None
            flat = torch.empty(0, dtype=dtype) if raw is None else raw.view(dtype)
            return flat.reshape(value["shape"])
        return {key: _rich(item) for key, item in value.items()}
    return value
