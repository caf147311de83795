"""A dataset or DataLoader taken over: what is kept, what is refused, and batches equal to torch's own."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from godmw.data.loader import take_over
from godmw.errors import InternalError, UsageError


class Squares(Dataset):
    """n samples (noise, n squared)."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"noise": torch.rand(2) + np.random.rand() + random.random(), "square": index * index}


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


class OwnLoader(DataLoader):
    def __iter__(self) -> Any:
        return super().__iter__()


class OwnBatches(BatchSampler):
    pass


def joined(samples: list[Any]) -> str:
    return " ".join(str(sample) for sample in samples)


DATA = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))


def distributed(shuffle: bool) -> DistributedSampler:
    return DistributedSampler(DATA, num_replicas=4, rank=3, shuffle=shuffle)


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(DATA, batch_size=4), (4, False, False)),
        (DataLoader(DATA, batch_size=4, shuffle=True), (4, True, False)),
        (DataLoader(DATA, batch_size=3, drop_last=True), (3, False, True)),
        (DataLoader(DATA), (1, False, False)),
        (DataLoader(DATA, sampler=SequentialSampler(DATA)), (1, False, False)),
        (DataLoader(DATA, sampler=RandomSampler(DATA, generator=torch.Generator())), (1, True, False)),
        (DataLoader(DATA, batch_size=2, sampler=distributed(shuffle=True)), (2, True, False)),
        (DataLoader(DATA, batch_size=2, sampler=distributed(shuffle=False)), (2, False, False)),
        (DataLoader(DATA, batch_size=2, generator=torch.Generator(), shuffle=True), (2, True, False)),
    ],
)
def test_what_a_dataloader_says_is_taken(loader: DataLoader, expected: tuple[int, bool, bool]) -> None:
    source = take_over(loader)
    assert (source.batch_size, source.shuffle, source.drop_last) == expected
    assert source.length == 10
    assert source.dataset is DATA


def test_harmless_arguments_are_passed_over() -> None:
    loader = DataLoader(
        Squares(),
        batch_size=2,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=4,
        multiprocessing_context="fork",
        timeout=3,
    )
    source = take_over(loader)
    assert source.num_workers == 2
    assert source.prefetches


def test_collate_is_taken_and_given_arguments_win() -> None:
    loader = DataLoader(list(range(5)), batch_size=2, collate_fn=joined)  # type: ignore[arg-type]
    assert take_over(loader).fetch(np.array([1, 3])) == "1 3"
    assert take_over(loader, collate_fn=sum).fetch(np.array([1, 3])) == 4
    source = take_over(loader, batch_size=4, shuffle=True, drop_last=True)
    assert (source.batch_size, source.shuffle, source.drop_last) == (4, True, True)


def test_defaults_of_a_plain_dataset() -> None:
    source = take_over(DATA, batch_size=4)
    assert (source.shuffle, source.drop_last, source.num_workers) == (True, False, 0)
    assert not source.prefetches
    source.expect([np.array([1])])
    source.close()


@pytest.mark.parametrize(
    ("data", "arguments", "message", "hint"),
    [
        (DATA, {}, "batch_size was not given", "batch_size=256"),
        (DATA, {"batch_size": 0}, "batch_size=0: a whole number, 1 or more", None),
        (DATA, {"batch_size": 2.0}, "batch_size=2.0: a whole number", None),
        (DATA, {"batch_size": 2, "num_workers": -1}, "num_workers=-1: a whole number, 0 or more", None),
        (DATA, {"batch_size": 2, "sampler": print}, "sampler= is not supported", "shuffle=True"),
        ([], {"batch_size": 2}, "the dataset is empty: len(list) is 0", "where its samples come from"),
        (Stream(), {"batch_size": 2}, "Stream is an IterableDataset", "__getitem__"),
        (DataLoader(Stream(), batch_size=2), {}, "Stream is an IterableDataset", "__getitem__"),
        (iter([1, 2]), {"batch_size": 2}, "list_iterator has no __len__", "map-style"),
        ({"a": 1}, {"batch_size": 2}, "a dict is no dataset", "__getitem__"),
        (
            (torch.ones(9), torch.ones(9)),
            {"batch_size": 2},
            "a tuple of 2 tensors would be",
            "TensorDataset",
        ),
        (DataLoader(DATA, batch_size=None), {}, "with batch_size=None makes no batches", "batch_size=256"),
        (
            DataLoader(DATA, batch_sampler=OwnBatches(SequentialSampler(DATA), 2, False)),
            {},
            "batch_sampler (OwnBatches) is not supported",
            "the job cuts the batches",
        ),
        (DataLoader(DATA, worker_init_fn=print), {}, "worker_init_fn is not supported", "in the dataset"),
        (OwnLoader(DATA, batch_size=2), {}, "OwnLoader is a DataLoader with an __iter__", "collate_fn="),
        (
            DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])),
            {},
            "sampler (SubsetRandomSampler)",
            "Subset(dataset, indices)",
        ),
        (
            DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)),
            {},
            "sampler (WeightedRandomSampler)",
            "step.backward(loss, weight=…)",
        ),
        (DataLoader(DATA, sampler=[3, 1]), {}, "sampler (list) is not supported", "shuffle=True"),
        (
            DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)),
            {},
            "RandomSampler(replacement=True)",
            "leave replacement out",
        ),
        (
            DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=5)),
            {},
            "RandomSampler(num_samples=5) of 10 samples",
            "steps=",
        ),
    ],
)
def test_what_is_not_taken_is_refused_by_name(
    data: Any, arguments: dict[str, Any], message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        take_over(data, **arguments)
    assert message in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.randn(10, 3, 4), torch.arange(10)),
        (
            torch.randn(10).to(torch.bfloat16),
            torch.rand(10, 1) > 0.5,
            torch.randn(10, 2, dtype=torch.float64),
        ),
        (torch.tensor([float("nan"), -0.0, 0.0, float("inf")]),),
        (torch.randn(4, 10).t(),),
        (torch.randn(10, 3, 5, 5).to(memory_format=torch.channels_last),),
        (torch.arange(10).to(torch.uint16),),
    ],
)
def test_a_tensor_dataset_gives_the_bits_and_strides_of_default_collate(tensors: tuple[Tensor, ...]) -> None:
    dataset = TensorDataset(*tensors)
    indices = [3, 0, 2, 2]
    found = take_over(dataset, batch_size=4).fetch(np.array(indices))
    expected = default_collate([dataset[index] for index in indices])
    assert type(found) is type(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))


