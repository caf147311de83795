"""What a worker says of itself: who it is, what it is doing, and the records it keeps for the master.

Parts of the participant that need none of its states.  An operation's record is kept until the master
acknowledges it, a loop's description until it acknowledges a step of it: any member may become the one
that tells them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from godmw.membership.inhand import InHand
from godmw.protocol import messages as msg


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who the worker says it is."""

    worker: str
    incarnation: int
    agent: str
    host: str
    pid: int
    address: str
    token: str


@dataclasses.dataclass(slots=True)
class Activity:
    """What the shell last saw the worker doing; copied into every heartbeat."""

    phase: str = "starting"
    progress: int = 0
    where: str = ""
    waits_for: str = ""
    limit_s: float = 0.0
    since_s: float = 0.0


def join(
    who: Identity,
    generation: int,
    position: int,
    abort: int,
    held: tuple[int, ...],
    prepared: bool,
    ended: bool,
) -> msg.Join:
    """The registration of a new worker (generation 0) or of one with a past."""
    return msg.Join(
        token=who.token,
        agent=who.agent,
        host=who.host,
        pid=who.pid,
        address=who.address,
        generation=generation,
        position=position,
        abort=abort,
        held=held,
        prepared=prepared,
        ended=ended,
    )


def heartbeat(seen: Activity, position: int, applied: int, now_s: float) -> msg.Heartbeat:
    """A beat: life, and apart from it progress."""
    return msg.Heartbeat(
        position=position,
        progress=seen.progress,
        phase=seen.phase[:64],
        where=seen.where[:1024],
        waits_for=seen.waits_for[:64],
        idle_s=max(0.0, now_s - seen.since_s),
        limit_s=seen.limit_s,
        applied=applied,
    )


def answer(abort: int, generation: int, hand: InHand, held: tuple[int, ...], ended: bool) -> msg.Stopped:
    """The frozen record that answers an Abort."""
    return msg.Stopped(
        abort=abort,
        generation=generation,
        position=hand.position,
        whole=hand.whole,
        shards=hand.shards if hand.opened else 0,
        begun=tuple(sorted(hand.begun)),
        assigned=tuple(sorted(hand.assigned)),
        held=held,
        ended=ended,
        standing=hand.standing or ended,
        enterable=hand.enterable or ended,
    )


class Unrecorded:
    """Committed records above ``below``, which the ledger does not hold durably yet, and their loops."""

    def __init__(self) -> None:
        self.below = 0
        self._committed: dict[int, msg.Committed] = {}
        self._loops: dict[int, msg.LoopOpened] = {}
        self._told = -1  # the newest loop of which the ledger holds a step: it holds all loops up to it

    def keep(self, record: msg.Committed | msg.LoopOpened) -> bool:
        """False: the ledger has it already."""
        if isinstance(record, msg.LoopOpened):
            if record.loop <= self._told:
                return False
            self._loops[record.loop] = record
            return True
        if record.operation < self.below:
            return False
        self._committed[record.operation] = record
        return True

    def acknowledge(self, below: int) -> None:
        self.below = max(self.below, below)
        for number in [number for number in self._committed if number < self.below]:
            record = self._committed.pop(number)
            if record.step >= 0:  # whoever told the master of a step had told it of its loop before
                self._told = max(self._told, record.loop)
        self._loops = {number: loop for number, loop in self._loops.items() if number > self._told}

    def all(self) -> Iterator[msg.Committed | msg.LoopOpened]:
        """Loops first, then operations in order."""
        yield from (self._loops[number] for number in sorted(self._loops))
        yield from (self._committed[number] for number in sorted(self._committed))
