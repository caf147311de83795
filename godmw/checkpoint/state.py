"""All that must be equal on all workers: collected at a boundary, applied whole, compared by digest.

`StateRegistry` knows the registered objects by name: modules with their trainable mask, optimizers, and
whatever else has a state_dict. It reads and writes live objects from the main thread only. It knows nothing
of membership, of files, or of how a snapshot travels.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from godmw.checkpoint import optimizers
from godmw.checkpoint.encoding import Encoder, decode, pack, unpack
from godmw.checkpoint.snapshot import Entry, Snapshot, memory
from godmw.errors import UsageError

META_VERSION = 1
SLACK_BYTES = 64 << 20  # state beside modules and optimizers
VALUES_PER_PARAMETER = 16  # the most that an optimizer may keep

Row = list[Any]


class StateRegistry:
    """The objects given to godmw.join, positional ones named by class, and the engine's own in `extra`.

    `extra` values have state_dict and load_state_dict, or are dicts that are the state themselves; they are
    part of the state and not of the layout.
    """

    def __init__(
        self,
        objects: Iterable[Any] = (),
        named: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.objects: dict[str, Any] = {}
        for thing in objects:
            self.add(self._free_name(type(thing).__name__), thing)
        for name, thing in (named or {}).items():
            self.add(name, thing)
        self._extra: set[str] = set()
        for name, thing in (extra or {}).items():
            self.add(name, thing)
            self._extra.add(name)

    def add(self, name: str, thing: Any) -> None:
        if name in self.objects:
            raise UsageError(f"two objects of the state are called {name!r}")
        if any(thing is known for known in self.objects.values()):
            raise UsageError(f"the {type(thing).__name__} called {name!r} was registered twice")
        stateful = callable(getattr(thing, "state_dict", None)) and callable(
            getattr(thing, "load_state_dict", None)
        )
        if not stateful and not isinstance(thing, dict):
            raise UsageError(
                f"{name} is a {type(thing).__name__}, which has no state_dict and load_state_dict",
                hint="give godmw.join the model, optimizers, schedulers and scalers; data goes to job.steps",
            )
        self.objects[name] = thing

    def _free_name(self, base: str) -> str:
        names = (base if n == 1 else f"{base}{n}" for n in range(1, len(self.objects) + 2))
        return next(name for name in names if name not in self.objects)

    def modules(self) -> list[tuple[str, nn.Module]]:
        return [(name, thing) for name, thing in self.objects.items() if isinstance(thing, nn.Module)]

    # ---- what there is ----

    def layout(self) -> list[Row]:
        """[path, what, numbers, trainable or None] for each tensor of a module and group of an optimizer."""
        rows: list[Row] = []
        for name, thing in self.objects.items():
            if name in self._extra:
                continue
            if isinstance(thing, nn.Module):
                rows += self._module_rows(name, thing)
            else:
                rows.append([name, type(thing).__name__, [], None])
            if isinstance(thing, torch.optim.Optimizer):
                for number, group in enumerate(thing.param_groups):
                    rows.append([f"{name}/group {number}", "parameters", [len(group["params"])], None])
        return rows

    def _module_rows(self, name: str, module: nn.Module) -> list[Row]:
        rows: list[Row] = []
        trainable = {key: p.requires_grad for key, p in module.named_parameters(remove_duplicate=False)}
        for key, value in module.state_dict().items():
            if is_lazy(value):
                raise UsageError(
                    f"{name}/{key} has no shape yet", hint="run the model once on a sample before godmw.join"
                )
            if isinstance(value, Tensor):
                entry = Entry.of(f"{name}/{key}", value)
                rows.append([entry.path, entry.dtype, list(entry.shape), trainable.get(key)])
        return rows

    def layout_digest(self, trainable: bool = True) -> bytes:
        """16 bytes over names, dtypes, shapes and, unless switched off, the trainable mask."""
        rows = self.layout() if trainable else [row[:3] for row in self.layout()]
        return hashlib.blake2b(pack(rows), digest_size=16).digest()

    def describe_difference(self, other: Sequence[Row]) -> str | None:
        """The first difference of another worker's layout from this one, in words; None if there is none."""
        mine, theirs = self.layout(), list(other)
        for here, there in zip(mine, theirs, strict=False):
            if here[0] != there[0]:
                return f"{here[0]} here, where the other has {there[0]}"
            if list(here) != list(there):
                return f"{here[0]} is {_described(here)} here, {_described(there)} there"
        if len(mine) != len(theirs):
            longer, where = (mine, "here") if len(mine) > len(theirs) else (theirs, "there")
            return f"{longer[min(len(mine), len(theirs))][0]} is only {where}"
        return None

    def budget_bytes(self) -> int:
        """The most that a snapshot of this layout may hold."""
        tensors = [v for _, m in self.modules() for v in m.state_dict().values() if isinstance(v, Tensor)]
        elements = sum(t.numel() for t in tensors)
        return sum(t.nbytes for t in tensors) + elements * 4 * VALUES_PER_PARAMETER + SLACK_BYTES

    def accept(self, entries: Sequence[Entry]) -> None:
        """ValueError unless the tensors of modules among `entries` are those of the modules here."""
        mine = {row[0]: row for name, module in self.modules() for row in self._module_rows(name, module)}
        owners = tuple(f"{name}/" for name, _ in self.modules())
        for entry in entries:
            row = mine.get(entry.path)
            if entry.path.startswith(owners) and row is None:
                raise ValueError(f"{entry.path} is no tensor here")
            if row is not None and row[1:3] != [entry.dtype, list(entry.shape)]:
                raise ValueError(f"{entry.path} is {row[1]} {row[2]} here, not {entry.dtype} {entry.shape}")

    # ---- out ----

    def live(self) -> Snapshot:
        """The state as it is, its tensors the live ones wherever state_dict gives those."""
        encoder = Encoder()
        rows: list[Row] = []
        for name, thing in self.objects.items():
            plain = isinstance(thing, dict)
            state = thing if plain else thing.state_dict()
            mask = None
            if isinstance(thing, nn.Module):
                mask = [parameter.requires_grad for parameter in thing.parameters()]
            rows.append([name, encoder.encode(state, name, sort=not plain), mask])
        entries = [Entry.of(path, tensor) for path, tensor in encoder.tensors]
        return Snapshot(pack([META_VERSION, rows]), entries, [tensor for _, tensor in encoder.tensors])

    def collect(self) -> Snapshot:
        """A private copy in CPU memory, whole; by the main thread, at a boundary."""
        return self.live().copied()

    def digest(self) -> bytes:
        """16 bytes over everything, from the live objects; equal states have equal digests."""
        return self.live().digest

    def tensor_digests(self) -> list[bytes]:
        """16 bytes a tensor, in the order of a snapshot's entries."""
        return list(self.live().digests)

    # ---- in ----

    def apply(self, snapshot: Snapshot) -> None:
        """Make the live objects equal to the snapshot, in place; all is checked before any is written.

        Raises what `check` raises.
        """
        decoded, masks = self._checked(snapshot)
        for name, thing in self.objects.items():
            _write(thing, decoded[name], masks[name])

    def check(self, snapshot: Snapshot) -> dict[str, Any]:
        """The state of each object as the snapshot has it, with its tensors; nothing is written.

        Raises UsageError for a snapshot of other objects, shapes or dtypes, ValueError for one that cannot
        have been collected.
        """
        return self._checked(snapshot)[0]

    def _checked(self, snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Any]]:
        """State and trainable mask of each object."""
        meta = unpack(snapshot.meta)
        if not isinstance(meta, list) or len(meta) != 2 or meta[0] != META_VERSION:
            raise ValueError("not the plain part of a snapshot")
        rows = {name: (node, mask) for name, node, mask in meta[1]}
        if list(rows) != list(self.objects):
            here, there = ", ".join(self.objects), ", ".join(map(str, rows))
            raise UsageError(f"the state that was sent is of {there}; registered here: {here}")
        decoded: dict[str, Any] = {}
        for name, thing in self.objects.items():
            node, mask = rows[name]
            decoded[name] = decode(node, snapshot.tensors, places=optimizers.is_plain(thing))
            if isinstance(thing, nn.Module):
                _check_module(name, thing, decoded[name], mask)
            elif optimizers.is_plain(thing):
                optimizers.check(name, thing, decoded[name])
            elif isinstance(thing, dict) and not isinstance(decoded[name], dict):
                raise ValueError(f"{name}: not a dict in what was sent")
        return decoded, {name: mask for name, (_, mask) in rows.items()}


