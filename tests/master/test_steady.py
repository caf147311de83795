"""The clock of leases stands while the master did not run."""

from collections.abc import Iterator

import pytest

from godmw.master.steady import SteadyClock


def readings(*times: float) -> SteadyClock:
    source: Iterator[float] = iter(times)
    return SteadyClock(lambda: next(source), beat_s=0.25)


def test_it_follows_the_clock_it_is_given() -> None:
    clock = readings(100.0, 100.25, 100.5, 101.5)
    assert [clock.now_s() for _ in range(3)] == [0.25, 0.5, 1.5]
    assert clock.reading_s == 1.5
    assert clock.skipped_s == 0.0


def test_a_gap_of_more_than_four_beats_counts_as_one_beat() -> None:
    clock = readings(0.0, 0.25, 60.25, 60.5)
    assert [clock.now_s() for _ in range(3)] == [0.25, 0.5, 0.75]
    assert clock.skipped_s == pytest.approx(59.75)


def test_four_beats_are_not_too_long() -> None:
    clock = readings(0.0, 1.0, 2.01)
    assert clock.now_s() == 1.0
    assert clock.now_s() == 1.25
