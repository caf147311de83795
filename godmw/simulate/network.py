"""Messages on their way: one FIFO line per direction and channel, with latency, cuts and deaths.

A line between two names delivers in order.  While a pair is *cut* nothing arrives; what was on its way is
kept, as TCP keeps it, and arrives after ``mend``.  When a process dies, of what it had sent an arbitrary
prefix still arrives. Names are processes (``w0#1``, ``master``); a pair is cut by the names without
incarnation.  What a delivery means is the sender's callable; nothing here looks into it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from random import Random

from godmw.simulate.agenda import Agenda


def place(name: str) -> str:
    """``w0#2`` -> ``w0``: where a process lives, which its replacement shares."""
    return name.partition("#")[0]


@dataclasses.dataclass(slots=True)
class Parcel:
    """One thing under way."""

    deliver: Callable[[], None]
    sure: bool = False  # told by the kernel, not by the process: its death does not lose it
    lost: bool = False


@dataclasses.dataclass(slots=True)
class Line:
    """One direction of one channel: what is under way, in order."""

    source: str
    target: str
    last_s: float = 0.0
    under_way: deque[Parcel] = dataclasses.field(default_factory=deque)
    stuck: int = 0  # how many at the head have come up against a cut


class Network:
    """All lines; latency is drawn uniformly from `latency_s` with the run's own dice."""

    def __init__(self, agenda: Agenda, random: Random, latency_s: tuple[float, float]) -> None:
        self._agenda = agenda
        self._random = random
        self._latency_s = latency_s
        self._lines: dict[tuple[str, str, str], Line] = {}
        self._cuts: set[tuple[str, str]] = set()

    def send(
        self, source: str, target: str, channel: str, deliver: Callable[[], None], *, sure: bool = False
    ) -> None:
        """Put `deliver` on the line; it is called on arrival unless it is lost.  `sure`: it cannot be."""
        line = self._lines.setdefault((source, target, channel), Line(source, target))
        parcel = Parcel(deliver, sure)
        line.under_way.append(parcel)
        self._schedule(line)

    def _schedule(self, line: Line) -> None:
        line.last_s = max(line.last_s, self._agenda.now_s() + self._random.uniform(*self._latency_s))
        self._agenda.at(line.last_s, lambda: self._arrive(line))

    def _arrive(self, line: Line) -> None:
        if self.is_cut(line.source, line.target):
            line.stuck += 1
            return
        if line.under_way:
            parcel = line.under_way.popleft()
            if not parcel.lost:
                parcel.deliver()

    def is_cut(self, source: str, target: str) -> bool:
        """Does nothing pass from `source` to `target`?"""
        return (place(source), place(target)) in self._cuts

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """From now on nothing passes from `a` to `b`, nor, unless `one_way`, back."""
        self._cuts.add((place(a), place(b)))
        if not one_way:
            self._cuts.add((place(b), place(a)))

    def mend(self, a: str, b: str) -> None:
        """It passes again, both ways, what was stuck first."""
        pairs = {(place(a), place(b)), (place(b), place(a))}
        self._cuts -= pairs
        for line in self._lines.values():
            if (place(line.source), place(line.target)) in pairs:
                stuck, line.stuck = line.stuck, 0
                for _ in range(stuck):
                    self._schedule(line)

    def cuts(self) -> list[tuple[str, str]]:
        """The pairs that are cut, sorted."""
        return sorted({(min(pair), max(pair)) for pair in self._cuts})

    def forget(self, name: str) -> int:
        """`name` is dead: of each of its lines a random prefix survives, the rest is lost.  How many were
        lost.
        """
        lost = 0
        for key in [key for key, line in self._lines.items() if name in (line.source, line.target)]:
            line = self._lines[key]
            waiting = [parcel for parcel in line.under_way if not (parcel.lost or parcel.sure)]
            keep = self._random.randint(0, len(waiting)) if line.source == name else len(waiting)
            for parcel in waiting[keep:]:
                parcel.lost = True
                lost += 1
            if not line.under_way:
                del self._lines[key]
        return lost
