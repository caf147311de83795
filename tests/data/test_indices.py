"""The order of samples: golden values, a slow twin, bijection, chance, and the rules of a loop."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from godmw.data.indices import (
    LoopSpec,
    cut,
    index_hash,
    mix,
    order_key,
    permute,
    shard_hashes,
)
from godmw.errors import UsageError

WORD = 2**64


def slow_mix(word: int) -> int:
    """SplitMix64's finaliser, as published."""
    word = (word + 0x9E3779B97F4A7C15) % WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def slow_permute(n: int, key: int, position: int) -> int:
    """The permutation one number at a time, in whole numbers of any size."""
    rows = next(rows for rows in itertools.count(1) if rows * rows >= n)
    columns = math.ceil(n / rows)
    value = position
    while True:
        right, left = divmod(value, rows)
        for number in range(12):
            word = ((left if number % 2 else right) + slow_mix(key ^ slow_mix(number))) % WORD
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
            word = ((word ^ word >> 27) * 0x94D049BB133111EB % WORD) >> 32
            if number % 2:
                right = (right + (word * columns >> 32)) % columns
            else:
                left = (left + (word * rows >> 32)) % rows
        value = right * rows + left
        if value < n:
            return value


def test_mix_is_splitmix64() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # the first output of the published generator seeded with 0
    assert [mix(word) for word in (1, 2**63, WORD - 1)] == [slow_mix(word) for word in (1, 2**63, WORD - 1)]


