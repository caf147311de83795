"""What a run directory holds and how to read it: the names of its files, and the job they describe.

Readers only: the master creates, locks and writes these files (``master/rundir.py``), commands and the
handle read them, also while the job runs. Everything is plain text or JSON; a file that is missing or torn
reads as absent. Nothing here opens a socket.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from godmw.config import JoinAddress, read_join_file
from godmw.errors import UsageError

ROOT = "godmw-runs"
LATEST = "latest"
TEXT_LIMIT_BYTES = 64 * 1024 * 1024


class RunDir:
    """The files of one job under ``path``; nothing needs to exist."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.master = self.path / "master.json"  # address, pid, http of the master that was last bound
        self.join = self.path / "join"  # the line to paste, token and all: readable by its owner only
        self.lock = self.path / "lock"
        self.journal = self.path / "journal.db"
        self.events = self.path / "events.jsonl"
        self.metrics = self.path / "metrics.jsonl"
        self.ledger = self.path / "ledger"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"
        self.summary = self.path / "summary.json"
        self.status = self.path / "status.json"  # the job's last status, written when it ends

    def address(self) -> JoinAddress | None:
        """Where its master listens or last listened, with the token; None before the first one was bound."""
        try:
            return read_join_file(self.join)
        except UsageError:
            return None

    def master_pid(self) -> int | None:
        """The process id of the master that was last bound."""
        pid = (read_json(self.master) or {}).get("pid")
        return pid if isinstance(pid, int) else None

    def living(self) -> JoinAddress | None:
        """Where the directory's master listens, if its process lives on this host."""
        pid = self.master_pid()
        if pid is None or self.summary.exists() or not os.path.exists(f"/proc/{pid}"):
            return None
        return self.address()

    def read_summary(self) -> dict[str, Any] | None:
        """The summary of a job that has ended, else None."""
        return read_json(self.summary)

    def final_status(self) -> dict[str, Any] | None:
        """The status a job ended with, else None while it runs or may be resumed."""
        return read_json(self.status) if self.summary.exists() else None

    def log(self, worker: str) -> Path:
        """Where the output of ``worker`` goes."""
        return self.logs / f"{worker}.log"

    def logged_workers(self) -> list[str]:
        """The workers that have a log, in natural order."""
        names = [path.stem for path in self.logs.glob("*.log")] if self.logs.is_dir() else []
        return sorted(names, key=lambda name: (len(name), name))


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file; None when there is none, or it is not one."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.loads(file.read(TEXT_LIMIT_BYTES))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def newest(root: str | os.PathLike[str] = ROOT) -> RunDir | None:
    """The run that was last started under ``root``: what ``latest`` links to, else the last by name."""
    base = Path(root)
    link = base / LATEST
    if link.is_dir():
        return RunDir(base / os.readlink(link)) if link.is_symlink() else RunDir(link)
    runs = sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    return RunDir(runs[-1]) if runs else None


def default_path(label: str, stamp: str, root: str | os.PathLike[str] = ROOT) -> Path:
    """A directory for a new run, not used yet: ``godmw-runs/<stamp>-<label>``."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(label).stem)[:40]
    path = Path(root) / f"{stamp}-{clean or 'job'}"
    number = 1
    while path.exists():
        number += 1
        path = Path(root) / f"{stamp}-{clean or 'job'}-{number}"
    return path
