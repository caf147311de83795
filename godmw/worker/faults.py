"""Places in a worker's life at which a test may let it die, freeze or misbehave.

The engine, the control and the data plane call `reach` with the name of the place and the job's step. In
production nothing is planted and `reach` is one comparison. What is planted is a callable: this module
knows no table, signal or process.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "first_send",
    "between_buckets",
    "results_in",
    "ready_sent",
    "ready_received",
    "committed",
    "forming",
    "forming_met",
    "forming_linked",
    "donor_sending",
    "joiner_receiving",
)

_planted: Callable[[str, int], None] | None = None


def reach(point: str, step: int) -> None:
    """This worker stands at `point` in the job's step `step`."""
    if _planted is not None:
        _planted(point, step)


def plant(fault: Callable[[str, int], None] | None) -> None:
    """Call `fault(point, step)` at every point from now on; None takes it away."""
    global _planted
    _planted = fault
