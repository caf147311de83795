"""An optimizer's state put back into the optimizer's own tensors, bit by bit.

torch's `Optimizer.load_state_dict` casts floating-point state to the parameter's dtype and replaces every
tensor; here values are copied into the tensors that exist, those that a lazy optimizer has not made yet are
created as they were sent, and what was not sent is removed. Knows nothing of snapshots or of who sends.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from godmw.checkpoint.encoding import Place
from godmw.errors import UsageError


def is_plain(thing: object) -> bool:
    """Whether it is an optimizer with torch's own arrangement: `state` by parameter, `param_groups`."""
    if not isinstance(thing, Optimizer):
        return False
    kind = type(thing)
    return kind.state_dict is Optimizer.state_dict and kind.load_state_dict is Optimizer.load_state_dict


def check(name: str, optimizer: Optimizer, sent: Any) -> None:
    """UsageError unless the groups have as many parameters as those sent."""
    here = [len(group["params"]) for group in optimizer.param_groups]
    if not isinstance(sent, dict) or not isinstance(sent.get("state"), dict):
        raise UsageError(f"{name}: what was sent is not an optimizer's state")
    there = [len(group["params"]) for group in sent["param_groups"]]
    if here != there:
        raise UsageError(
            f"{name} has parameter groups of {here} parameters, the state that was sent has {there}",
            hint="build the optimizer's groups the same way on every worker before godmw.join",
        )


@torch.no_grad()
def apply(optimizer: Optimizer, sent: dict[str, Any]) -> None:
    """Make the optimizer's state equal to `sent`, decoded with places for tensors."""
    parameters = []
    for group, values in zip(optimizer.param_groups, sent["param_groups"], strict=True):
        parameters += group["params"]
        for key in [key for key in group if key not in values]:
            del group[key]
        for key, value in values.items():
            if key != "params":
                group[key] = merged(group.get(key), value, None)
    for index, parameter in enumerate(parameters):
        values = sent["state"].get(index)
        if values is None:
            optimizer.state.pop(parameter, None)
            continue
        state = optimizer.state[parameter]
        for key in [key for key in state if key not in values]:
            del state[key]
        for key, value in values.items():
            state[key] = merged(state.get(key), value, parameter)


def merged(live: Any, value: Any, parameter: Tensor | None) -> Any:
    """`value` with tensors for its places: the live tensor where it fits, a new one otherwise."""
    if isinstance(value, Place):
        tensor = value.tensor
        if not isinstance(live, Tensor) or live.shape != tensor.shape or live.dtype != tensor.dtype:
            live = _empty(value, parameter)
        return live if live is tensor else live.copy_(tensor)
    if isinstance(value, dict):
        old = live if isinstance(live, dict) else {}
        result = value.copy()  # keeps the kind of dict
        for key, item in value.items():
            result[key] = merged(old.get(key), item, parameter)
        return result
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        known = list(live) if isinstance(live, (list, tuple)) else []
        known += [None] * (len(value) - len(known))
        return type(value)(merged(a, b, parameter) for a, b in zip(known, value, strict=False))
    return value


def _empty(place: Place, parameter: Tensor | None) -> Tensor:
    """Memory for a tensor that is not there yet, where the optimizer would have made it."""
    tensor = place.tensor
    if parameter is None or place.host:
        return torch.empty_like(tensor, device="cpu")
    if tensor.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=tensor.dtype)
    return torch.empty_like(tensor, device=parameter.device)
