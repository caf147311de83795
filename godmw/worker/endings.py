"""How a training script ends, and what the job is told of it.

A script ends by running off its last line, by `sys.exit`, by an exception, or early inside a loop; only the
first, with no loop open, is the end of the job. Installed once a process by `join`: a hook in front of
`sys.excepthook`, one around `sys.exit`, and one at the interpreter's exit, which is where a worker waits for
the others. Errors that are written for people are shown as such, with the user's line and no frames of ours.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from godmw.errors import ExitCode, GodmwError, GradientMisuse, InternalError, JobFailed
from godmw.worker.engine import Engine
from godmw.worker.finite import NotFinite

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_THEIRS = f"{os.sep}site-packages{os.sep}torch{os.sep}"
MAX_WORDS = 60_000
_installed: Endings | None = None


def watch() -> Endings:
    """Watch how this process ends: once a process, before anything of ours can fail."""
    global _installed
    if _installed is None:
        _installed = Endings()
    return _installed


def install(engine: Engine) -> Endings:
    """From now on the end of this process is that of `engine`; of the last one where there were several."""
    endings = watch()
    endings.engine = engine
    return endings


class Endings:
    """The hooks; `engine` None: nothing is left to say."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._pid = os.getpid()
        self._exit_asked: Any = None
        self._exit_in_loop = False
        self._leave_with: int | None = None  # the status, where Python's own would be another
        self._excepthook, sys.excepthook = sys.excepthook, self._uncaught
        self._exit, sys.exit = sys.exit, self._exiting
        atexit.register(self._at_exit)

    def _exiting(self, status: Any = None, /) -> NoReturn:
        """`sys.exit`: an exit inside a loop is no end of a job."""
        if self.engine is not None:
            self._exit_asked = status
            self._exit_in_loop = self.engine.loop is not None
        self._exit(status)

    def _uncaught(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        engine, self.engine = self.engine, None
        if os.getpid() != self._pid:
            self._excepthook(kind, value, trace)
        elif isinstance(value, GodmwError):
            text = describe(value, trace)
            sys.stderr.write(text)
            self._leave_with = int(value.code)
            if engine is not None:
                fail(engine, _name(value), self._leave_with, text)
        else:
            self._excepthook(kind, value, trace)
            text = "".join(traceback.format_exception(kind, value, trace))
            if engine is not None:
                fail(engine, "exception", int(ExitCode.FAILED), text)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        engine, self.engine = self.engine, None
        if engine is not None:
            self._leave_with = self._end(engine)
        if self._leave_with:
            _leave(self._leave_with)

    def _end(self, engine: Engine) -> int | None:
        """The script is over and nothing was raised; returns the status to leave with, None for Python's."""
        if engine.released:
            return None
        status = self._exit_asked
        if status is not None and status != 0:
            code = status if isinstance(status, int) else 1
            fail(engine, "exit", code, f"the script called sys.exit({status!r})")
            return None
        try:
            return end(engine, in_loop=self._exit_in_loop) or None
        except GodmwError as error:
            text = describe(error, None)
            sys.stderr.write(text)
            fail(engine, "early_end" if type(error) is JobFailed else _name(error), int(error.code), text)
            return int(error.code)


def end(engine: Engine, *, in_loop: bool = False) -> int:
    """The job's script has ended: wait for the others. JobFailed where a loop is open."""
    engine.guard.raise_fault()
    if in_loop or engine.loop is not None or engine.guard.step is not None:
        raise JobFailed(
            f"the script ended inside a step loop, at step {engine.progress.steps}",
            hint="leave the loop by its end, by break, or for all workers by job.stop(reason)",
        )
    engine.pay()
    engine.arrive()  # a joiner whose script had nothing left to do holds its state all the same
    summary = engine.summary() if engine.control.rank == 0 else {}
    return engine.control.ended(summary, engine.registry.digest())


def fail(engine: Engine, kind: str, code: int, text: str) -> None:
    """Last words; what is owed of the last step is said first."""
    with contextlib.suppress(Exception):
        engine.pay()
    engine.control.failed(kind, code, text[-MAX_WORDS:], engine.progress.steps)


def close(engine: Engine) -> None:
    """End the job before the process ends. JobFailed where a loop is open."""
    if _installed is not None and _installed.engine is engine:
        _installed.engine = None
    try:
        end(engine)
    except GodmwError as error:
        fail(engine, "early_end", int(error.code), describe(error, None))
        raise


def describe(error: GodmwError, trace: TracebackType | None) -> str:
    """An error for people: the user's line, what happened, what to do."""
    lines = []
    if isinstance(error, InternalError):
        lines = traceback.format_exception(type(error), error, trace)
    else:
        own = [
            frame
            for frame in traceback.extract_tb(trace)
            if not frame.filename.startswith(_OURS) and _THEIRS not in frame.filename
        ]
        lines = traceback.format_list(own[-1:])
    lines.append(f"error: {error.message}\n")
    if error.hint:
        lines.append(f"hint: {error.hint}\n")
    return "".join(lines)


def _name(error: GodmwError) -> str:
    """The kind of last words."""
    if isinstance(error, NotFinite):
        return "nonfinite"
    if isinstance(error, InternalError):
        return "engine"
    return "exception" if isinstance(error, GradientMisuse) else "mismatch"


def _leave(code: int) -> NoReturn:
    """End the process with a status that the interpreter can no longer be told."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
