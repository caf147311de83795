"""Buffers as part of the contribution: batch-norm statistics and the like, equal on every member.

Every batch starts from the step's values. A float buffer changes by the weighted mean of the batches'
changes (summed in fp64), an integer one to the maximum over the batches, exactly, through a sum: each batch
writes its values into the row of its first shard, which nobody else fills. Large buffers are taken for
constant and not sent; when one changes, all members see it in the sum, `absorb` it and reduce again. Only
persistent buffers count, as in a state_dict. Knows nothing of who sends.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from godmw.errors import InternalError, UsageError

SMALL_FLOATS = 1 << 14  # elements of a float buffer that is always sent
SMALL_INTEGERS = 16
MAX_INTEGERS = 4096  # integer elements sent in all: each takes a column in every shard's row


class Buffer:
    """One buffer: where the module keeps it, the tensor that belongs there, the step's value."""

    def __init__(self, name: str, module: nn.Module, key: str, tensor: Tensor) -> None:
        self.name, self.module, self.key, self.tensor = name, module, key, tensor
        self.float = tensor.is_floating_point() or tensor.is_complex()
        self.numel = tensor.numel() * (2 if tensor.is_complex() else 1)
        self.small = self.numel <= (SMALL_FLOATS if self.float else SMALL_INTEGERS)
        self.start = tensor.detach().clone()
        self.version = tensor._version
        if tensor.dtype in (torch.uint64, torch.uint32, torch.uint16):
            raise UsageError(f"buffer {name} is {tensor.dtype}, which has no maximum", hint="use int64")

    def now(self) -> Tensor:
        """What the batch left in the module, which may be another tensor than ours."""
        current = self.module._buffers.get(self.key)
        if current is None or current.shape != self.tensor.shape or current.dtype != self.tensor.dtype:
            seen = "gone" if current is None else f"{current.dtype} {tuple(current.shape)}"
            raise UsageError(
                f"buffer {self.name} was {self.tensor.dtype} {tuple(self.tensor.shape)}, "
                f"a batch left it {seen}",
                hint="register a buffer whose shape depends on the batch with persistent=False",
            )
        return current.detach()

    def moved(self) -> bool:
        """Whether it was written or replaced since its value was last taken."""
        return self.module._buffers.get(self.key) is not self.tensor or self.tensor._version != self.version

    def put_back(self) -> None:
        if self.module._buffers.get(self.key) is not self.tensor:
            self.module._buffers[self.key] = self.tensor

    def words(self, tensor: Tensor) -> Tensor:
        """The value as 1-D numbers to be summed: float64, or int64."""
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return tensor.reshape(-1).to(torch.float64 if self.float else torch.int64)

    def value(self, words: Tensor) -> Tensor:
        """What `words` made numbers of."""
        if self.tensor.is_complex():
            pairs = torch.view_as_complex(words.reshape(-1, 2))
            return pairs.to(self.tensor.dtype).reshape(self.tensor.shape)
        return words.to(self.tensor.dtype).reshape(self.tensor.shape)


