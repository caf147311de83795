"""Where a worker stands in the job, and what the data plane may do there.

The part of the participant that answers questions: may this shard be begun, is this operation whole,
may it be committed.  ``stopped`` is the one gate: after an answered Abort nothing is begun, made
whole or committed until the Plan (DESIGN 4).  How a worker gets somewhere else is the participant's
affair.
"""

from __future__ import annotations

from collections.abc import Iterable

from godmw.membership.inhand import InHand, ParticipantFault
from godmw.membership.selfportrait import Activity, Identity, Unrecorded
from godmw.membership.states import WORKER_EDGES, Track, WorkerState
from godmw.protocol import messages as msg


class Place:
    """Every public attribute may be read, none may be set from outside."""

    def __init__(self, identity: Identity, *, beat_s: float, orphan_s: float, now_s: float) -> None:
        self.identity = identity
        self.worker, self.incarnation = identity.worker, identity.incarnation
        self.beat_s, self.orphan_s = beat_s, orphan_s
        self.track: Track[WorkerState] = Track(
            identity.worker or "worker", WorkerState.JOINING, WORKER_EDGES
        )
        self.activity = Activity(since_s=now_s)
        self.term = 0
        self.connected = False
        self.registered = False
        self.run_dir = ""
        self.seed = -1
        # membership
        self.generation = 0
        self.members: tuple[msg.Member, ...] = ()
        self.rank = -1
        self.abort = 0
        self.held: dict[int, msg.Plan] = {}
        self.formed = 0
        self.links_ready = False
        self.broken: msg.LinkBroken | None = None  # a link of this generation, until it ends
        self.drained_by = 0
        self.finish: msg.Finish | None = None
        self.prepared: msg.Prepared | None = None
        self.ended: str | None = None  # the summary
        self.digest = b""
        self.hand = InHand()
        self._answer: msg.Stopped | None = None  # to the newest Abort
        self.agreed = 0  # the lowest plan number held by all at the last commit
        self.records = Unrecorded()  # what the master has not acknowledged
        self._next_beat_s = now_s
        self._master_lost_s: float | None = now_s

    @property
    def state(self) -> WorkerState:
        return self.track.state

    @property
    def stopped(self) -> bool:
        """An Abort newer than the generation has been answered: nothing of the old generation may count."""
        return self.abort > self.generation

    @property
    def world_size(self) -> int:
        return len(self.members)

    @property
    def position(self) -> int:
        """Committed operations; -1 without state."""
        return self.hand.position

    def orphaned(self, now_s: float) -> bool:
        """No master for ``orphan_s``: pause at the next boundary until a Welcome."""
        return self._master_lost_s is not None and now_s - self._master_lost_s >= self.orphan_s

    def may_open(self, now_s: float) -> bool:
        """At a boundary: may the next operation begin?"""
        return self.generation > 0 and not self.stopped and self.finish is None and not self.orphaned(now_s)

    def todo(self) -> tuple[int, ...]:
        """Shards of the opened operation that are this worker's and not begun, ascending."""
        return self.hand.todo()

    def begin(self, shards: Iterable[int]) -> bool:
        """The main thread is about to hand these shards to the user's code: they are this worker's now."""
        return self.hand.begin(shards, self.stopped)

    def whole(self, operation: int, generation: int) -> int | None:
        """All results of ``operation`` are in.  The ready word to send, or None: this generation is over."""
        if self.stopped or generation != self.generation or operation != self.hand.position:
            return None
        if self.hand.todo():
            raise ParticipantFault(f"whole for operation {operation} with shards {self.todo()} not begun")
        self.hand.whole = True
        return max([*self.held, self.generation])

    def commit(self, operation: int, generation: int, lowest: int) -> bool:
        """Ready of all has arrived, ``lowest`` is the lowest plan number held: the operation is part of
        history.
        """
        if self.stopped or generation != self.generation or operation != self.hand.position:
            return False
        if not self.hand.whole:
            raise ParticipantFault(f"operation {operation} is ready but was never whole here")
        if lowest > self.generation and lowest not in self.held:
            raise ParticipantFault(
                f"must switch to plan {lowest}, which is not held (held: {sorted(self.held)})"
            )
        self.hand.advance()
        self.agreed = lowest
        return True
