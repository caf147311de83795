"""What a person sees while `godmw run` works: one live line on a terminal, plain lines in a pipe.

Reads the run's own files (metrics and events), never the job; runs in a thread of its own, so that a
terminal that blocks stops nobody.  On a terminal everything that passes goes through rich, above the live
line; rich is imported there only.  It decides nothing and keeps no file open.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
from typing import Any

from godmw.client.rundir import RunDir
from godmw.lines import BrokenLine, read_lines
from godmw.worker.agent.outlet import Sink, Terminal

WINDOW_S = 5.0  # samples/s are those of the last seconds
SHORTEST_S = 0.2  # less says nothing about speed
PLAIN_EVERY_S = 3.0
LOOK_EVERY_S = 0.25
TRACEBACK = b"Traceback (most recent call last)"


class Story:
    """What the files say so far; ``look`` reads on from where it stopped."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._metrics_at = _size(run, "metrics")
        self._events_at = _size(run, "events")
        self._recent: collections.deque[tuple[float, int]] = collections.deque()
        self._began_s = time.monotonic()
        self._prepared = 0
        self.last: dict[str, Any] | None = None

    def look(self) -> list[str]:
        """Take what is new; returns the events that a person should read, as lines."""
        for line, end in _lines(self._run, "metrics", self._metrics_at):
            self.last, self._metrics_at = line, end
            self._recent.append((float(line["t"]), int(line["samples"])))
        while len(self._recent) > 2 and self._recent[-1][0] - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        told = []
        for event, end in _lines(self._run, "events", self._events_at):
            self._events_at = end
            self._prepared += event.get("kind") == "prepared"
            text = told_as(event)
            if text:
                told.append(text)
        return told

    @property
    def rate(self) -> float:
        """Samples a second, lately."""
        if len(self._recent) < 2:
            return 0.0
        seconds = self._recent[-1][0] - self._recent[0][0]
        return (
            sum(samples for _, samples in list(self._recent)[1:]) / seconds if seconds >= SHORTEST_S else 0.0
        )

    def line(self) -> str:
        """Step, speed, loss and members, in one line."""
        last = self.last
        if last is None:
            ready = f"{self._prepared} worker{'s' if self._prepared != 1 else ''} ready, "
            return f"starting: {ready if self._prepared else ''}{time.monotonic() - self._began_s:.0f} s"
        loss = last.get("loss")
        shown = "-" if loss is None else f"{loss:.4f}"
        members = last["world_size"]
        return (
            f"step {last['step'] + 1}  epoch {last['epoch']}  loss {shown}  {self.rate:,.0f} samples/s  "
            f"{members} worker{'s' if members != 1 else ''}"
        )


def told_as(event: dict[str, Any]) -> str | None:
    """The line for an event, None for those that nobody waits for."""
    worker, reason = event.get("worker", ""), event.get("reason", "")
    match event.get("kind"):
        case "verdict":
            return f"{worker} is out: {reason}"
        case "formed":
            members = event.get("members") or []
            return f"generation {event.get('number', event.get('generation'))}: {', '.join(members)}"
        case "drain":
            return f"{worker} is drained: {reason}"
        case "target" if "brings" not in reason:
            return f"{event.get('target')} workers wanted: {reason}"
        case "notice" if not reason.startswith("paused: "):  # its phase says so
            return str(reason)
        case "phase" if event.get("phase") in ("PAUSED",):
            return f"paused: {reason}"
        case _:
            return None


class Progress:
    """The thread that shows a run.  ``sink`` is where an agent passes its workers' output."""

    def __init__(self, run: RunDir, *, as_json: bool) -> None:
        self._story = Story(run)
        self._terminal = Terminal(all_err=as_json)
        self._live: Any = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._lines: dict[str, bytes] = {}
        self.passed_traceback = False

    def start(self) -> None:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live("", console=console, auto_refresh=False, transient=True)
            self._live.start()
        self._thread.start()

    def stop(self, within_s: float = 2.0) -> None:
        """Show what is new a last time; give up on a terminal that does not take it."""
        self._ended.set()
        self._thread.join(within_s)
        if self._live is not None and not self._thread.is_alive():
            self._live.stop()

    @property
    def sink(self) -> Sink:
        return self._pass

    def _show(self) -> None:
        shown_s, shown = time.monotonic(), ""
        while True:
            last = self._ended.wait(LOOK_EVERY_S)
            for text in self._story.look():
                self._say(text)
            line = self._story.line()
            if self._live is not None:
                if line != shown or last:
                    shown = line
                    self._live.update(_one_line(line), refresh=True)
            elif (
                self._story.last is not None
                and line != shown
                and (last or time.monotonic() - shown_s >= PLAIN_EVERY_S)
            ):
                shown_s, shown = time.monotonic(), line
                self._say(line)
            if last:
                return

    def _say(self, text: str) -> None:
        self._pass("err", f"godmw: {text}\n".encode("utf-8", "replace"))

    def _pass(self, stream: str, data: bytes) -> None:
        self.passed_traceback |= stream == "err" and TRACEBACK in data
        if self._live is None or not (sys.stdout if stream == "out" else sys.stderr).isatty():
            self._terminal(stream, data)
            return
        from rich.text import Text

        *lines, self._lines[stream] = (self._lines.get(stream, b"") + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
            self._live.console.print(Text.from_ansi(text), soft_wrap=True)


def _one_line(text: str) -> Any:
    """For rich: quiet, and cut at the terminal's edge instead of wrapped, which would flicker."""
    from rich.text import Text

    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _size(run: RunDir, name: str) -> int:
    path = getattr(run, name)
    return path.stat().st_size if path.exists() else 0


def _lines(run: RunDir, name: str, offset: int) -> list[tuple[dict[str, Any], int]]:
    """New whole lines; a broken one is the audit's matter, not the progress line's."""
    found: list[tuple[dict[str, Any], int]] = []
    with contextlib.suppress(BrokenLine, OSError):
        found.extend(read_lines(getattr(run, name), offset))
    return found
