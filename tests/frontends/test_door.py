"""What a manager refuses before anything is started, and with which words."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from godmw.errors import UsageError
from godmw.frontends import door

DATA = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))


def refused(words: str, hint: str) -> Any:
    """A UsageError whose message has `words` and whose hint has `hint`."""

    class Both:
        def __enter__(self) -> None:
            self.raises = pytest.raises(UsageError, match=re.escape(words))
            self.caught = self.raises.__enter__()

        def __exit__(self, *exception: Any) -> bool:
            done = bool(self.raises.__exit__(*exception))
            assert hint in (self.caught.value.hint or "")
            return done

    return Both()


# ---- backend, init_method


@pytest.mark.parametrize("name", ["auto", "gloo"])
def test_backends(name: str) -> None:
    assert door.backend(name) == name


@pytest.mark.parametrize("name", ["mpi", "NCCL", "", None, 3])
def test_a_backend_that_is_none(name: Any) -> None:
    with refused(f"backend={name!r}: one of auto, gloo, nccl", 'backend="auto"'):
        door.backend(name)


def test_nccl_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused('backend="nccl", but there is no GPU here', 'backend="auto"'):
        door.backend("nccl")


def test_nccl_needs_a_torch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with refused("this torch has no NCCL", 'backend="auto"'):
        door.backend("nccl")


@pytest.mark.parametrize(
    "url", [None, "env://", "tcp://127.0.0.1:23456", "tcp://[::1]:5", "tcp://node-0.x:1", "file:///tmp/meet"]
)
def test_init_methods(url: str | None) -> None:
    door.init_method(url)


@pytest.mark.parametrize(
    "url",
    [
        "env",
        "env://?rank=0",
        "tcp://",
        "tcp://host",
        "tcp://host:port",
        "tcp://h:1?rank=0",
        "file://x",
        "",
        7,
    ],
)
def test_an_init_method_that_is_none(url: Any) -> None:
    with refused(f"init_method={url!r}: env://, tcp://HOST:PORT or file:///PATH", 'init_method="env://"'):
        door.init_method(url)


# ---- world_size, rank


@pytest.mark.parametrize(
    ("given", "environment", "found"),
    [
        (2, {"WORLD_SIZE": "4"}, 2),
        (-1, {"WORLD_SIZE": "4"}, 4),
        (None, {}, 1),
        (None, {"WORLD_SIZE": ""}, 1),
    ],
)
def test_a_number_left_out_is_the_environments(given: Any, environment: dict[str, str], found: int) -> None:
    assert door.whole("world_size", given, environment, 1) == found


@pytest.mark.parametrize("given", ["2", 2.0, True])
def test_a_world_size_that_is_no_number(given: Any) -> None:
    with refused(f"world_size={given!r}: a whole number", "world_size=int(os.environ['WORLD_SIZE'])"):
        door.whole("world_size", given, {}, 1)


def test_an_environment_that_holds_no_number() -> None:
    with refused("RANK=first in the environment", "unset RANK"):
        door.whole("rank", -1, {"RANK": "first"}, 0)


@pytest.mark.parametrize("world_size", [0, -2])
def test_no_workers(world_size: int) -> None:
    with refused(f"world_size={world_size}: 1 or more", "os.environ['WORLD_SIZE']"):
        door.place(world_size, 0, "none")


@pytest.mark.parametrize(("rank", "started_by"), [(2, "none"), (5, "torchrun"), (-3, "godmw")])
def test_ranks_outside_the_world(rank: int, started_by: str) -> None:
    with refused(f"rank={rank} and world_size=2: ranks count from 0", "rank=int(os.environ['RANK'])"):
        door.place(2, rank, started_by)


def test_a_slot_beyond_the_world_size_of_the_script_is_welcome_under_godmw() -> None:
    door.place(2, 4, "godmw")


def test_a_rank_that_nobody_has_started() -> None:
    with refused("; type godmw run --workers 2 ", ""):
        door.place(2, 1, "none")
    with refused("rank=1 of world_size=2, and neither godmw nor torchrun", "starts no processes"):
        door.place(2, 1, "none")


def test_a_process_of_multiprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door.multiprocessing, "parent_process", lambda: object())
    door.place(1, 0, "none")
    door.place(2, 0, "godmw")
    with refused("world_size=2 in a process that multiprocessing started", "starts no processes"):
        door.place(2, 0, "none")


def test_a_process_group_that_the_script_has_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    door.place(3, 0, "torchrun")
    with refused("a default process group of 3 processes", "starts no processes"):
        door.place(3, 0, "none")


@pytest.mark.parametrize(
    ("environment", "who"),
    [
        ({}, "none"),
        ({"GODMW_JOIN": "godmw://h:1/t", "TORCHELASTIC_RUN_ID": "none"}, "godmw"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "none"),
    ],
)
def test_who_has_started_this(environment: dict[str, str], who: str) -> None:
    assert door.launcher(environment) == who


def test_a_run_directory_without_a_master(tmp_path: Path) -> None:
    assert door.launcher({"GODMW_RUN_DIR": str(tmp_path)}) == "none"


# ---- train


def things(**other: Any) -> list[Any]:
    """Good arguments of `train`, some of them replaced."""
    model = nn.Linear(4, 2)
    good = {
        "model": model,
        "data_loader": DataLoader(DATA, batch_size=2),
        "optimizer": torch.optim.Adam(model.parameters()),
        "criterion": nn.CrossEntropyLoss(),
        "epochs": 1,
    }
    return list({**good, **other}.values())


def test_good_arguments() -> None:
    door.objects(*things())
    door.objects(*things(criterion=nn.functional.cross_entropy))
    door.objects(*things(criterion=nn.KLDivLoss(reduction="batchmean")))


@pytest.mark.parametrize(
    ("wrong", "words", "hint"),
    [
        ({"model": lambda x: x}, "train(model=…) is a function; a torch.nn.Module", "manager.train(model"),
        ({"data_loader": DATA}, "is a TensorDataset; a torch.utils.data.DataLoader", "data_loader"),
        ({"optimizer": nn.CrossEntropyLoss()}, "train(optimizer=…) is a CrossEntropyLoss", "optimizer"),
        ({"criterion": "mean"}, "train(criterion=…) is a str", "CrossEntropyLoss()"),
        (
            {"criterion": nn.MSELoss(reduction="sum")},
            "reduction='sum'; the mean",
            'MSELoss(reduction="mean")',
        ),
        ({"criterion": nn.MSELoss(reduction="none")}, "reduction='none'", 'MSELoss(reduction="mean")'),
        ({"epochs": 0}, "epochs=0: a whole number, 1 or more", "epochs=5"),
        ({"epochs": 2.0}, "epochs=2.0", "epochs=5"),
        ({"epochs": True}, "epochs=True", "epochs=5"),
        ({"model": nn.ReLU()}, "the model has no parameters", "model"),
        (
            {"model": nn.Linear(4, 2)},
            "the optimizer has 2 parameters that are not the model's",
            "parameters()",
        ),
    ],
)
def test_bad_arguments(wrong: dict[str, Any], words: str, hint: str) -> None:
    with refused(words, hint):
        door.objects(*things(**wrong))


class Learned(nn.Module):
    """A criterion with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Counting(nn.Module):
    """A criterion that remembers something."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))


@pytest.mark.parametrize(
    ("criterion", "kept"),
    [
        (nn.functional.cross_entropy, False),
        (nn.CrossEntropyLoss(), False),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), False),  # a constant
        (Learned(), True),
        (Counting(), True),
    ],
)
def test_which_criteria_are_part_of_the_state(criterion: Any, kept: bool) -> None:
    assert door.has_state(criterion) is kept
