"""The operation a worker has in hand: its number, its shards, which are begun, whether its results are
in.

Kept apart from membership because an Abort leaves it alone: what was assigned and begun in one
generation is carried into the next (DESIGN 4), and a plan only adds to it.  ``plan`` is what the
generation in force explicitly gives.
"""

from __future__ import annotations

from collections.abc import Iterable

from godmw.membership.assignment import default_share


class ParticipantFault(Exception):
    """Our own rules were broken (exit 70): a plan that is not held, a commit without a result, a shard
    twice.
    """


class InHand:
    """``position`` counts committed operations, -1 without state; the rest is about the operation after
    them.
    """

    def __init__(self) -> None:
        self.position = -1
        self.opened = False  # the main thread stands in it: ``shards`` is known
        self.shards = 0
        self.assigned: frozenset[int] = frozenset()
        self.begun: frozenset[int] = frozenset()
        self.whole = False
        self.standing = False  # the main thread has come to its boundary, or is in it
        self.enterable = False  # a joiner's script can stand there
        self._given: frozenset[int] | None = None  # by the plan in force; None: the default share

    def todo(self) -> tuple[int, ...]:
        """Assigned and not begun, ascending."""
        return tuple(sorted(self.assigned - self.begun))

    def open(self, operation: int, shards: int) -> None:
        """The main thread stands at ``operation``."""
        if operation != self.position:
            raise ParticipantFault(f"operation {operation} was opened at position {self.position}")
        self.opened, self.shards = True, shards

    def begin(self, shards: Iterable[int], stopped: bool) -> bool:
        """These go to the user's code and are this worker's from now on; while stopped only begun ones
        go on.
        """
        wanted = frozenset(shards)
        if stopped and not wanted <= self.begun:
            return False
        if not wanted <= self.assigned:
            raise ParticipantFault(
                f"shards {sorted(wanted - self.assigned)} were begun without being assigned"
            )
        self.begun |= wanted
        return True

    def give(self, shards: Iterable[int] | None) -> None:
        """A plan adds ``shards`` to what is assigned here; None: it says nothing about this operation."""
        self._given = None if shards is None else self.assigned | frozenset(shards)
        self.whole = False

    def assign(self, world_size: int, rank: int) -> None:
        """Settle the share in the generation in force, once the operation is opened and nobody is
        stopped.
        """
        if not self.opened:
            return
        if self._given is not None:
            if any(shard >= self.shards for shard in self._given):
                raise ParticipantFault(f"the plan names shard {max(self._given)} of {self.shards}")
            self.assigned = self._given
        elif not self.assigned:
            self.assigned = frozenset(default_share(self.shards, world_size, rank))

    def advance(self) -> None:
        """It is committed."""
        self.position += 1
        self.opened = self.whole = self.standing = self.enterable = False
        self.shards = 0
        self.assigned = self.begun = frozenset()
        self._given = None
