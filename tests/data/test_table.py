"""The table of an operation: what members fill in adds up exactly, and what is wrong is named."""

import math

import numpy as np
import pytest

from godmw.data import table
from godmw.data.indices import LoopSpec, index_hash, shard_hashes
from godmw.data.table import NONFINITE, SINGLE, STOP, Table, Words, check, digest_word, totals
from godmw.errors import InternalError, JobFailed

SETTINGS = digest_word(b"\xff" * 8)
SPEC = LoopSpec(length=10, batch_size=7, epochs=1, shards=3, seed=1)
INDICES = SPEC.step_indices(0)
BOUNDS = SPEC.shard_bounds(0)
HASHES = shard_hashes(INDICES, BOUNDS)


def member(rank: int, shards: list[int], losses: dict[int, float] | None = None) -> Table:
    mine = Table(len(BOUNDS))
    mine.open(settings=SETTINGS)
    for shard in shards:
        low, high = BOUNDS[shard]
        loss = (losses or {}).get(shard, 0.5)
        fill(mine, shard, low, high, loss, rank)
    return mine


def fill(mine: Table, shard: int, low: int, high: int, loss: float, rank: int) -> None:
    samples = high - low
    mine.fill(
        shard,
        samples=samples,
        weight=float(samples),
        loss_sum=loss * samples,
        hash=index_hash(INDICES[low:high]),
        rank=rank,
    )


def summed(*members: Table) -> Words:
    total = members[0].array.copy()
    for other in members[1:]:
        total += other.array
    return total


def check_all(array: Words, world_size: int) -> None:
    check(array, settings=SETTINGS, world_size=world_size, bounds=BOUNDS, hashes=HASHES)


def test_rows_of_different_members_add_up() -> None:
    array = summed(member(0, [0, 2], {0: 0.25, 2: 1.5}), member(1, [1], {1: 0.1}))
    check_all(array, 2)
    found = totals(array)
    assert (found.samples, found.weight, found.members) == (7, 7.0, 2)
    assert found.loss == (0.25 * 3 + 0.1 * 2 + 1.5 * 2) / 7  # the shards have 3, 2 and 2 samples
    assert [table.holder(array, shard) for shard in range(3)] == [0, 1, 0]
    assert found.bad_shards == ()


def test_a_shard_in_pieces_is_filled_once() -> None:
    mine = member(0, [1, 2])
    fill(mine, 0, 0, 2, 0.5, 0)
    fill(mine, 0, 2, 3, 0.5, 0)
    check_all(mine.array, 1)
    assert totals(mine.array).loss == 0.5


def test_opening_empties() -> None:
    mine = member(0, [0, 1, 2])
    mine.flag(STOP)
    mine.open(settings=SETTINGS)
    assert mine.array.sum() == SETTINGS + 1


def test_flags_are_counted() -> None:
    one, two = member(0, [0, 1, 2]), member(1, [])
    one.flag(STOP)
    two.flag(STOP)
    two.flag(NONFINITE)
    found = totals(summed(one, two))
    assert (found.stop, found.nonfinite, found.skipped, found.single) == (2, 1, 0, False)
    one.flag(SINGLE)
    assert totals(one.array).single


def test_losses_are_summed_in_shard_order() -> None:
    mine = Table(3)
    mine.open()
    for shard, loss in enumerate((1e16, 1.0, -1e16)):
        mine.fill(shard, samples=1, weight=1.0, loss_sum=loss, hash=0, rank=0)
    assert totals(mine.array).loss == 0.0  # (1e16 + 1) - 1e16 in floats; any compensation would find 1/3


def test_a_shard_that_is_not_finite_is_named() -> None:
    array = summed(member(0, [0]), member(1, [1, 2], {2: math.nan}))
    check_all(array, 2)
    found = totals(array)
    assert found.bad_shards == (2,)
    assert math.isnan(found.loss)


def test_no_weight_no_loss() -> None:
    mine = Table(1)
    mine.open()
    assert math.isnan(totals(mine.array).loss)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(InternalError, match="shard 1 of 3 was filled 0 times"):
        check_all(member(0, [0, 2]).array, 1)
    with pytest.raises(InternalError, match="shard 2 of 3 was filled 2 times"):
        check_all(summed(member(0, [0, 1, 2]), member(1, [2])), 2)
    with pytest.raises(InternalError, match="2 members filled the table of 3"):
        check_all(summed(member(0, [0, 1]), member(1, [2])), 3)
    fewer = member(0, [0, 1, 2])
    fewer.array[2, table.SAMPLES] -= 1
    with pytest.raises(InternalError, match="shard 1, computed by rank 0: samples 1, expected 2"):
        check_all(fewer.array, 1)
    others = member(0, [0, 1, 2])
    others.array[3, table.HASH] ^= 1
    with pytest.raises(InternalError, match="shard 2, computed by rank 0: sample hash"):
        check_all(others.array, 1)
    with pytest.raises(InternalError, match="a table of 3 shards where 2 were expected"):
        check(member(0, [0, 1, 2]).array, settings=SETTINGS, world_size=1, bounds=BOUNDS[:2])


def test_members_at_different_operations_fail_the_job() -> None:
    other = Table(3)
    other.open(settings=SETTINGS + 1)
    with pytest.raises(JobFailed, match="do not stand at the same operation"):
        check_all(summed(member(0, [0, 1, 2]), other), 2)


def test_digest_words_add_without_losing_a_bit() -> None:
    words = [digest_word(bytes([number] * 32)) for number in (0, 1, 0x7F, 0x80, 0xFF)]
    assert words == [0, 0x0101010101010101, 0x7F7F7F7F7F7F7F7F, 0x8080808080808080 - 2**64, -1]
    tables = [Table(0) for _ in range(5)]
    for part in tables:
        part.open(settings=words[3])
    check(summed(*tables), settings=words[3], world_size=5)


def test_bytes_both_ways() -> None:
    array = member(3, [0, 1, 2]).array
    data = table.to_bytes(array)
    assert len(data) == 4 * 6 * 8
    assert data[:8] == b"\xff" * 8
    assert np.array_equal(table.from_bytes(data), array)
    for wrong in (b"", data[:-1], data[:40]):
        with pytest.raises(ValueError, match="are no table"):
            table.from_bytes(wrong)
