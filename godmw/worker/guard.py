"""Watches that gradients stay the engine's while a step is open, and that nothing stateful was forgotten.

A hook in front of every registered optimizer's `step` raises at the user's line when the step's batches are
not finished; a look through the living objects, once, warns of optimizers, schedulers and scalers that use
the registered model and were not given to `join`. It knows which step is open, nothing else of the engine.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from godmw.errors import GradientMisuse

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Guard:
    """`step` is the number of the open step, None outside; `left` whether its inner loop was left early."""

    def __init__(self, objects: Sequence[Any], modules: Sequence[nn.Module]) -> None:
        self.step: int | None = None
        self.batch_open = self.left = False
        self._registered = {id(item) for item in objects}
        self._objects = list(objects)
        self._parameters = {id(parameter) for module in modules for parameter in module.parameters()}
        self._hooks = [
            item.register_step_pre_hook(self._before_optimizer_step)
            for item in objects
            if isinstance(item, Optimizer)
        ]
        self._fault: GradientMisuse | None = None

    def open(self, step: int) -> None:
        """A step's batches are about to be handed out."""
        self.step, self.left = step, False

    def close(self) -> None:
        """The step is committed: gradients and optimizers are the user's until the next one."""
        self.step = None

    def leave(self) -> None:
        """The inner loop was left before its end; said at the next line that notices."""
        if self.step is not None:
            self.left = True
            self._fault = GradientMisuse(
                f"step {self.step}: the inner loop `for batch in step` was left before its last batch",
                hint="take every batch (no break); step.skip(reason) leaves one out",
            )

    def raise_fault(self) -> None:
        """Raise what could not be raised where it happened."""
        if self._fault is not None:
            raise self._fault

    def release(self) -> None:
        """Give the optimizers back."""
        for hook in self._hooks:
            hook.remove()

    def expect_replay(self) -> None:
        """The script will pass finished loops without a step: schedulers need not warn of that."""
        for item in self._objects:
            if isinstance(item, Optimizer):
                item._opt_called = True  # type: ignore[attr-defined]

    def _before_optimizer_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.raise_fault()
        if self.step is not None:
            where = "inside the inner loop" if self.batch_open else "before the inner loop"
            raise GradientMisuse(
                f"step {self.step}: optimizer.step() {where}: the gradients are not summed yet",
                hint="move optimizer.step() behind the inner loop `for batch in step`",
            )

    # ---- what was forgotten ----

    def warn_unregistered(self) -> None:
        """One warning that names the living optimizers, schedulers and scalers that `join` should have."""
        names = sorted({type(item).__name__ for item in self._forgotten()})
        if names:
            warnings.warn(
                f"not given to godmw.join, so not kept equal on the workers: {', '.join(names)}; "
                "give everything that has a state_dict: job = godmw.join(model, optimizer, scheduler)",
                stacklevel=_user_level(),
            )

    def _forgotten(self) -> Iterator[Any]:
        # Only the instances are asked for, by what refers to their class: a list of all objects would hold
        # tuples that other threads are still building, which breaks them.
        kinds = [sub for kind in (Optimizer, LRScheduler, torch.amp.GradScaler) for sub in _family(kind)]
        found = [item for item in gc.get_referrers(*kinds) if issubclass(type(item), tuple(kinds))]
        strangers = [item for item in found if id(item) not in self._registered]
        optimizers = {id(item) for item in self._objects if isinstance(item, Optimizer)}
        for item in strangers:
            if isinstance(item, Optimizer) and self._uses_model(item):
                optimizers.add(id(item))
                yield item
            elif isinstance(item, torch.amp.GradScaler) and item.is_enabled():
                yield item
        for item in strangers:
            if isinstance(item, LRScheduler) and id(getattr(item, "optimizer", None)) in optimizers:
                yield item

    def _uses_model(self, optimizer: Optimizer) -> bool:
        groups = getattr(optimizer, "param_groups", [])
        return any(id(parameter) in self._parameters for group in groups for parameter in group["params"])


def _user_level() -> int:
    """The `stacklevel` with which a warning by the caller points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


def _family(kind: type) -> Iterator[type]:
    """A class and everything derived from it."""
    yield kind
    derived: type
    for derived in type.__subclasses__(kind):
        yield from _family(derived)
