"""The audit: a clean ledger is proven, and each way of going wrong is found and named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from godmw.data.audit import AuditReport, audit, examine
from godmw.data.indices import LoopSpec, shard_hashes
from godmw.data.ledger import Entry, Ledger, LedgerWriter
from godmw.data.table import Table, to_bytes

SPEC = LoopSpec(length=10, batch_size=4, epochs=2, shards=3, seed=5)  # 2 epochs of 4, 4 and 2 samples


def entry(spec: LoopSpec, step_in_loop: int, operation: int | None = None) -> Entry:
    bounds, indices = spec.shard_bounds(step_in_loop), spec.step_indices(step_in_loop)
    step = spec.first_step + step_in_loop
    return Entry(
        operation=step if operation is None else operation,
        generation=1,
        kind="step",
        loop=spec.loop,
        epoch=spec.epoch_of(step_in_loop),
        step=step,
        ranks=np.arange(len(bounds)),
        samples=np.array([high - low for low, high in bounds]),
        hashes=shard_hashes(indices, bounds),
    )


def ledger(*entries: Entry, loops: tuple[LoopSpec, ...] = (SPEC,)) -> Ledger:
    return Ledger({spec.loop: spec for spec in loops}, list(entries), [])


def examined(change: Callable[[list[Entry]], None]) -> AuditReport:
    """The report on a complete run of `SPEC` after `change`."""
    entries = [entry(SPEC, step) for step in range(SPEC.total_steps)]
    change(entries)
    return examine(ledger(*entries))


def numbers(report: AuditReport) -> tuple[int, int, int, int, int, int]:
    return (
        report.epochs,
        report.steps,
        report.samples,
        report.missing,
        report.repeated,
        report.open_epochs,
    )


def test_a_complete_run_is_proven() -> None:
    report = examined(lambda entries: None)
    assert numbers(report) == (2, 6, 20, 0, 0, 0)
    assert report.clean


def test_4001_samples_in_two_epochs_are_8002(tmp_path: Path) -> None:
    spec = LoopSpec(length=4001, batch_size=256, epochs=2, seed=3)
    writer = LedgerWriter(tmp_path)
    writer.loop(spec.to_json())
    for step in range(spec.total_steps):
        filled = Table(len(spec.shard_bounds(step)))
        filled.open()
        one = entry(spec, step)
        for shard, (samples, digest) in enumerate(zip(one.samples, one.hashes, strict=True)):
            filled.fill(
                shard, samples=int(samples), weight=1.0, loss_sum=0.0, hash=int(digest), rank=shard % 4
            )
        writer.committed(step, 1, "step", 0, one.epoch, step, to_bytes(filled.array))
    writer.close()
    report = audit(tmp_path)
    assert numbers(report) == (2, 32, 8002, 0, 0, 0)
    assert report.clean


def test_an_epoch_not_finished_is_open_and_misses_nothing() -> None:
    report = examined(lambda entries: entries.pop())
    assert numbers(report) == (1, 5, 18, 0, 0, 1)
    assert report.clean
    assert numbers(examine(ledger())) == (0, 0, 0, 0, 0, 0)


def test_a_step_without_a_record_misses_its_samples() -> None:
    report = examined(lambda entries: entries.pop(1))
    assert numbers(report) == (2, 5, 16, 4, 0, 0)
    (offence,) = report.first_bad
    assert (offence.epoch, offence.step, offence.what) == (0, 1, "has no record")
    assert offence.samples == tuple(SPEC.step_indices(1))
    assert str(offence).startswith("loop 0 epoch 0 step 1 has no record: samples ")


def test_steps_missing_before_the_next_loop_began() -> None:
    second = LoopSpec(length=3, batch_size=3, epochs=1, loop=1, first_step=6)
    entries = [entry(SPEC, step) for step in range(5)]
    report = examine(ledger(*entries, entry(second, 0), loops=(SPEC, second)))
    assert numbers(report) == (3, 6, 21, 2, 0, 0)
    early = LoopSpec(length=3, batch_size=3, epochs=1, loop=1, first_step=5)  # the first was stopped after 5
    report = examine(ledger(*entries, entry(early, 0), loops=(SPEC, early)))
    assert numbers(report) == (2, 6, 21, 0, 0, 1)


def test_a_step_committed_twice_repeats_its_samples() -> None:
    report = examined(lambda entries: entries.append(entry(SPEC, 2, operation=99)))
    assert numbers(report) == (2, 6, 20, 0, 2, 0)
    assert report.first_bad[0].what == "was committed 2 times"


def test_the_same_record_twice_is_one_record() -> None:
    assert examined(lambda entries: entries.append(entry(SPEC, 2))).clean


def test_two_records_of_one_operation() -> None:
    report = examined(lambda entries: entries.append(entry(SPEC, 3, operation=2)))
    assert not report.clean
    assert report.first_bad[0].what == "operation 2 is recorded in two ways"


def test_a_shard_of_other_samples() -> None:
    def change(entries: list[Entry]) -> None:
        entries[4].hashes[1] += np.uint64(1)

    report = examined(change)
    assert numbers(report) == (2, 6, 19, 1, 0, 0)  # 4 samples in shards of 2, 1 and 1
    (offence,) = report.first_bad
    assert (offence.epoch, offence.step, offence.shard) == (1, 4, 1)
    assert offence.samples == (int(SPEC.step_indices(4)[2]),)


def test_a_shard_of_fewer_samples_and_one_that_nobody_computed() -> None:
    def change(entries: list[Entry]) -> None:
        entries[0].samples[0] -= 1
        entries[1].ranks[2] = -1

    assert numbers(examined(change)) == (2, 6, 17, 3, 0, 0)


def test_a_record_with_other_shards() -> None:
    def change(entries: list[Entry]) -> None:
        entries[0] = entry(LoopSpec(length=10, batch_size=4, epochs=2, shards=2, seed=5), 0)

    report = examined(change)
    assert numbers(report) == (2, 6, 16, 4, 0, 0)
    assert report.first_bad[0].what == "has 2 shards, not 3"


def test_another_seed_is_found() -> None:
    other = LoopSpec(length=10, batch_size=4, epochs=2, shards=3, seed=6)
    report = examine(ledger(*(entry(other, step) for step in range(6))))
    assert report.missing > 10


def test_steps_that_are_none_and_loops_that_are_not_described() -> None:
    longer = LoopSpec(length=10, batch_size=4, epochs=3, shards=3, seed=5)
    unknown = LoopSpec(length=10, batch_size=4, epochs=3, loop=7)
    report = examine(ledger(entry(longer, 6), entry(unknown, 0)))
    assert [offence.what for offence in report.first_bad] == [
        "is no step of its loop",
        "belongs to a loop that is not described",
    ]


def test_drop_last_owes_only_what_its_steps_have() -> None:
    spec = LoopSpec(length=10, batch_size=4, epochs=2, drop_last=True)
    report = examine(ledger(*(entry(spec, step) for step in range(4)), loops=(spec,)))
    assert numbers(report) == (2, 4, 16, 0, 0, 0)


def test_other_operations_are_passed_over() -> None:
    gather = Entry(3, 1, "gather", 0, 0, -1, np.arange(1), np.ones(1), np.zeros(1, dtype=np.uint64))
    assert numbers(examine(ledger(entry(SPEC, 0), gather))) == (0, 1, 4, 0, 0, 1)