def test_subsets_of_a_tensor_dataset() -> None:
    inner = Subset(DATA, [9, 7, 5, 3])
    found = take_over(Subset(inner, [3, 1]), batch_size=2).fetch(np.array([1, 0]))
    assert found[1].tolist() == [7, 3]


def test_a_tensor_dataset_needs_no_loaders() -> None:
    assert take_over(DataLoader(DATA, batch_size=2, num_workers=2)).num_workers == 0
    assert take_over(DataLoader(DATA, num_workers=2, collate_fn=joined)).num_workers == 2


def test_datasets_that_give_many_samples_at_once() -> None:
    class Together(list):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-index for index in indices]

    assert take_over(Together([0] * 5), batch_size=2).fetch(np.array([1, 4])).tolist() == [-1, -4]


def test_random_samples_depend_on_seed_and_indices_alone() -> None:
    source, indices = take_over(Squares(), batch_size=4), np.array([3, 1, 4])
    first = source.fetch(indices, seed=7)
    torch.rand(100)
    assert torch.equal(source.fetch(indices, seed=7)["noise"], first["noise"])
    assert not torch.equal(source.fetch(indices, seed=8)["noise"], first["noise"])
    assert not torch.equal(source.fetch(np.array([3, 1]), seed=7)["noise"], first["noise"][:2])
    assert source.fetch(indices, seed=-1)["square"].tolist() == [9, 1, 16]


def test_the_fingerprint_tells_datasets_apart() -> None:
    def fingerprint(data: Any) -> bytes:
        return take_over(data, batch_size=1).fingerprint()

    x, y = torch.arange(200.0).view(100, 2), torch.arange(100)
    found = fingerprint(TensorDataset(x, y))
    assert len(found) == 32
    assert found == fingerprint(TensorDataset(x.clone(), y.clone()))
    others = [
        TensorDataset(x[:99], y[:99]),
        TensorDataset(x.flip(0), y),
        TensorDataset(x, y.to(torch.int32)),
        TensorDataset(x),
        Squares(100),
        Squares(99),
        [1] * 100,
        [1.0] * 100,
        ["1"] * 100,
        [(1,)] * 100,
        [{"a": 1}] * 100,
        [{"b": 1}] * 100,
        [np.ones(1)] * 100,
        [None] * 100,
        [b"1"] * 100,
        [object()] * 100,
    ]
    assert len({found, *map(fingerprint, others)}) == 1 + len(others)


def test_the_fingerprint_is_fixed_and_leaves_the_generators_alone() -> None:
    source = take_over(Squares(), batch_size=1)
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = [torch.rand(1).item(), np.random.rand(), random.random()]
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    first = source.fingerprint()
    assert [torch.rand(1).item(), np.random.rand(), random.random()] == expected
    assert source.fingerprint() == first


def test_loaders_without_a_fork_server_are_our_own_mistake() -> None:
    with pytest.raises(InternalError, match="no fork server was started"):
        take_over(Squares(), batch_size=2, num_workers=1).fetch(np.array([0]))
