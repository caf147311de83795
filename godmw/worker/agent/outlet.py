"""Where the output of children goes: their logs, and what passes to the terminal.

Written by a thread of its own, because a terminal or a disk may block and an agent that stands still is
taken for dead; what does not fit into memory meanwhile is left out and said so.  A *sink* takes what
passes, ``(stream, bytes)`` with ``"out"`` or ``"err"``.  Nothing here decides whose output passes.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LIMIT_BYTES = 16 * 1024 * 1024
LINE_BYTES = 64 * 1024

Sink = Callable[[str, bytes], None]


class Terminal:
    """The sink of a plain terminal or pipe; ``all_err`` keeps stdout free for one JSON object."""

    def __init__(self, *, all_err: bool = False) -> None:
        self._streams: dict[str, BinaryIO | None] = {
            "out": sys.stderr.buffer if all_err else sys.stdout.buffer,
            "err": sys.stderr.buffer,
        }

    def __call__(self, stream: str, data: bytes) -> None:
        target = self._streams[stream]
        if target is None:
            return
        try:
            target.write(data)
            target.flush()
        except (OSError, ValueError):
            self._streams[stream] = None  # its reader has gone


class Outlet:
    """``put`` never blocks.  With ``tee`` every line that passes begins with whose it is."""

    def __init__(self, sink: Sink, *, tee: bool = False) -> None:
        self._sink, self._tee = sink, tee
        self._queue: queue.SimpleQueue[tuple[str, str, bytes, Path | None, bool] | None] = (
            queue.SimpleQueue()
        )
        self._waiting_bytes = 0
        self._left_out = 0
        self._lines: dict[tuple[str, str], bytes] = {}
        self._logs: dict[Path, BinaryIO] = {}
        self._complained: set[Path] = set()
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(
        self, worker: str, stream: str, data: bytes, *, log: Path | None = None, passes: bool = False
    ) -> None:
        """Write `data` of `worker` to its `log` and, where it passes, to the sink."""
        if self._waiting_bytes + len(data) > LIMIT_BYTES:
            self._left_out += len(data)
            return
        self._waiting_bytes += len(data)
        self._queue.put((worker, stream, data, log, passes))

    def say(self, text: str) -> None:
        """A line of the agent itself."""
        self.put("", "err", f"godmw: {text}\n".encode("utf-8", "replace"), passes=True)

    def close(self, within_s: float = 2.0) -> None:
        """Write what is waiting; give up on a terminal that does not take it."""
        self._queue.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            worker, stream, data, log, passes = item
            self._waiting_bytes -= len(data)
            if log is not None:
                self._log(log, data)
            if passes:
                self._pass(worker, stream, data)
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                self._sink(
                    "err", f"godmw: {left_out} bytes of output were left out: too much at once\n".encode()
                )
        for (worker, stream), rest in self._lines.items():
            if rest:
                self._sink(stream, self._prefix(worker) + rest + b"\n")
        for file in self._logs.values():
            file.close()

    def _log(self, path: Path, data: bytes) -> None:
        try:
            file = self._logs.get(path)
            if file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._logs[path] = open(path, "ab", buffering=0)  # noqa: SIM115 (closed at the end)
            file.write(data)
        except OSError as error:
            if path not in self._complained:
                self._complained.add(path)
                self._sink("err", f"godmw: {path} cannot be written: {error.strerror}\n".encode())

    def _pass(self, worker: str, stream: str, data: bytes) -> None:
        if not self._tee or not worker:
            self._sink(stream, data)
            return
        *lines, rest = (self._lines.get((worker, stream), b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._lines[worker, stream] = rest
        if lines:
            self._sink(stream, b"".join(self._prefix(worker) + line + b"\n" for line in lines))

    @staticmethod
    def _prefix(worker: str) -> bytes:
        return f"[{worker}] ".encode()
