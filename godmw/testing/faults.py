"""Faults as data: at this worker, at this step, at this point of its life, die or freeze.

``install`` plants a table in the calling worker process; `godmw.worker.faults.POINTS` lists the
points.  A fault acts once, and only in the incarnation it names, so that a replacement does not die
of its predecessor's fault.  When a fault acts, a line with the time is appended to its log: the
killer's clock.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from godmw.worker import faults

if TYPE_CHECKING:
    from godmw.worker.job import Job

SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "terminate": signal.SIGTERM}


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """``count``: how often the point is passed at that step before the fault acts."""

    worker: str
    step: int
    point: str
    do: str = "kill"
    incarnation: int = 1
    count: int = 0

    def __post_init__(self) -> None:
        if self.point not in faults.POINTS:
            raise ValueError(f"no point {self.point!r}; there are {', '.join(faults.POINTS)}")
        if self.do not in SIGNALS:
            raise ValueError(f"no fault {self.do!r}; there are {', '.join(SIGNALS)}")


def table(text: str) -> list[Fault]:
    """A fault table from JSON: a list of objects with the fields of `Fault`."""
    return [Fault(**row) for row in json.loads(text)]


def install(job: Job, rows: Sequence[Fault], log: Path | None = None) -> None:
    """Plant the rows that are about this job's worker.  ``step`` is compared with ``>=``: a point may be
    rare.
    """
    control = job._engine.control
    worker, incarnation = control.worker, control.incarnation
    waiting: list[Any] = [
        [row, row.count] for row in rows if (row.worker, row.incarnation) == (worker, incarnation)
    ]

    def reached(point: str, step: int) -> None:
        for entry in waiting:
            row, left = entry
            if row.point != point or step < row.step:
                continue
            if left > 0:
                entry[1] -= 1
                continue
            waiting.remove(entry)
            if log is not None:
                line = json.dumps({"t": time.time(), **dataclasses.asdict(row)})
                with log.open("a") as file:
                    file.write(line + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            os.kill(os.getpid(), SIGNALS[row.do])
            return

    faults.plant(reached if waiting else None)
