"""Virtual time: what will happen when, and a clock that jumps from one event to the next.

Events of one instant happen in the order in which they were put down, so a run is determined by its seed.
Nothing here sleeps, and nothing knows what an event is about.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

EPOCH_S = 1_700_000_000.0  # Unix time of virtual second 0


class Agenda:
    """The list of things to come; also the `Clock` of everything simulated."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.happened = 0  # events so far

    def now_s(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now_s

    def wall_s(self) -> float:
        """Virtual Unix time."""
        return EPOCH_S + self._now_s

    def at(self, when_s: float, do: Callable[[], None]) -> None:
        """Do it at `when_s`, or now if that is past."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_s, self._now_s), self._count, do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do it `delay_s` from now."""
        self.at(self._now_s + delay_s, do)

    def step(self, until_s: float) -> bool:
        """Let the next event happen if it is due by `until_s`; otherwise go there and return False."""
        if not self._heap or self._heap[0][0] > until_s:
            self._now_s = max(self._now_s, until_s)
            return False
        self._now_s, _, do = heapq.heappop(self._heap)
        self.happened += 1
        do()
        return True
