"""What a `DistributedTrainingManager` is given, checked before anything is started.

Everything that cannot be meant is a UsageError that says what was seen, what was expected and what to type.
Pure but for a look at the run directory; the environment is an argument. Knows nothing of jobs and steps.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from godmw.client.rundir import RunDir
from godmw.errors import UsageError

BACKENDS = ("auto", "gloo", "nccl")
TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun gives it to every process it starts
INIT_METHOD = re.compile(r"env://|file:///.+|tcp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):[0-9]{1,5}")
LEFT_OUT = (None, -1)  # torch.distributed's own "take it from the environment"


def script() -> str:
    """The name of the running script, for what a person is to type."""
    return os.path.basename(sys.argv[0]) or "train.py"


def launcher(environment: Mapping[str, str]) -> str:
    """Who has made this process a worker of a job: "godmw", "torchrun" or "none"."""
    if environment.get("GODMW_JOIN"):
        return "godmw"
    if environment.get(TORCHRUN):
        return "torchrun"
    directory = environment.get("GODMW_RUN_DIR")
    return "godmw" if directory and RunDir(directory).living() else "none"


# ---- the constructor ----


def backend(value: Any) -> str:
    """One of BACKENDS, and NCCL only where it can be."""
    if value not in BACKENDS:
        raise UsageError(
            f"backend={value!r}: one of {', '.join(BACKENDS)} was expected", hint='backend="auto"'
        )
    if value == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        missing = "this torch has no NCCL" if torch.cuda.is_available() else "there is no GPU here"
        raise UsageError(
            f'backend="nccl", but {missing}', hint='backend="auto" takes NCCL on a GPU and gloo elsewhere'
        )
    return str(value)


def init_method(value: Any) -> None:
    """What init_process_group takes; it is not followed."""
    if value is not None and not (isinstance(value, str) and INIT_METHOD.fullmatch(value)):
        raise UsageError(
            f"init_method={value!r}: env://, tcp://HOST:PORT or file:///PATH was expected",
            hint='init_method="env://", with world_size= and rank= beside it',
        )


def whole(name: str, value: Any, environment: Mapping[str, str], otherwise: int) -> int:
    """A number as given, or what the environment says where it was left out."""
    variable = name.upper()
    if value is None or (type(value) is int and value in LEFT_OUT):
        found = environment.get(variable) or str(otherwise)
        if not re.fullmatch("[0-9]{1,9}", found):
            raise UsageError(
                f"{variable}={found} in the environment: a whole number was expected",
                hint=f"unset {variable}",
            )
        return int(found)
    if type(value) is not int:
        raise UsageError(
            f"{name}={value!r}: a whole number was expected", hint=f"{name}=int(os.environ['{variable}'])"
        )
    return value


def place(world_size: int, rank: int, started_by: str) -> None:
    """A rank among `world_size`, of a process that somebody has made a worker, or that is the only one."""
    if world_size < 1:
        raise UsageError(
            f"world_size={world_size}: 1 or more was expected",
            hint="world_size=int(os.environ['WORLD_SIZE'])",
        )
    # under godmw RANK is a slot's number, and a job grows beyond the world_size that its script names
    if rank < 0 or (rank >= world_size and started_by != "godmw"):
        raise UsageError(
            f"rank={rank} and world_size={world_size}: ranks count from 0 to world_size - 1",
            hint="rank=int(os.environ['RANK']), world_size=int(os.environ['WORLD_SIZE'])",
        )
    if started_by == "none":
        _refuse_strangers(world_size, rank)


def _refuse_strangers(world_size: int, rank: int) -> None:
    """One process of several that nobody has made one job would train alone beside the others."""
    seen = ""
    if rank:
        seen = f"rank={rank} of world_size={world_size}"
    elif world_size > 1 and multiprocessing.parent_process() is not None:
        seen = f"world_size={world_size} in a process that multiprocessing started"
    elif dist.is_initialized() and dist.get_world_size() > 1:
        seen = f"a default process group of {dist.get_world_size()} processes"
    if seen:  # multiprocessing shows the message alone, so it says what to type
        raise UsageError(
            f"{seen}, and neither godmw nor torchrun has started this process: it would train alone; type "
            f"godmw run --workers {max(world_size, 2)} {script()}",
            hint="the script starts no processes of its own",
        )


# ---- train ----


def objects(model: Any, data_loader: Any, optimizer: Any, criterion: Any, epochs: Any) -> None:
    """The arguments of `train`."""
    kinds = (
        ("model", model, nn.Module, "a torch.nn.Module"),
        ("data_loader", data_loader, DataLoader, "a torch.utils.data.DataLoader"),
        ("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer"),
    )
    for name, value, kind, expected in kinds:
        if not isinstance(value, kind):
            raise UsageError(
                f"train({name}=…) is a {type(value).__name__}; {expected} was expected",
                hint="manager.train(model, data_loader, optimizer, criterion, epochs)",
            )
    _criterion(criterion)
    if type(epochs) is not int or epochs < 1:
        raise UsageError(f"epochs={epochs!r}: a whole number, 1 or more, was expected", hint="epochs=5")
    if isinstance(model, DistributedDataParallel):
        raise UsageError(
            "the model is wrapped in DistributedDataParallel, which would sum gradients once more",
            hint="leave the wrapping out: manager.train(model, …)",
        )
    own = [p for item in (model, criterion) if isinstance(item, nn.Module) for p in item.parameters()]
    if not any(True for _ in model.parameters()):
        raise UsageError("the model has no parameters to train", hint="manager.train(model, …)")
    strangers = {id(p) for group in optimizer.param_groups for p in group["params"]} - {id(p) for p in own}
    if strangers:
        raise UsageError(
            f"the optimizer has {len(strangers)} parameters that are not the model's: workers would differ",
            hint="make the optimizer from model.parameters()",
        )


def _criterion(criterion: Any) -> None:
    if not callable(criterion):
        raise UsageError(
            f"train(criterion=…) is a {type(criterion).__name__}", hint="torch.nn.CrossEntropyLoss()"
        )
    reduction = getattr(criterion, "reduction", "mean")
    if reduction in ("sum", "none"):
        raise UsageError(
            f"the criterion has reduction={reduction!r}; the mean over a batch was expected",
            hint=f'{type(criterion).__name__}(reduction="mean")',
        )


def has_state(criterion: Any) -> bool:
    """Whether a criterion learns or counts: torch's own keep nothing but constants."""
    if not isinstance(criterion, nn.Module):
        return False
    theirs = type(criterion).__module__.startswith("torch.nn.")
    return any(True for _ in criterion.parameters()) or (not theirs and bool(criterion.state_dict()))
