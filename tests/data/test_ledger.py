"""The ledger on disk: written once, whole after a crash, one history."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from godmw.data import ledger as ledgers
from godmw.data.indices import LoopSpec, index_hash
from godmw.data.ledger import FILE_NAME, Entry, LedgerWriter, read
from godmw.data.table import Table, to_bytes
from godmw.errors import InternalError
from godmw.lines import raw_lines

SPEC = LoopSpec(length=10, batch_size=4, epochs=1, shards=3, shuffle=False)


def table(step: int, ranks: list[int]) -> bytes:
    indices, filled = SPEC.step_indices(step), Table(len(SPEC.shard_bounds(step)))
    filled.open()
    for shard, (low, high) in enumerate(SPEC.shard_bounds(step)):
        filled.fill(
            shard,
            samples=high - low,
            weight=1.0,
            loss_sum=0.5,
            hash=index_hash(indices[low:high]),
            rank=ranks[shard],
        )
    return to_bytes(filled.array)


def write(ledger: LedgerWriter, step: int, ranks: list[int], generation: int = 1) -> bool:
    return ledger.committed(step, generation, "step", 0, 0, step, table(step, ranks))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    assert ledger.loop(SPEC.to_json())
    assert write(ledger, 0, [0, 0, 1])
    assert write(ledger, 1, [1, 1, 1], generation=2)
    ledger.flush()
    ledger.close()
    found = read(tmp_path)
    assert found.loops == {0: SPEC}
    assert found.faults == []
    first, second = found.entries
    assert (first.operation, first.generation, first.kind, first.loop, first.step) == (0, 1, "step", 0, 0)
    assert first.ranks.tolist() == [0, 0, 1]
    assert first.samples.tolist() == [2, 1, 1]
    assert first.hashes.tolist() == [index_hash(np.array(part)) for part in ([0, 1], [2], [3])]
    assert (second.generation, second.ranks.tolist()) == (2, [1, 1, 1])


def test_a_line_is_plain_to_read(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    write(ledger, 0, [0, 0, 1])
    ledger.close()
    record = json.loads((tmp_path / FILE_NAME).read_text())
    hashes = record.pop("hashes")
    assert record == {
        "operation": 0,
        "generation": 1,
        "kind": "step",
        "loop": 0,
        "epoch": 0,
        "step": 0,
        "ranks": [[0, 2], [1, 1]],
        "samples": [[2, 1], [1, 2]],
    }
    assert len(hashes) == 32  # 24 bytes in base64


def test_records_that_are_sent_again_are_written_once(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    assert ledger.loop(SPEC.to_json())
    assert not ledger.loop(SPEC.to_json())
    assert write(ledger, 0, [0, 0, 1])
    assert not write(ledger, 0, [0, 0, 1], generation=2)  # the generation is the teller's
    ledger.close()
    again = LedgerWriter(tmp_path)
    assert not again.loop(SPEC.to_json())
    assert not write(again, 0, [0, 0, 1])
    again.close()
    assert len((tmp_path / FILE_NAME).read_bytes().splitlines()) == 2


def test_two_histories_are_an_error(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    ledger.loop(SPEC.to_json())
    write(ledger, 0, [0, 0, 1])
    with pytest.raises(
        InternalError, match=r"operation 0 \(step 0\) was committed with two different tables"
    ):
        write(ledger, 0, [0, 1, 1])
    other = LoopSpec(length=10, batch_size=5, epochs=1, shards=3, shuffle=False)
    with pytest.raises(InternalError, match="loop 0 was described as"):
        ledger.loop(other.to_json())
    ledger.close()


def test_how_far_it_is_complete(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    assert ledger.below == 0
    write(ledger, 1, [0, 0, 0])
    assert ledger.below == 0
    write(ledger, 0, [0, 0, 0])
    assert ledger.below == 2
    ledger.close()
    again = LedgerWriter(tmp_path)
    assert again.below == 2
    again.close()


def test_an_old_operation_is_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what lies behind the window the file knows, before and after the master's restart."""
    monkeypatch.setattr(ledgers, "WINDOW", 2)
    ledger = LedgerWriter(tmp_path)
    for operation in range(12):
        ledger.committed(operation, 1, "step", 0, 0, operation, table(0, [0, 0, 1]))
    for _ in range(2):
        size = (tmp_path / FILE_NAME).stat().st_size
        for operation in (0, 1, 8, 9, 10, 11):
            assert not ledger.committed(operation, 7, "step", 0, 0, operation, table(0, [0, 0, 1]))
            with pytest.raises(InternalError, match=f"operation {operation} .* two different tables"):
                ledger.committed(operation, 1, "step", 0, 0, operation, table(0, [0, 1, 1]))
        assert ledger.below == 12
        assert (tmp_path / FILE_NAME).stat().st_size == size
        ledger.close()
        ledger = LedgerWriter(tmp_path)
    assert ledger.committed(12, 1, "step", 0, 0, 12, table(0, [0, 0, 1]))
    ledger.close()
    assert [entry.operation for entry in read(tmp_path).entries] == list(range(13))


