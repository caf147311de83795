"""Files of one JSON object a line: one process appends, anybody reads at any time, whole after a crash.

A line counts when its newline is there.  A writer that is killed leaves at most a torn last line: readers
stop before it, and the next writer cuts it off.  Nothing here knows what a line means or when it must be
durable; `append` hands it to the system at once, so that the death of the process loses nothing, and
`sync` makes it outlive the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 65536


class BrokenLine(ValueError):
    """A finished line of a file is not a JSON object."""


def encode(record: dict[str, Any]) -> bytes:
    """One line, newline included; keys in the order they were given.  NaN and infinities raise
    ValueError.
    """
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


class LineFile:
    """The one writer of a file of lines.  Opening creates it, and repairs its torn tail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.repaired = self._repair()

    def _repair(self) -> int:
        """Cut off what the last writer did not finish; returns how many bytes went."""
        size = end = os.fstat(self._fd).st_size
        while end:
            start = max(0, end - _CHUNK_BYTES)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)
        return size - end

    def append(self, record: dict[str, Any]) -> None:
        self.write(encode(record))

    def write(self, data: bytes) -> None:
        """Append finished lines."""
        while data:
            data = data[os.write(self._fd, data) :]

    def sync(self) -> None:
        """Everything appended so far outlives the machine."""
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def raw_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """(finished line without its newline, offset behind it), from `offset` on."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line[:-1], offset


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """(record, offset behind it) of every finished line; nothing when there is no such file.

    Raises BrokenLine, naming file and offset, for a finished line that is not a JSON object.
    """
    if not path.exists():
        return
    for line, end in raw_lines(path, offset):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise BrokenLine(f"{path}: the line that ends at byte {end} is not a JSON object")
        yield record, end
