"""The journal: what the master must remember over its own death, on disk before it is said.

One SQLite file in WAL mode, one row a record, in the order of the decisions; ``commit`` returns when
everything appended is durable. Records pass through ``membership.records`` and mean nothing here.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from godmw.errors import GodmwError
from godmw.membership.records import JournalRecord, from_json, to_json

FORMAT = 1


class Journal:
    """Open with ``open``; one writer, guarded by the run directory's lock."""

    def __init__(self, path: Path, wall_s: Callable[[], float]) -> None:
        self._path = path
        self._wall_s = wall_s
        self._dirty = False
        self.began_s = 0.0  # Unix time of the first record: when the job began

    def open(self) -> list[JournalRecord]:
        """Everything recorded so far.  Raises GodmwError when the file is no journal of ours."""
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # it holds the token
        self._file = sqlite3.connect(self._path, isolation_level=None)
        try:
            return self._read()
        except (sqlite3.DatabaseError, ValueError) as error:
            self._file.close()
            raise GodmwError(
                f"{self._path} cannot be read as a journal: {error}",
                hint="start the job in another run directory",
            ) from error

    def append(self, record: JournalRecord) -> None:
        """Add ``record``; durable after ``commit``."""
        if not self._dirty:
            self._file.execute("BEGIN")
            self._dirty = True
        now_s = self._wall_s()
        self.began_s = self.began_s or now_s
        line = json.dumps(to_json(record), separators=(",", ":"))
        self._file.execute("INSERT INTO records (t, record) VALUES (?, ?)", (now_s, line))

    def commit(self) -> None:
        """Return when everything appended is on disk; nothing to do when nothing was."""
        if self._dirty:
            self._file.execute("COMMIT")
            self._dirty = False

    def close(self) -> None:
        """Commit and close."""
        self.commit()
        self._file.close()

    def _read(self) -> list[JournalRecord]:
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")
        (found,) = self._file.execute("PRAGMA user_version").fetchone()
        if found not in (0, FORMAT):
            raise ValueError(f"format {found}, this godmw writes {FORMAT}")
        self._file.execute(f"PRAGMA user_version = {FORMAT}")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS records"
            " (n INTEGER PRIMARY KEY, t REAL NOT NULL, record TEXT NOT NULL)"
        )
        rows = self._file.execute("SELECT t, record FROM records ORDER BY n").fetchall()
        self.began_s = rows[0][0] if rows else 0.0
        return [from_json(json.loads(line)) for _, line in rows]