def test_what_is_said_again_after_a_long_absence_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was without a master may say thousands again, between them new ones."""
    monkeypatch.setattr(ledgers, "WINDOW", 2)
    ledger = LedgerWriter(tmp_path)
    reads = 0

    def counted(path: Path) -> Iterator[tuple[bytes, int]]:
        nonlocal reads
        reads += 1
        return raw_lines(path)

    def say(operation: int) -> bool:
        return ledger.committed(operation, 1, "step", 0, 0, operation, table(0, [0, 0, 1]))

    monkeypatch.setattr(ledgers, "raw_lines", counted)
    assert all(say(operation) for operation in range(50))
    assert not any(say(operation) for operation in range(50))
    assert reads == 1
    assert all(say(operation) for operation in range(50, 60))
    assert not any(say(operation) for operation in range(60))
    assert reads == 2
    ledger.flush()
    assert not ledger._past
    ledger.close()
    assert [entry.operation for entry in read(tmp_path).entries] == list(range(60))


def test_memory_does_not_grow_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does opening a long ledger take more than the window; 130 bytes an operation would be 260 kB."""
    monkeypatch.setattr(ledgers, "WINDOW", 64)
    words = table(0, [0, 0, 1])
    ledger = LedgerWriter(tmp_path)
    tracemalloc.start()
    try:
        for operation in range(3000):
            if operation == 1000:
                before, _ = tracemalloc.get_traced_memory()
            ledger.committed(operation, 1, "step", 0, 0, operation, words)
        grown = tracemalloc.get_traced_memory()[0] - before
        ledger.close()
        before, _ = tracemalloc.get_traced_memory()
        again = LedgerWriter(tmp_path)
        opened = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert again.below == 3000
    again.close()
    assert grown < 30_000
    assert opened < 60_000


def test_a_torn_tail_at_every_length(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    ledger.loop(SPEC.to_json())
    write(ledger, 0, [0, 0, 1])
    whole = (tmp_path / FILE_NAME).stat().st_size
    write(ledger, 1, [0, 0, 1])
    ledger.close()
    data = (tmp_path / FILE_NAME).read_bytes()
    for size in range(whole, len(data)):
        (tmp_path / FILE_NAME).write_bytes(data[:size])
        assert [entry.operation for entry in read(tmp_path).entries] == [0]
        again = LedgerWriter(tmp_path)
        assert again.below == 1
        assert write(again, 1, [0, 0, 1])
        again.close()
        assert (tmp_path / FILE_NAME).read_bytes() == data


def test_an_operation_without_samples(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path)
    empty = Table(0)
    empty.open()
    assert ledger.committed(0, 1, "reduce", 0, 0, -1, to_bytes(empty.array))
    ledger.close()
    (entry,) = read(tmp_path).entries
    assert (entry.kind, entry.step, len(entry.samples)) == ("reduce", -1, 0)


def test_what_is_no_record_is_a_fault_and_not_an_exception(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere").entries == []
    lines = ['{"operation":0}', '{"loop":0,"spec":{"length":1}}', '{"loop":0,"spec":3}']
    (tmp_path / FILE_NAME).write_text("\n".join(lines) + "\n")
    assert len(read(tmp_path).faults) == 3
    (tmp_path / FILE_NAME).write_text("not json\n")
    assert "is not a JSON object" in read(tmp_path).faults[0]


def test_entries_that_contradict_themselves_are_no_record() -> None:
    record = json.loads(Entry.of_table(0, 1, "step", 0, 0, 0, np.ones((3, 6), dtype=np.int64)).line())
    assert len(Entry.from_record(record).samples) == 2
    with pytest.raises(ValueError, match="different numbers of shards"):
        Entry.from_record({**record, "ranks": [[0, 1]]})
