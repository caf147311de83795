"""`events.jsonl`: what happened to a job, one line an event, in the order the master saw it.

Every line has `t` (Unix seconds), `since_s` (the master's monotonic clock since the job began) and
`kind`; then `term`, `generation`, `step`, `worker`, `reason` where they apply, then what else the kind
has to say.  A line is with the system before `write` returns; a torn last line is cut off on reopening.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from godmw.lines import LineFile, read_lines
from godmw.monitor.metrics import plain

FIRST = ("t", "since_s", "kind", "term", "generation", "step", "worker", "reason")


class EventLog:
    """The one writer of a run's events.  It has no clock: the caller says when."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)

    def write(self, kind: str, *, t: float, since_s: float, **fields: Any) -> None:
        """Append one event; fields that are None do not apply and are left out."""
        given = {"t": t, "since_s": since_s, "kind": kind, **fields}
        names = [*(name for name in FIRST if name in given), *(name for name in fields if name not in FIRST)]
        self._file.append({name: plain(given[name]) for name in names if given[name] is not None})

    def flush(self) -> None:
        """All lines outlive the machine."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """(event, offset behind it), from `offset` on; call it again with the last offset to follow the file."""
    return read_lines(path, offset)
