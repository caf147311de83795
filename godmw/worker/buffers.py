"""Buffers of the registered modules inside a step: part of the contribution, state only on commit.

Every batch starts from the step's buffers. What it did to them is taken away, added to this worker's share
and put back; on commit float buffers have changed by the weighted mean of the batches' changes, whole
numbers are the maximum. A step that was one batch keeps that batch's values to the bit. Only buffers that
were seen to change travel. Buffers that are not part of `state_dict` (`persistent=False`) are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from godmw.errors import UsageError


class Buffer:
    """One buffer and the value of the last boundary."""

    def __init__(self, name: str, owner: nn.Module, key: str, tensor: Tensor) -> None:
        self.name, self._owner, self._key = name, owner, key
        self.kept = tensor.detach().clone()
        self.real = tensor.is_floating_point()
        self._tensor, self._version = tensor, tensor._version
        self.share: Tensor | None = None  # of this worker, float64 or int64; None: unchanged so far

    def live(self) -> Tensor:
        tensor = self._owner._buffers[self._key]
        if tensor is None or tensor.shape != self.kept.shape or tensor.dtype != self.kept.dtype:
            raise UsageError(
                f"buffer {self.name} is no longer {tuple(self.kept.shape)} {self.kept.dtype}",
                hint="change buffers in place, or register them with persistent=False",
            )
        return tensor

    def moved(self) -> bool:
        """Whether somebody may have written to it since `settle`."""
        tensor = self._owner._buffers[self._key]
        # torch's kernels for running statistics write without counting a version
        silent = isinstance(self._owner, nn.modules.batchnorm._NormBase) and self._owner.training
        return silent or tensor is not self._tensor or tensor._version != self._version

    def settle(self) -> None:
        """What it is now is the value of the boundary."""
        tensor = self.live()
        self.kept.copy_(tensor.detach())
        self._tensor, self._version = tensor, tensor._version

    def set(self, value: Tensor) -> None:
        """Write `value` (or `kept`) into the live tensor; the boundary's value follows."""
        with torch.no_grad():
            tensor = self.live()
            tensor.copy_(value)
            if value is not self.kept:
                self.kept.copy_(tensor)
        self._tensor, self._version = tensor, tensor._version

    def take(self, weight: float, whole: bool) -> None:
        """Add a batch's change to this worker's share."""
        now = self.live().detach()
        if not self.real:
            if now.is_complex():
                raise UsageError(
                    f"buffer {self.name} is complex and changes in forward: it cannot be combined"
                )
            value = now.to(torch.int64).reshape(-1).cpu()
            self.share = value.clone() if self.share is None else torch.maximum(self.share, value)
            return
        value = now.to(torch.float64).reshape(-1).cpu()
        if not whole:
            value = (value - self.kept.to(torch.float64).reshape(-1).cpu()) * weight
        self.share = value.clone() if self.share is None else self.share + value


class Buffers:
    """All persistent buffers of `modules`, each once, in a fixed order."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.all = list(_find(modules))

    def open(self) -> None:
        """A step begins: what the buffers are now is what every batch of it starts from."""
        for buffer in self.all:
            buffer.share = None
            if buffer.moved():
                buffer.settle()

    def take(self, weight: float, *, whole: bool) -> None:
        """A batch is over: its changes go into the share and are taken back. Weight 0: only taken back."""
        for buffer in self.all:
            if buffer.moved():
                if weight:
                    buffer.take(weight, whole)
                buffer.set(buffer.kept)

    def restore(self) -> None:
        """Take back whatever was changed since `open`."""
        self.take(0.0, whole=False)

    def changed(self) -> npt.NDArray[np.int64]:
        """int64 [buffers]: 1 where this worker's share holds a change."""
        return np.array([buffer.share is not None for buffer in self.all], dtype=np.int64)

    def reals(self, active: Sequence[int]) -> Tensor:
        """This worker's share of the active float buffers, float64, flat."""
        shares = [
            torch.zeros(buffer.kept.numel(), dtype=torch.float64) if buffer.share is None else buffer.share
            for buffer in (self.all[n] for n in active if self.all[n].real)
        ]
        return torch.cat(shares) if shares else torch.zeros(0, dtype=torch.float64)

    def wholes(self, active: Sequence[int]) -> npt.NDArray[np.int64]:
        """This worker's active integer buffers, flat, each behind a word: 1 where it has a value."""
        rows = []
        for buffer in (self.all[n] for n in active if not self.all[n].real):
            share = buffer.share
            rows.append(np.array([share is not None], dtype=np.int64))
            rows.append(np.zeros(buffer.kept.numel(), np.int64) if share is None else share.numpy())
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)

    def commit(
        self,
        active: Sequence[int],
        changed: npt.NDArray[np.int64],
        reals: Tensor,
        wholes: npt.NDArray[np.int64],
        divisor: float | None,
    ) -> None:
        """Set every buffer that changed: `reals` is the sum, `wholes` [members, n] the rows of all.

        `divisor` None: the step was one batch, whose values these are.
        """
        real = whole = 0
        for number in active:
            buffer, touched = self.all[number], changed[number] > 0
            numel = buffer.kept.numel()
            if buffer.real:
                value = reals[real : real + numel].view(buffer.kept.shape).to(buffer.kept.device)
                real += numel
                if touched:
                    kept = buffer.kept.to(torch.float64)
                    buffer.set(value if divisor is None else kept + value / divisor)
            else:
                rows = wholes[:, whole : whole + numel + 1]
                whole += numel + 1
                if touched:
                    largest = torch.from_numpy(rows[rows[:, 0] > 0, 1:].max(axis=0))
                    buffer.set(largest.view(buffer.kept.shape))


def _find(modules: Sequence[nn.Module]) -> Iterator[Buffer]:
    seen: set[int] = set()
    for number, root in enumerate(modules):
        for path, module in root.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is None or key in module._non_persistent_buffers_set or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                name = ".".join(filter(None, [str(number) if number else "", path, key]))
                yield Buffer(name, module, key, tensor)


def takes_batch_statistics(modules: Sequence[nn.Module]) -> bool:
    """Whether a registered module refuses a batch of one sample."""
    kind = nn.modules.batchnorm._BatchNorm
    return any(isinstance(module, kind) for root in modules for module in root.modules())
