"""State dicts as MessagePack with tags, tensors apart: what may travel, and how each value is written.

Numbers, strings, bytes, None, lists, tuples, dicts with str or int keys, the containers that schedulers
keep, numpy scalars, torch dtypes and devices are written plainly; tensors and arrays go to a list and leave
their place in it. Anything else is a UsageError that names object and key: nothing is pickled, and decoding
runs no code but this. Scalars are themselves; every other value is a list that begins with its tag.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import torch
from torch import Tensor

from godmw.errors import UsageError

MAX_DEPTH = 64
FACTORIES: dict[str, Any] = {
    "": None,
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "dict": dict,
    "bool": bool,
}
DICTS: dict[str, type] = {"d": dict, "o": OrderedDict, "c": Counter}
SEQUENCES: dict[str, type] = {"l": list, "t": tuple, "z": torch.Size}
DICT_TAGS = {kind: tag for tag, kind in DICTS.items()}
SEQUENCE_TAGS = {kind: tag for tag, kind in SEQUENCES.items()}
NUMBERS = "?bhilqBHILQefdFD"  # numpy's characters of plain numbers


class Encoder:
    """Writes values; tensors are collected in `tensors` as (path, tensor), one that comes twice once.

    `sort`: dicts are written in the order of their keys, not of their making.
    """

    def __init__(self) -> None:
        self.tensors: list[tuple[str, Tensor]] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def encode(self, value: Any, path: str, sort: bool, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise UsageError(f"{path}: nested deeper than {MAX_DEPTH}", hint="does it contain itself?")
        kind = type(value)
        if value is None or kind in (bool, str, bytes, float):
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else ["i", str(value)]
        if isinstance(value, Tensor):
            return ["T", self._tensor(value, path), value.device.type == "cpu"]
        if kind in SEQUENCE_TAGS:
            inner = [self.encode(item, f"{path}/{i}", sort, depth + 1) for i, item in enumerate(value)]
            return [SEQUENCE_TAGS[kind], inner]
        if kind in DICT_TAGS:
            return [DICT_TAGS[kind], self._pairs(value, path, sort and kind is not OrderedDict, depth)]
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", "")
            if FACTORIES.get(factory, self) is not value.default_factory:
                raise self._refusal(path, value.default_factory)
            return ["f", factory, self._pairs(value, path, sort, depth)]
        return self._rare(value, path)

    def _rare(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.dtype):
            return ["y", str(value).removeprefix("torch.")]
        if isinstance(value, torch.device):
            return ["v", str(value)]
        if isinstance(value, np.generic) and value.dtype.char in NUMBERS:
            little = value.dtype.newbyteorder("<")
            return ["n", little.str, value.astype(little).tobytes()]
        if type(value) is np.ndarray and value.dtype.char in NUMBERS:
            try:
                tensor = torch.from_numpy(np.ascontiguousarray(value).copy().reshape(value.shape))
            except TypeError:
                raise self._refusal(path, value) from None
            return ["a", self._tensor(tensor, path)]
        raise self._refusal(path, value)

    def _refusal(self, path: str, value: Any) -> UsageError:
        return UsageError(
            f"{path} is a {type(value).__name__}, which cannot be part of the state: {value!r:.60}",
            hint="state holds numbers, strings, lists, tuples, dicts and tensors; leave the rest out",
        )

    def _pairs(self, value: Any, path: str, sort: bool, depth: int) -> list[Any]:
        for key in value:
            if type(key) is not str and not (type(key) is int and -(2**63) <= key < 2**63):
                raise UsageError(f"{path} has the key {key!r:.60}, keys are str or 64-bit int")
        keys = sorted(value, key=lambda k: (type(k) is str, k)) if sort else value
        return [[k, self.encode(value[k], f"{path}/{k}", sort, depth + 1)] for k in keys]

    def _tensor(self, tensor: Tensor, path: str) -> int:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            what = "meta" if tensor.device.type == "meta" else str(tensor.layout)
            raise UsageError(f"{path} is a {what} tensor, state holds ordinary ones")
        tensor = tensor.detach()
        form = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        key = (tensor.device, tensor.data_ptr(), *form)
        if tensor.numel() and key in self._known:
            return self._known[key]
        self.tensors.append((path, tensor))
        self._known[key] = len(self.tensors) - 1
        return len(self.tensors) - 1


class Place:
    """A tensor's place in a decoded value, until it is filled; `host`: it lives in CPU memory."""

    def __init__(self, tensor: Tensor, host: bool) -> None:
        self.tensor, self.host = tensor, host


def decode(node: Any, tensors: Sequence[Tensor], *, places: bool = False, depth: int = 0) -> Any:
    """The value that `Encoder.encode` wrote. ValueError for what it cannot have written.

    With `places`, tensors come as `Place`.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if not isinstance(node, list):
        if node is not None and type(node) not in (bool, int, float, str, bytes):
            raise ValueError(f"not an encoded value: {node!r:.80}")
        return node

    def inner(child: Any) -> Any:
        return decode(child, tensors, places=places, depth=depth + 1)

    try:
        tag, *rest = node
        if tag in SEQUENCES:
            return SEQUENCES[tag]([inner(item) for item in rest[0]])
        if tag in DICTS:
            return DICTS[tag]({key: inner(item) for key, item in rest[0]})
        if tag == "f":
            return defaultdict(FACTORIES[rest[0]], {key: inner(item) for key, item in rest[1]})
        return _decode_rare(tag, rest, tensors, places)
    except (TypeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"not an encoded value: {node!r:.80}") from error


def _decode_rare(tag: str, rest: list[Any], tensors: Sequence[Tensor], places: bool) -> Any:
    match tag:
        case "T":
            tensor = tensors[_index(rest[0], tensors)]
            return Place(tensor, bool(rest[1])) if places else tensor
        case "a":
            return tensors[_index(rest[0], tensors)].cpu().numpy().copy()
        case "i":
            return int(str(rest[0])[:4096])
        case "n":
            dtype = np.dtype(rest[0])
            if dtype.char not in NUMBERS:
                raise ValueError(f"not a number: {rest[0]!r}")
            return np.frombuffer(rest[1], dtype=dtype)[0].astype(dtype.newbyteorder("="))
        case "y":
            return dtype_named(rest[0])
        case "v":
            return torch.device(rest[0])
    raise ValueError(f"unknown tag {tag!r}")


def _index(value: Any, tensors: Sequence[Tensor]) -> int:
    if type(value) is not int or not 0 <= value < len(tensors):
        raise ValueError(f"no tensor {value!r}")
    return value


def dtype_named(name: Any) -> torch.dtype:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype {name!r}")
    return dtype


def pack(node: Any) -> bytes:
    data: bytes = msgpack.packb(node, use_bin_type=True)
    return data


def unpack(data: bytes) -> Any:
    """What `pack` wrote; ValueError for anything else."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except Exception as error:  # msgpack raises many kinds; all mean the same here
        raise ValueError(f"not MessagePack: {error}") from error
