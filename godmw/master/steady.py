"""A clock for leases: it stands while the master itself did not run.

A stopped or suspended master hears nobody, and when it goes on everybody seems to have been silent for as
long. `SteadyClock` is read once a turn of the master's loop, which never waits longer than a beat on
purpose; a longer gap between two readings counts as one beat. Pure but for the clock it is given.
"""

from __future__ import annotations

from collections.abc import Callable

MISSED_BEATS = 4


class SteadyClock:
    """Seconds since it was made, by ``monotonic``, less gaps of more than four beats between readings."""

    def __init__(self, monotonic: Callable[[], float], beat_s: float) -> None:
        self._monotonic = monotonic
        self._beat_s = beat_s
        self._last_s = monotonic()
        self.reading_s = 0.0  # what `now_s` said last
        self.skipped_s = 0.0

    def now_s(self) -> float:
        """The time of this turn."""
        last_s, self._last_s = self._last_s, self._monotonic()
        gap_s = self._last_s - last_s
        if gap_s > MISSED_BEATS * self._beat_s:
            self.skipped_s += gap_s - self._beat_s
            gap_s = self._beat_s
        self.reading_s += gap_s
        return self.reading_s
