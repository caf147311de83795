"""torch's optimizers without torch's compiler: its import takes longer than all that these scripts do."""

from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer


def light() -> None:
    """Take the compiler's marks off the optimizers; what they compute is the same."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        plain: Any = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain
    for kind in (SGD, Adam):
        step: Any = getattr(kind.step, "__wrapped__", None)
        if step is not None:
            kind.step = torch.no_grad()(step)  # type: ignore[method-assign]
