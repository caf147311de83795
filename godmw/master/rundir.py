"""The master's side of a run directory: made, locked, linked, and told where the master listens.

One master a directory: the lock is held by the process and goes with it, however it ends. ``announce``
comes after binding, so whoever reads an address finds a master there; every file is replaced whole. What
the files are called and how they are read stands in ``client/rundir.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

from godmw.client.rundir import LATEST, ROOT, RunDir
from godmw.config import JoinAddress
from godmw.errors import Refused, UsageError


class LockedRunDir:
    """The run directory that this process's master owns; ``close`` gives it free."""

    def __init__(self, path: Path) -> None:
        self.files = RunDir(path)
        self._lock = -1

    def open(self) -> None:
        """Make the directory and take its lock.  Raises UsageError, Refused where a master lives."""
        try:
            self.files.path.mkdir(parents=True, exist_ok=True)
            self.files.logs.mkdir(exist_ok=True)
            self._lock = os.open(self.files.lock, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise UsageError(f"run directory {str(self.files.path)!r}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise Refused(
                f"a master (pid {owner}) already runs on {self.files.path}",
                hint=f"godmw status {self.files.path}, or choose another --run-dir",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def announce(self, join: JoinAddress, http: str | None = None) -> None:
        """Say where the master listens, for everybody and, with the token, for the directory's owner."""
        replace(self.files.join, f"GODMW_JOIN='{join.format()}'\n", mode=0o600)
        place = {"address": join.endpoint, "pid": os.getpid(), "http": http}
        replace(self.files.master, json.dumps(place) + "\n")
        self._link_latest()

    def finish(self, status: dict[str, Any], summary: dict[str, Any]) -> None:
        """Leave the last word: the final status, then the summary, which says that the job is over."""
        replace(self.files.status, json.dumps(status) + "\n", durable=True)
        replace(self.files.summary, json.dumps(summary) + "\n", durable=True)

    def close(self) -> None:
        """Give the lock free."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _link_latest(self) -> None:
        path = self.files.path.absolute()
        if path.parent.name != ROOT:
            return
        fresh = path.parent / f".{LATEST}.{os.getpid()}"
        with contextlib.suppress(OSError):  # a file system without links has no `latest`
            fresh.symlink_to(path.name)
            os.replace(fresh, path.parent / LATEST)


def replace(path: Path, text: str, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a whole file so that a reader sees the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(fresh, path)


def port_owner(port: int) -> str:
    """Who listens on a TCP port here, as far as one may see: ``pid 17 (python train.py)``."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listeners(table, port)}
    for entry in Path("/proc").glob("[0-9]*") if inodes else ():
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in inodes for link in (entry / "fd").iterdir()):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                return f"pid {entry.name} ({_without_tokens(words.strip())[:80]})"
    return "a process of another user" if inodes else "nobody that can be seen from here"


def _listeners(table: str, port: int) -> list[str]:
    """The sockets that listen on ``port``, as ``/proc/PID/fd`` shows them."""
    try:
        rows = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    fields = [row.split() for row in rows]
    listening = [row for row in fields if row[3] == "0A"]
    return [f"socket:[{row[9]}]" for row in listening if int(row[1].rpartition(":")[2], 16) == port]


def _without_tokens(words: str) -> str:
    return re.sub(r"(godmw://[^/ ]*/)\S+", r"\1…", words)
