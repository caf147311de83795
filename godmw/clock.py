"""Time as an argument: the two clocks a shell reads and hands to the machines it drives.

`now_s` orders and measures and never jumps; `wall_s` is for people and files and is never subtracted.  The
pure rooms take numbers, not clocks; tests and the simulator bring a clock of their own.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell gets the time."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""

    def wall_s(self) -> float:
        """Unix time in seconds."""


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()
