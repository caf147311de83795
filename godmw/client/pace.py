"""How fast a rehearsed job may go, and where it ends: a small file that one process writes and workers
read.

`godmw rehearse` needs time for its events in a script whose steps take milliseconds, and an end after a
few steps of a script that would train for days. The file holds two numbers: how many steps may be begun,
and after how many the job ends. A worker that is held looks again until it may go on. A file that nobody has
written for `FORGOTTEN_S` holds nobody, one that is gone ends the job: nothing waits for a dead rehearsal.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

POLL_S = 0.002
FORGOTTEN_S = 20.0
REASON = "the rehearsal is over"


class Pace:
    """`path` is given to the workers as GODMW_PACE; the rehearsal calls `set`, their engine the rest."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def set(self, may: int, limit: int) -> None:
        """`may` steps can be begun; the one that makes it `limit` is the job's last."""
        fresh = self.path.with_name(self.path.name + ".part")
        fresh.write_text(f"{may} {limit}", encoding="ascii")
        os.replace(fresh, self.path)

    def read(self) -> tuple[int, int]:
        """(may, limit); a file that is gone ends the job, one that is left alone holds nobody."""
        try:
            may, limit = map(int, self.path.read_text(encoding="ascii").split())
            forgotten = time.time() - self.path.stat().st_mtime > FORGOTTEN_S
        except (OSError, ValueError):
            return 0, 0
        return (limit if forgotten else may), limit

    def over(self, steps: int) -> bool:
        """Whether `steps` committed steps are all that the job should have."""
        return steps >= self.read()[1]

    def wait(self, step: int) -> bool:
        """Wait until the job's step number `step` (from 0) may begin; returns whether it is the last."""
        while True:
            may, limit = self.read()
            if step < may or step >= limit:
                return step + 1 >= limit
            time.sleep(POLL_S)
