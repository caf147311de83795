"""The states of a worker and of a job, and every edge between them.

One table for each; every state has a row.  ``move`` is the only way to change a state: a missing edge
raises ``BrokenTransition`` with the recent story and changes nothing.  The coordinator judges every
worker by the same table by which a participant judges itself.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Generic, TypeVar


class WorkerState(enum.Enum):
    """Where a worker stands.  JOINING: started, checks not passed.  STANDBY: prepared, in no generation.
    SYNCING: in an announced generation, without its state yet.  ACTIVE: member.  SUSPECT: member
    whose life is in doubt.  DRAINING: member that leaves at a boundary.  LEFT: gone by consent.
    DEAD: gone otherwise.
    """

    JOINING = "JOINING"
    STANDBY = "STANDBY"
    SYNCING = "SYNCING"
    ACTIVE = "ACTIVE"
    SUSPECT = "SUSPECT"
    DRAINING = "DRAINING"
    LEFT = "LEFT"
    DEAD = "DEAD"


class JobPhase(enum.Enum):
    """What the job is doing.  WAITING: no generation yet, or (restarted master) hearing.  FORMING: the
    first one is made.  RECONFIGURING: an Abort round or a generation that has not formed.  PAUSED:
    nobody may decide, or too few.
    """

    WAITING = "WAITING"
    FORMING = "FORMING"
    RUNNING = "RUNNING"
    RECONFIGURING = "RECONFIGURING"
    PAUSED = "PAUSED"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


_W, _J = WorkerState, JobPhase
_GONE = frozenset({_W.LEFT, _W.DEAD})
_ENDS = frozenset({_J.STOPPED, _J.FAILED, _J.FINISHED})

WORKER_EDGES: dict[WorkerState, frozenset[WorkerState]] = {
    _W.JOINING: _GONE | {_W.STANDBY, _W.ACTIVE},  # ACTIVE: re-adopted by a restarted master
    _W.STANDBY: _GONE | {_W.SYNCING, _W.ACTIVE},  # ACTIVE: the first generation needs no state
    _W.SYNCING: _GONE | {_W.ACTIVE, _W.STANDBY},  # STANDBY: an Abort overtook its plan
    _W.ACTIVE: _GONE | {_W.SUSPECT, _W.DRAINING},
    _W.SUSPECT: _GONE | {_W.ACTIVE, _W.DRAINING},
    _W.DRAINING: _GONE | {_W.ACTIVE},  # an Abort round keeps who answered; it is drained by a later plan
    _W.LEFT: frozenset(),
    _W.DEAD: frozenset(),
}

JOB_EDGES: dict[JobPhase, frozenset[JobPhase]] = {
    _J.WAITING: _ENDS
    | {_J.FORMING, _J.RUNNING, _J.RECONFIGURING, _J.PAUSED},  # the latter three: re-adoption
    _J.FORMING: _ENDS | {_J.RUNNING, _J.RECONFIGURING, _J.PAUSED},
    _J.RUNNING: _ENDS | {_J.RECONFIGURING, _J.PAUSED},
    _J.RECONFIGURING: _ENDS | {_J.RUNNING, _J.PAUSED},
    _J.PAUSED: _ENDS | {_J.RECONFIGURING, _J.RUNNING},
    _J.FINISHED: frozenset(),
    _J.STOPPED: frozenset(),
    _J.FAILED: frozenset(),
}

GONE = _GONE
ENDED_PHASES = _ENDS

S = TypeVar("S", bound=enum.Enum)


class BrokenTransition(Exception):
    """An edge that the table does not have was asked for; the text carries the story that led there."""


class Track(Generic[S]):
    """One state with its table and the last few moves, each with its reason."""

    def __init__(self, name: str, state: S, edges: dict[S, frozenset[S]]) -> None:
        self.name = name
        self.state = state
        self._edges = edges
        self._story: deque[str] = deque([f"{state.value}"], maxlen=8)

    def move(self, to: S, reason: str) -> bool:
        """Go to ``to``; False when already there.  Raises BrokenTransition, changing nothing, on a
        missing edge.
        """
        if to is self.state:
            return False
        if to not in self._edges[self.state]:
            story = " → ".join(self._story)
            raise BrokenTransition(
                f"{self.name}: no edge {self.state.value} → {to.value} ({reason}); story: {story}"
            )
        self.state = to
        self._story.append(f"{to.value} ({reason})")
        return True