def test_golden_orders() -> None:
    everything = np.arange(10)
    assert permute(10, order_key(0, 0), everything).tolist() == [7, 2, 3, 9, 1, 0, 4, 8, 5, 6]
    far = np.array([0, 1, 9_999_999])
    assert permute(10_000_000, order_key(7, 1), far).tolist() == [6883138, 1847820, 2058555]
    assert permute(1797, order_key(7, 0), np.arange(5)).tolist() == [1603, 1470, 1375, 1658, 1148]
    assert order_key(7, 1) == 17770702679626417888
    assert order_key(7, 1, loop=2) == 7657004998645395394


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 1797, 65536, 65537, 10_000_000, 2**40])
def test_the_fast_permutation_is_the_slow_one(n: int) -> None:
    positions = sorted({0, 1 % n, n // 3, n // 2, n - 1})
    for key in (0, order_key(11, 3)):
        expected = [slow_permute(n, key, position) for position in positions]
        assert permute(n, key, np.array(positions, dtype=np.int64)).tolist() == expected


@pytest.mark.parametrize("n", [*range(1, 130), 1000, 1023, 1024, 1025, 99_991])
def test_every_index_once(n: int) -> None:
    found = permute(n, order_key(5, n), np.arange(n))
    assert np.array_equal(np.sort(found), np.arange(n))


def test_a_slice_is_the_same_alone_and_among_others() -> None:
    key = order_key(1, 2)
    whole = permute(5000, key, np.arange(5000))
    assert np.array_equal(permute(5000, key, np.arange(37, 91)), whole[37:91])


def test_bad_sizes_and_positions() -> None:
    with pytest.raises(ValueError, match="a permutation of 0 things"):
        permute(0, 1, np.arange(0))
    with pytest.raises(ValueError, match=r"range\(5\)"):
        permute(5, 1, np.array([5]))
    with pytest.raises(ValueError, match=r"range\(5\)"):
        permute(5, 1, np.array([-1]))


# chi-square is within 4.5 standard deviations, sqrt(2 df), of its df unless something is wrong
def chi_square_bound(df: int) -> float:
    return df + 4.5 * math.sqrt(2 * df)


@pytest.mark.parametrize(("n", "draws"), [(2, 2000), (3, 3000), (4, 6000), (5, 24_000)])
def test_all_permutations_of_few_things_are_as_likely(n: int, draws: int) -> None:
    counts = Counter(tuple(permute(n, order_key(seed, 0), np.arange(n)).tolist()) for seed in range(draws))
    expected = draws / math.factorial(n)
    found = sum((counts[order] - expected) ** 2 / expected for order in itertools.permutations(range(n)))
    assert found < chi_square_bound(math.factorial(n) - 1)


@pytest.mark.parametrize("n", [7, 17, 100])
def test_places_and_neighbours_are_as_likely(n: int) -> None:
    draws = 3000
    places = np.zeros((n, n))
    steps = np.zeros(n)
    for seed in range(draws):
        order = permute(n, order_key(seed, 3), np.arange(n))
        places[np.arange(n), order] += 1
        steps += np.bincount(np.diff(order) % n, minlength=n)
    expected = draws / n
    assert ((places - expected) ** 2 / expected).sum() < chi_square_bound((n - 1) ** 2)
    expected = draws * (n - 1) / (n - 1)  # from one value any other follows as likely
    assert ((steps[1:] - expected) ** 2 / expected).sum() < 1.3 * chi_square_bound(
        n - 2
    )  # draws depend a little


def test_epochs_loops_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(permute(100, order_key(seed, epoch, loop), np.arange(100)).tolist())
        for seed in range(3)
        for epoch in range(3)
        for loop in range(3)
    }
    assert len(orders) == 27


def test_hashes_add() -> None:
    assert index_hash(np.array([0])) == mix(0)
    indices = np.array([5, 0, 2**40, 17, 3])
    assert index_hash(indices) == sum(slow_mix(int(index)) for index in indices) % WORD
    parts = shard_hashes(indices, [(0, 2), (2, 3), (3, 5)])
    assert parts.tolist() == [index_hash(indices[:2]), index_hash(indices[2:3]), index_hash(indices[3:])]
    assert index_hash(np.arange(0)) == 0


def test_cut_is_even_and_longer_first() -> None:
    assert cut(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert cut(4, 4) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert cut(6, 1) == [(0, 6)]
    with pytest.raises(ValueError, match="2 samples in 3 parts"):
        cut(2, 3)


def test_golden_steps_of_a_loop() -> None:
    spec = LoopSpec(length=10, batch_size=4, epochs=2, seed=7)
    assert (spec.steps_per_epoch, spec.total_steps, spec.shards) == (3, 6, 4)
    assert [spec.step_indices(step).tolist() for step in range(6)] == [
        [4, 7, 2, 0],
        [3, 8, 1, 6],
        [5, 9],
        [8, 1, 0, 5],
        [2, 4, 6, 3],
        [9, 7],
    ]
    assert [spec.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 1]
    assert spec.shard_bounds(0) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert spec.shard_bounds(2) == [(0, 1), (1, 2)]
    with pytest.raises(IndexError, match="step 6 of a loop of 6"):
        spec.step_indices(6)


def test_without_shuffle_samples_come_in_order() -> None:
    spec = LoopSpec(length=5, batch_size=2, epochs=1, shuffle=False)
    assert [spec.step_indices(step).tolist() for step in range(3)] == [[0, 1], [2, 3], [4]]


def test_drop_last_drops_the_smaller_step() -> None:
    spec = LoopSpec(length=10, batch_size=4, epochs=3, drop_last=True)
    assert (spec.steps_per_epoch, spec.total_steps) == (2, 6)
    assert all(len(spec.step_indices(step)) == 4 for step in range(6))


def test_steps_cap_epochs_and_epochs_wrap() -> None:
    assert LoopSpec(length=10, batch_size=4, epochs=3, steps=5).total_steps == 5
    assert LoopSpec(length=10, batch_size=4, epochs=1, steps=5).total_steps == 3
    wrapping = LoopSpec(length=10, batch_size=4, steps=100)
    assert wrapping.total_steps == 100
    assert wrapping.epoch_of(99) == 33
    assert LoopSpec(length=10, batch_size=4, epochs=0).total_steps == 0


def test_batch_statistics_keep_two_samples_in_a_shard() -> None:
    spec = LoopSpec(length=9, batch_size=5, epochs=1, shards=64, batch_statistics=True)
    assert spec.shard_bounds(0) == [(0, 3), (3, 5)]
    assert spec.shard_bounds(1) == [(0, 2), (2, 4)]
    assert LoopSpec(length=1, batch_size=8, epochs=1, batch_statistics=True).shard_bounds(0) == [(0, 1)]


def test_shards_by_default() -> None:
    assert LoopSpec(length=1000, batch_size=256, epochs=1).shards == 64
    assert LoopSpec(length=1000, batch_size=3, epochs=1).shards == 3
    assert LoopSpec(length=1000, batch_size=3, epochs=1, shards=8).shard_bounds(0) == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "the dataset is empty"),
        ({"batch_size": 0}, "batch_size=0: 1 or more"),
        ({"batch_size": 2.5}, "batch_size=2.5: a whole number"),
        ({"batch_size": True}, "batch_size=True: a whole number"),
        ({"epochs": None}, "neither epochs nor steps"),
        ({"epochs": -1}, "epochs=-1: 0 or more"),
        ({"steps": -3}, "steps=-3: 0 or more"),
        ({"shards": 65537}, "shards=65537: 1 to 65536"),
        ({"shards": -1}, "shards=-1: 1 to 65536"),
        ({"batch_size": 11, "drop_last": True}, "drop_last=True drops the only step"),
    ],
)
def test_a_loop_that_cannot_be_meant_is_refused_at_the_door(wrong: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        LoopSpec(**{"length": 10, "batch_size": 4, "epochs": 1, **wrong})
    assert message in caught.value.message


def test_json_both_ways() -> None:
    spec = LoopSpec(length=10, batch_size=4, steps=9, seed=2**63 + 5, loop=3, first_step=77)
    assert LoopSpec.from_json(spec.to_json()) == spec
    for text in ("{", "[]", '{"length": 3}', spec.to_json().replace(":10,", ":0,", 1)):
        with pytest.raises(ValueError):
            LoopSpec.from_json(text)
