"""Events, metrics and ledger as the master writes them."""

import json
from pathlib import Path
from typing import Any

from godmw.data.indices import LoopSpec
from godmw.data.table import Table, to_bytes
from godmw.master.books import BATCH_S, Books
from godmw.protocol.messages import LoopOpened
from tests.fakes.machine import committed


class HandClock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.time_s = 50.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return 1_000_000.0 + self.time_s


def table(samples: tuple[int, ...], members: int) -> bytes:
    sums = Table(len(samples))
    for _ in range(members):
        part = Table(len(samples))
        part.open()
        sums.array += part.array
    for shard, count in enumerate(samples):
        sums.fill(shard, samples=count, weight=float(count), loss_sum=1.0, hash=shard, rank=0)
    return to_bytes(sums.array)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def opened(path: Path, clock: HandClock) -> Books:
    books = Books(path, clock, began_s=1_000_040.0)
    books.open()
    return books


def test_an_event_carries_unix_time_and_time_since_the_job_began(tmp_path: Path) -> None:
    clock = HandClock()
    books = opened(tmp_path, clock)
    clock.time_s = 52.5
    books.log("verdict", {"worker": "w1", "term": 2, "generation": 3, "step": 4, "reason": "exited"})
    books.close()
    assert lines(tmp_path / "events.jsonl") == [
        {
            "t": 1_000_052.5, "since_s": 12.5, "kind": "verdict", "term": 2, "generation": 3, "step": 4,
            "worker": "w1", "reason": "exited",
        }
    ]  # fmt: skip


def test_a_step_gets_its_line_of_the_metrics(tmp_path: Path) -> None:
    clock = HandClock()
    books = opened(tmp_path, clock)
    told = {"t": 1_000_049.0, "loss": 0.5, "samples": 9, "step_s": 0.25, "logged": {"lr": 0.1}, "junk": 1}
    told["epoch"] = 4  # over all loops of the job
    books.committed(committed(0, table((4, 3, 2), members=2), json.dumps(told)), (1, 2))
    books.committed(committed(1, table((4, 3, 2), members=3), "not json"), ())
    books.close()
    first, second = lines(tmp_path / "metrics.jsonl")
    assert first == {
        "t": 1_000_049.0, "since_s": 9.0, "step": 0, "epoch": 4, "generation": 1, "world_size": 2,
        "samples": 9, "loss": 0.5, "step_s": 0.25, "data_s": None, "compute_s": None,
        "exposed_comm_s": None, "wait_s": None, "redone_samples": 5, "logged": {"lr": 0.1},
    }  # fmt: skip
    assert (second["step"], second["world_size"], second["redone_samples"]) == (1, 3, 0)
    assert second["epoch"] == 0
    assert (second["t"], second["loss"]) == (1_000_050.0, None)


def test_durability_is_told_in_batches(tmp_path: Path) -> None:
    clock = HandClock()
    books = opened(tmp_path, clock)
    assert books.due_in_s() is None
    books.committed(committed(0, table((1,), 1)), ())
    clock.time_s += BATCH_S / 2
    books.committed(committed(1, table((1,), 1)), ())
    assert books.sync_if_due() is None
    clock.time_s += BATCH_S
    assert books.sync_if_due() == 2
    assert books.sync_if_due() is None
    books.close()


def test_the_next_master_knows_what_is_written(tmp_path: Path) -> None:
    spec = LoopSpec(
        loop=0, length=10, batch_size=5, epochs=1, steps=None, shards=1, shuffle=True, drop_last=False,
        seed=1, batch_statistics=False, first_step=0,
    )  # fmt: skip
    clock = HandClock()
    books = opened(tmp_path, clock)
    assert (books.below, books.step) == (0, 0)
    books.loop(LoopOpened(loop=0, spec=spec.to_json()))
    for operation in range(3):
        books.committed(committed(operation, table((1,), 1)), ())
    books.close()
    again = opened(tmp_path, clock)
    assert (again.below, again.step) == (3, 3)
    again.loop(LoopOpened(loop=0, spec=spec.to_json()))
    again.committed(committed(2, table((1,), 1)), ())
    again.committed(committed(3, table((1,), 1)), ())
    again.close()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert len((tmp_path / "ledger" / "ledger.jsonl").read_text().splitlines()) == 5
