"""`metrics.jsonl`: one line for every committed step, in step order.

The columns and their order are a contract that other programs read.  Members send a step's record again
until it is acknowledged, so a step that is there already is passed over; a torn last line is cut off on
reopening. What cannot be written as a JSON number (NaN, infinities) is null.  The time columns are the
leader's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from godmw.lines import LineFile, encode, read_lines

COLUMNS = (
    "t",
    "since_s",
    "step",
    "epoch",
    "generation",
    "world_size",
    "samples",
    "loss",
    "step_s",
    "data_s",
    "compute_s",
    "exposed_comm_s",
    "wait_s",
    "redone_samples",
    "logged",
)


def plain(value: Any) -> Any:
    """`value` with what JSON has no number for replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class MetricsWriter:
    """The one writer of a run's metrics."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        self.last_step = -1
        for record, _ in read_lines(path):
            self.last_step = max(self.last_step, int(record["step"]))

    def step(self, record: dict[str, Any]) -> bool:
        """Append the line of one step from a record with any of `COLUMNS`; what it lacks is null.

        False: the step, or a later one, has its line already.  Raises ValueError for a column there is not.
        """
        unknown = set(record) - set(COLUMNS)
        if unknown:
            raise ValueError(f"no column of the metrics: {sorted(unknown)}")
        if record["step"] <= self.last_step:
            return False
        line = {name: plain(record.get(name)) for name in COLUMNS}
        line["logged"] = line["logged"] or {}
        self._file.write(encode(line))
        self.last_step = record["step"]
        return True

    def flush(self) -> None:
        """All lines outlive the machine."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> dict[str, list[Any]]:
    """The metrics as columns of equal length."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for record, _ in read_lines(path):
        for name, values in columns.items():
            values.append(record.get(name))
    return columns