class BufferTracker:
    """The persistent buffers of `modules` [(name, module)]; a tensor that is registered twice counts once.

    Life of an operation: `reset`, then `begin_batch` and `end_batch` around every batch, `parts`, `absorb`,
    `commit`. Every member has the same buffers and, through `state_dict`, sends the same ones.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        found: dict[int, Buffer] = {}
        for prefix, root in modules:
            for path, module in root.named_modules():
                for key, tensor in module._buffers.items():
                    if tensor is not None and key not in module._non_persistent_buffers_set:
                        name = ".".join(part for part in (prefix, path, key) if part)
                        found.setdefault(id(tensor), Buffer(name, module, key, tensor))
        self._buffers = list(found.values())
        self._large = [buffer for buffer in self._buffers if not buffer.small]
        self._woken: set[str] = set()
        self._shards = 1
        self._arrange()
        self.reset(1)

    def state_dict(self) -> dict[str, Any]:
        return {"woken": sorted(self._woken)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._woken = set(state["woken"])
        self._arrange()

    def _arrange(self) -> None:
        """Which buffers are sent, in registration order."""
        sent = [b for b in self._buffers if b.small or b.name in self._woken]
        self._floats = [b for b in sent if b.float]
        self._integers = [b for b in sent if not b.float]
        self._columns = 1 + sum(b.numel for b in self._integers)
        if self._columns > 1 + MAX_INTEGERS:
            largest = max(self._integers, key=lambda b: b.numel)
            raise UsageError(
                f"the model changes {self._columns - 1} integer buffer elements a step, at most "
                f"{MAX_INTEGERS} can be; the largest is {largest.name} with {largest.numel}",
                hint=f"register {largest.name} with persistent=False, or keep it as a float buffer",
            )

    def reset(self, shards: int) -> None:
        """A new operation of `shards` shards: what the buffers hold now is the step's value."""
        self._shards = shards
        for buffer in self._buffers:
            if buffer.small or buffer.name in self._woken or buffer.moved():
                current = buffer.module._buffers.get(buffer.key)
                if current is not None and current is not buffer.tensor:
                    buffer.tensor = current  # replaced between two steps: the user's right
                    buffer.start = current.detach().clone()
                buffer.start.copy_(buffer.tensor.detach())
                buffer.version = buffer.tensor._version
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[int, dict[str, Tensor]] = {}
        self._changed = dict.fromkeys((b.name for b in self._large), 0)
        self._clean = True

    # ---- a batch ----

    @torch.no_grad()
    def restore(self) -> None:
        """The step's values, in the tensors that belong to the modules."""
        if self._clean:
            return
        for buffer in self._buffers:
            if buffer.small or buffer.name in self._woken or buffer.moved():
                buffer.put_back()
                buffer.tensor.copy_(buffer.start)
                buffer.version = buffer.tensor._version
        self._clean = True

    def begin_batch(self) -> None:
        """Every batch starts from the step's values."""
        self.restore()
        self._clean = False

    @torch.no_grad()
    def end_batch(self, weight: float, shard: int, whole: bool = False) -> None:
        """Add the batch's changes, weighted; `shard` is its first one.

        `whole`: this batch covers all shards of the operation, its values are taken as they are.
        """
        row = self._rows.setdefault(shard, {})
        for buffer in self._buffers:
            changed = buffer.moved()
            if not (buffer.small or changed):
                continue
            words = buffer.words(buffer.now())
            if not buffer.small:
                self._changed[buffer.name] = 1
            if not buffer.float:
                before = row.get(buffer.name)
                row[buffer.name] = words if before is None else torch.maximum(before, words)
            elif whole:
                self._sums[buffer.name] = words
            else:
                start = buffer.words(buffer.start)
                # infinities that did not change must not become NaN
                change = torch.where(words == start, 0.0, (words - start).mul_(weight))
                before = self._sums.get(buffer.name)
                self._sums[buffer.name] = change if before is None else before.add_(change)

    # ---- the reduction ----

    def parts(self) -> list[Tensor]:
        """1-D tensors to sum over members: float64 changes, int64 counts and rows; [] without buffers."""
        if not self._buffers:
            return []
        floats = [
            self._sums[b.name].cpu() if b.name in self._sums else torch.zeros(b.numel, dtype=torch.float64)
            for b in self._floats
        ]
        rows = torch.zeros(self._shards, self._columns, dtype=torch.int64)
        for shard, row in self._rows.items():
            rows[shard, 0] = 1
            filled = [row.get(b.name, b.words(b.start)).cpu() for b in self._integers]
            if filled:
                rows[shard, 1:] = torch.cat(filled)
        counts = torch.tensor(list(self._changed.values()), dtype=torch.int64)
        integers = torch.cat([counts, rows.reshape(-1)])
        return [torch.cat(floats), integers] if floats else [integers]

    def absorb(self, results: Sequence[Tensor]) -> bool:
        """True: a buffer taken for constant has changed somewhere; `parts` has grown, reduce again."""
        names = self._news(results)
        self._woken.update(names)
        if names:
            self._arrange()
        return bool(names)

    def _news(self, results: Sequence[Tensor]) -> list[str]:
        counts = results[-1][: len(self._large)].tolist() if results else []
        changed = [b.name for b, count in zip(self._large, counts, strict=True) if count > 0]
        return [name for name in changed if name not in self._woken]

    @torch.no_grad()
    def commit(self, results: Sequence[Tensor], total_weight: float, whole: bool = False) -> None:
        """The sums of all members become the buffers' values."""
        if not results:
            return
        if missed := self._news(results):
            raise InternalError(f"buffer {missed[0]} changed and was not sent")
        if self._floats:
            pieces = results[0].split([b.numel for b in self._floats])
            for buffer, piece in zip(self._floats, pieces, strict=True):
                total = piece.to(buffer.tensor.device)
                if whole:
                    self._set(buffer, total)
                elif total_weight:
                    start = buffer.words(buffer.start)
                    self._set(buffer, torch.where(total == 0, start, start + total / total_weight))
        self._commit_integers(results[-1][len(self._large) :].reshape(self._shards, self._columns))
        self._clean = True

    def _commit_integers(self, rows: Tensor) -> None:
        filled = rows[:, 0]
        if bool((filled > 1).any()):
            twice = int((filled > 1).nonzero()[0])
            raise InternalError(f"the buffers of shard {twice} were contributed {int(filled[twice])} times")
        rows = rows[filled > 0]
        if not len(rows) or not self._integers:
            return
        maxima = rows[:, 1:].amax(0).split([b.numel for b in self._integers])
        for buffer, words in zip(self._integers, maxima, strict=True):
            self._set(buffer, words.to(buffer.tensor.device))

    def _set(self, buffer: Buffer, words: Tensor) -> None:
        buffer.put_back()
        buffer.tensor.copy_(buffer.value(words))
        buffer.version = buffer.tensor._version
