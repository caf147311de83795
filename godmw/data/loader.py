"""What `job.steps` was given, taken over: a map-style dataset or a DataLoader becomes a `Source`.

Order and split are the job's (`LoopSpec`); from a DataLoader come its batch size, whether it shuffles,
`drop_last`, `collate_fn`, `num_workers` and `timeout`.  Harmless and passed over: `pin_memory`,
`persistent_workers`, `prefetch_factor`, `multiprocessing_context`, `in_order`, and the generators and
seeds of samplers, since the job's seed orders the samples.  Whatever else would change what is trained on
is refused by name with the way out.  A source fetches batches, here or in loader processes; it knows
nothing of members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from godmw.data import fork_server, pool
from godmw.data.fetch import Collate, Fetcher
from godmw.data.fork_server import ForkServer
from godmw.data.indices import Indices
from godmw.data.pool import Pool, Request
from godmw.errors import InternalError, UsageError


def start_fork_server() -> ForkServer:
    """Fork the process that loader processes will come from: in `join`, before there is any socket."""
    return fork_server.start_fork_server(pool.serve)


class Source:
    """A dataset with its settings: `length`, `batch_size`, `shuffle`, `drop_last`, `num_workers`.

    With `num_workers` > 0 loader processes start at the first fetch.  A `TensorDataset` never has any: its
    batches are selected whole in the time it takes to ask for them.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        num_workers: int = 0,
        timeout_s: float = 0,
        server: ForkServer | None = None,
    ) -> None:
        self.length = fetcher.length
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.num_workers = 0 if fetcher.selects else num_workers
        self._fetcher = fetcher
        self._timeout_s = timeout_s
        self._server = server
        self._pool: Pool | None = None

    @property
    def dataset(self) -> Any:
        return self._fetcher.dataset

    def fetch(self, indices: Indices, seed: int = 0) -> Any:
        """The collated batch of `indices` (int64), made with generators seeded from `seed` and the indices.

        Raises what the dataset or collate function raised, from wherever.  torch's CPU, numpy's and random's
        global generators are left in an unspecified state.
        """
        loaders = self._loaders()
        return loaders.fetch(Request.of(indices, seed)) if loaders else self._fetcher.batch(indices, seed)

    @property
    def prefetches(self) -> bool:
        """Whether `expect` is of use."""
        return self.num_workers > 0

    def expect(self, batches: Sequence[Indices], seeds: Sequence[int] | None = None) -> None:
        """A hint: these are fetched next, in this order, each with its seed (0).  Replaces the last hint.

        Any fetch, hinted at or not, gives the batch that was asked for; what is not hinted at any more is
        dropped.
        """
        loaders = self._loaders()
        if loaders:
            pairs = zip(batches, seeds if seeds is not None else [0] * len(batches), strict=True)
            loaders.expect([Request.of(indices, seed) for indices, seed in pairs])

    def fingerprint(self) -> bytes:
        """A digest (32 bytes) of the length and of 8 fixed samples, equal for equal datasets."""
        loaders = self._loaders()
        if loaders is None:
            return self._fetcher.fingerprint()
        found: bytes = loaders.fetch(Request(b"", 0))
        return found

    def close(self) -> None:
        """End the loader processes; they would start again at the next fetch."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _loaders(self) -> Pool | None:
        if self.num_workers and self._pool is None:
            if self._server is None:
                raise InternalError("loader processes were asked for and no fork server was started")
            self._pool = Pool(self._server, self._fetcher, self.num_workers, self._timeout_s)
        return self._pool


def take_over(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    sampler: Any = None,
    collate_fn: Collate | None = None,
    num_workers: int | None = None,
    server: ForkServer | None = None,
) -> Source:
    """The source for `data`; an argument that is given wins over a DataLoader's own.

    Raises UsageError for what cannot be meant or is not taken over.
    """
    if sampler is not None:
        raise UsageError("sampler= is not supported", hint="shuffle=True or shuffle=False says the order")
    taken: dict[str, Any] = {"shuffle": True, "drop_last": False, "num_workers": 0, "timeout_s": 0}
    collate: Collate = default_collate
    if isinstance(data, DataLoader):
        taken |= _from_loader(data)
        collate, data = data.collate_fn, data.dataset
    given = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "num_workers": num_workers,
    }
    taken |= {name: value for name, value in given.items() if value is not None}
    length = _length(data)
    if "batch_size" not in taken:
        raise UsageError(
            "batch_size was not given",
            hint="it is global, over all workers: job.steps(dataset, batch_size=256, epochs=1)",
        )
    for name, least in (("batch_size", 1), ("num_workers", 0)):
        if type(taken[name]) is not int or taken[name] < least:
            raise UsageError(f"{name}={taken[name]!r}: a whole number, {least} or more, was expected")
    return Source(Fetcher(data, collate_fn or collate, length), server=server, **taken)


def _length(dataset: Any) -> int:
    """The number of samples of a map-style dataset."""
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            f"{_name(dataset)} is an IterableDataset: its samples have no numbers to share out by",
            hint="give a dataset with __len__ and __getitem__",
        )
    if isinstance(dataset, (str, bytes, Mapping)):
        raise UsageError(
            f"a {_name(dataset)} is no dataset", hint="give a dataset with __len__ and __getitem__"
        )
    if isinstance(dataset, tuple) and any(isinstance(item, Tensor) for item in dataset):
        raise UsageError(
            f"a tuple of {len(dataset)} tensors would be a dataset of {len(dataset)} samples",
            hint="job.steps(torch.utils.data.TensorDataset(x, y), …)",
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"{_name(dataset)} has no __len__ and __getitem__",
            hint="give a map-style dataset or a DataLoader: job.steps(dataset, batch_size=256, epochs=1)",
        )
    length = len(dataset)
    if length < 1:
        raise UsageError(
            f"the dataset is empty: len({_name(dataset)}) is 0", hint="check where its samples come from"
        )
    return length


def _name(value: Any) -> str:
    return type(value).__name__


def _from_loader(loader: DataLoader) -> dict[str, Any]:
    """What a DataLoader says about the loop; refuses what it says beyond."""
    _refuse_extras(loader)
    return {
        "batch_size": loader.batch_size,
        "shuffle": _shuffles(loader.sampler, len(loader.dataset)),  # type: ignore[arg-type]
        "drop_last": loader.drop_last,
        "num_workers": loader.num_workers,
        "timeout_s": loader.timeout,
    }


def _refuse_extras(loader: DataLoader) -> None:
    if isinstance(loader.dataset, IterableDataset):
        _length(loader.dataset)
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UsageError(
            f"{_name(loader)} is a DataLoader with an __iter__ of its own, which is not taken over",
            hint="give job.steps its dataset, and collate_fn= for what it does to batches",
        )
    if loader.batch_sampler is None:
        raise UsageError(
            "a DataLoader with batch_size=None makes no batches",
            hint="job.steps(loader.dataset, batch_size=256, epochs=1)",
        )
    if type(loader.batch_sampler) is not BatchSampler:
        raise UsageError(
            f"the DataLoader's batch_sampler ({_name(loader.batch_sampler)}) is not supported",
            hint="job.steps(loader.dataset, batch_size=256, epochs=1): the job cuts the batches",
        )
    if loader.worker_init_fn is not None:
        raise UsageError(
            "the DataLoader's worker_init_fn is not supported",
            hint="leave it out and do its work in the dataset; generators are seeded for every batch",
        )


def _shuffles(sampler: Any, length: int) -> bool:
    """Whether a sampler of a known kind shuffles."""
    kinds: dict[type, Callable[[Any], bool]] = {
        SequentialSampler: lambda _: False,
        RandomSampler: lambda _: True,
        DistributedSampler: lambda known: bool(known.shuffle),  # its split is the job's affair
    }
    if type(sampler) not in kinds:
        way_out = "job.steps(dataset, batch_size=256, shuffle=True, epochs=1)"
        if isinstance(sampler, SubsetRandomSampler):
            way_out = "job.steps(torch.utils.data.Subset(dataset, indices), …)"
        if isinstance(sampler, WeightedRandomSampler):
            way_out = "weigh the loss: step.backward(loss, weight=…), or repeat samples in the dataset"
        raise UsageError(f"the DataLoader's sampler ({_name(sampler)}) is not supported", hint=way_out)
    if isinstance(sampler, RandomSampler):
        if sampler.replacement:
            raise UsageError(
                "RandomSampler(replacement=True) is not supported: every sample goes into one step an epoch",
                hint="leave replacement out",
            )
        if sampler.num_samples != length:
            raise UsageError(
                f"RandomSampler(num_samples={sampler.num_samples}) of {length} samples is not supported",
                hint="take Subset(dataset, indices) for fewer, or steps= for a loop of so many steps",
            )
    return kinds[type(sampler)](sampler)