def _write(thing: Any, state: Any, mask: list[bool] | None) -> None:
    if isinstance(thing, nn.Module):
        metadata = getattr(thing.state_dict(), "_metadata", None)
        if metadata is not None:
            state._metadata = metadata  # loading is not a migration between versions
        thing.load_state_dict(state)
        for parameter, flag in zip(thing.parameters(), mask or [], strict=True):
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)
    elif optimizers.is_plain(thing):
        optimizers.apply(thing, state)
    elif isinstance(thing, dict):
        thing.clear()
        thing.update(state)
    else:
        thing.load_state_dict(state)


def _check_module(name: str, module: nn.Module, sent: Any, mask: Any) -> None:
    live = module.state_dict()
    if not isinstance(sent, dict) or sent.keys() != live.keys():
        keys = sorted(live.keys() ^ (sent.keys() if isinstance(sent, dict) else set()))
        raise UsageError(f"{name} has other tensors than the state that was sent: {', '.join(keys)[:200]}")
    for key, value in live.items():
        if isinstance(value, Tensor):
            here, there = Entry.of(f"{name}/{key}", value), sent[key]
            if not isinstance(there, Tensor) or Entry.of(here.path, there) != here:
                seen = Entry.of("", there) if isinstance(there, Tensor) else type(there).__name__
                what = f"{seen.dtype} {seen.shape}" if isinstance(seen, Entry) else seen
                raise UsageError(f"{here.path} is {here.dtype} {here.shape} here, {what} in what was sent")
    if not isinstance(mask, list) or len(mask) != len(list(module.parameters())):
        raise ValueError(f"{name}: no trainable mask for its parameters")


def _described(row: Sequence[Any]) -> str:
    trainable = {True: " trainable", False: " frozen", None: ""}[row[3] if len(row) > 3 else None]
    return f"{row[1]} {row[2]}{trainable}"


def weights_sha256(model: nn.Module) -> str:
    """SHA-256, in hex, over the tensors of `model.state_dict()` in sorted key order.

    For each: the key in UTF-8, a zero byte, the dtype's name (`float32`), a zero byte, the shape as decimal
    numbers joined by commas, a zero byte, the contiguous little-endian bytes.
    """
    if sys.byteorder != "little":
        raise NotImplementedError("weights are hashed as little-endian bytes")
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            entry = Entry.of(key, value)
            digest.update(f"{key}\0{entry.dtype}\0{','.join(map(str, entry.shape))}\0".encode())
            digest.update(memory(value))
    return digest.hexdigest()
