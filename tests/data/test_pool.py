"""Loader processes: the same batches as without them, in any order, and every way in which one can fail."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from godmw.data.fork_server import ForkServer
from godmw.data.loader import Source, start_fork_server, take_over
from godmw.data.pool import LoaderTraceback
from godmw.errors import JobFailed, UsageError


class Odd(Exception):
    """An exception that cannot be rebuilt from what it pickles."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


class Samples(Dataset):
    """Random samples; some indices misbehave. Every index fetched is noted as a file in `notes`."""

    def __init__(self, notes: Path | None = None) -> None:
        self.notes = notes

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.notes is not None:
            (self.notes / str(index)).touch()
        if index == 900:
            raise LookupError("sample 900 is unreadable")
        if index == 901:
            raise Odd(1, 2)
        if index == 902:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 903:
            time.sleep(60)
        if index == 904:
            raise SystemExit(3)
        return torch.rand(3) + index, index


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = start_fork_server()
    yield server
    server.close()


@pytest.fixture
def source(server: ForkServer) -> Iterator[Source]:
    source = take_over(Samples(), batch_size=4, num_workers=2, server=server)
    yield source
    source.close()


def indices(start: int, count: int = 4) -> np.ndarray:
    return np.arange(start, start + count)


def same(ours: Any, theirs: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def wait_for(condition: Any, what: str) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {what}"
        time.sleep(0.005)


def loaders_of(server: ForkServer) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == server.pid:
            found.add(int(path.name))
    return found


def test_batches_are_those_of_the_training_process(source: Source) -> None:
    here = take_over(Samples(), batch_size=4)
    for order in ([0, 4, 8, 12, 16], [16, 0, 4], [8]):
        source.expect([indices(start) for start in order], [7] * len(order))
        for start in order:
            assert same(source.fetch(indices(start), 7), here.fetch(indices(start), 7))
    assert same(source.fetch(indices(40), 1), here.fetch(indices(40), 1))  # nobody expected it
    assert source.fingerprint() == here.fingerprint()


def test_expectations_may_be_replaced_at_any_time(source: Source) -> None:
    for round_number in range(6):
        mine = [indices(4 * n) for n in range(round_number, round_number + 8)]
        source.expect(mine)
        fetched = [source.fetch(batch)[1].tolist() for batch in mine[:3]]
        # shards change hands: some of the expected are another's now, others are new
        changed = [*mine[5:], indices(500), *mine[3:4]]
        source.expect(changed)
        fetched += [source.fetch(batch)[1].tolist() for batch in changed]
        assert fetched == [batch.tolist() for batch in [*mine[:3], *changed]]


def test_the_same_batch_in_every_epoch(source: Source) -> None:
    source.expect([indices(0), indices(4)] * 3)
    fetched = [source.fetch(indices(start))[1].tolist() for start in (0, 4) * 3]
    assert fetched == [[0, 1, 2, 3], [4, 5, 6, 7]] * 3


def test_loaders_run_ahead_by_two_each(server: ForkServer, tmp_path: Path) -> None:
    source = take_over(Samples(tmp_path), batch_size=1, num_workers=2, server=server)
    source.expect([indices(n, 1) for n in range(10)])
    wait_for(lambda: {path.name for path in tmp_path.iterdir()} == set("0123"), "four samples")
    source.fetch(indices(0, 1))
    wait_for(lambda: {path.name for path in tmp_path.iterdir()} == set("01234"), "the fifth")
    source.close()


def test_an_exception_comes_with_its_traceback(source: Source) -> None:
    with pytest.raises(LookupError, match="sample 900 is unreadable") as caught:
        source.fetch(indices(899))
    cause = caught.value.__cause__
    assert isinstance(cause, LoaderTraceback)
    assert 'raise LookupError("sample 900 is unreadable")' in str(cause)
    assert "samples 899, 900, 901, 902" in str(cause)
    assert source.fetch(indices(0))[1].tolist() == [0, 1, 2, 3]  # the loader lives


def test_an_exception_nobody_fetches_does_not_matter(source: Source) -> None:
    source.expect([indices(900), indices(0)])
    assert source.fetch(indices(0))[1].tolist() == [0, 1, 2, 3]
    source.expect([indices(4)])
    assert source.fetch(indices(4))[1].tolist() == [4, 5, 6, 7]


def test_exceptions_that_cannot_travel_and_exits(source: Source) -> None:
    with pytest.raises(RuntimeError, match="Odd: odd 1 2"):
        source.fetch(indices(901, 1))
    with pytest.raises(SystemExit) as caught:
        source.fetch(indices(904, 1))
    assert caught.value.code == 3


def test_a_loader_that_dies_is_named_with_what_it_did(server: ForkServer) -> None:
    source = take_over(Samples(), batch_size=4, num_workers=1, server=server)
    with pytest.raises(
        JobFailed, match=r"loader process 0 of 1 died; it was to fetch samples 902"
    ) as caught:
        source.fetch(indices(902, 1))
    assert "num_workers=0" in (caught.value.hint or "")
    source.close()


def test_patience_has_an_end(server: ForkServer) -> None:
    source = take_over(
        torch.utils.data.DataLoader(Samples(), batch_size=1, num_workers=1, timeout=0.2), server=server
    )
    with pytest.raises(JobFailed, match=r"more than timeout=0.2 s for samples 903"):
        source.fetch(indices(903, 1))
    source.close()
    for pid in loaders_of(server):
        os.kill(pid, signal.SIGKILL)


def test_a_dataset_that_cannot_be_handed_over(server: ForkServer) -> None:
    samples = Samples()
    samples.transform = lambda value: value  # type: ignore[attr-defined]
    source = take_over(samples, batch_size=1, num_workers=1, server=server)
    with pytest.raises(UsageError, match="cannot be handed to loader processes") as caught:
        source.fingerprint()
    assert "num_workers=0" in (caught.value.hint or "")


def test_a_class_defined_after_the_fork(server: ForkServer) -> None:
    class Late(Samples):
        pass

    Late.__qualname__ = "Late"
    globals()["Late"] = Late
    try:
        source = take_over(Late(), batch_size=1, num_workers=1, server=server)
        with pytest.raises(UsageError, match=r"cannot take the dataset: .*Late") as caught:
            source.fingerprint()
        assert "before godmw.join()" in (caught.value.hint or "")
        source.close()
    finally:
        del globals()["Late"]


def test_batches_outlive_the_pool_and_leave_no_descriptor(server: ForkServer) -> None:
    source = take_over(Samples(), batch_size=4, num_workers=2, server=server)
    source.fetch(indices(0))
    before = len(os.listdir("/proc/self/fd"))
    kept = [source.fetch(indices(n)) for n in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before
    source.close()
    for n, (values, numbers) in enumerate(kept):
        values += 1  # their own memory, writable
        assert numbers.tolist() == list(range(n, n + 4))


def test_closing_ends_the_loaders(server: ForkServer) -> None:
    wait_for(lambda: not loaders_of(server), "loaders of other tests")
    source = take_over(Samples(), batch_size=4, num_workers=3, server=server)
    source.fetch(indices(0))
    wait_for(lambda: len(loaders_of(server)) == 3, "all loaders to start")
    source.close()
    wait_for(lambda: not loaders_of(server), "loaders to end")
    assert source.fetch(indices(0))[1].tolist() == [0, 1, 2, 3]  # they start again
    source.close()
