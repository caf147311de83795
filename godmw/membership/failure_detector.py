"""From signs of life to a verdict: pure functions of what was seen and when (DESIGN 5, "Verdicts").

Only the receiver's monotonic clock is used.  A silence becomes a death after one lease of the whole
host; a worker that is alive but mute is *named*, never evicted before the stall timeout.  Every
verdict carries its reason.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque

STOPPED_AFTER_S = 0.5
GAP_WINDOW_S = 60.0
LEASE_PER_GAP = 4.0


class Cause(enum.Enum):
    """What a verdict rests on."""

    EXITED = "exited"  # its agent saw the exit
    RESET = "reset"  # its connection was reset and its agent is gone
    SILENT = "silent"  # its host was silent for one lease
    STOPPED = "stopped"  # its process is in state T
    STALLED = "stalled"  # no progress for the stall timeout while others wait
    UNREACHED = "unreached"  # its links cannot be made
    FAILED = "failed"  # its script failed
    OPERATOR = "operator"


@dataclasses.dataclass(slots=True)
class BeatGap:
    """When something was last heard, and the largest gap of the last minute (scheduling noise stretches
    the lease).
    """

    last_s: float = -1e18
    gaps: deque[tuple[float, float]] = dataclasses.field(default_factory=lambda: deque(maxlen=64))

    def heard(self, now_s: float) -> None:
        gap = now_s - self.last_s
        if 0.0 < gap < GAP_WINDOW_S and gap > self.largest(now_s):
            self.gaps.append((now_s, gap))
        self.last_s = now_s

    def largest(self, now_s: float) -> float:
        return max((gap for when, gap in self.gaps if now_s - when <= GAP_WINDOW_S), default=0.0)

    def lease(self, lease_s: float, now_s: float) -> float:
        """The patience for this sender: the job's lease, stretched to four times its largest recent gap."""
        return max(lease_s, LEASE_PER_GAP * self.largest(now_s))

    def silent(self, lease_s: float, now_s: float) -> bool:
        return now_s - self.last_s > self.lease(lease_s, now_s)


def host_silent(worker: BeatGap, agent: BeatGap | None, lease_s: float, now_s: float) -> bool:
    """Is everything that this worker's host could say overdue?  Without an agent a worker is its own
    host.
    """
    return worker.silent(lease_s, now_s) and (agent is None or agent.silent(lease_s, now_s))


def process_stopped(since_s: float | None, now_s: float) -> bool:
    """Has the process been in state T for long enough not to be a blink of job control?"""
    return since_s is not None and now_s - since_s >= STOPPED_AFTER_S
