"""The exceptions of the package and the exit codes they end a command with.

Every error that a person is meant to read is a `GodmwError`: what was seen and what was expected in the
message, the next thing to do in the hint, the exit status in the code. The command line prints it and exits
with its code; a training script may catch it. Anything else that escapes is a fault of ours (INTERNAL).
This module imports nothing of the package, and no other module defines an exit code.
"""

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit status of every command and of every training process."""

    OK = 0
    FAILED = 1  # the job failed: script raised, non-finite, state lost; an audit found a fault
    USAGE = 64
    UNREACHABLE = 69  # no master answers
    INTERNAL = 70  # a fault of godmw
    RESUMABLE = 75  # ended early, can be resumed: stop, preemption, first SIGINT or SIGTERM
    VERSION = 76
    REFUSED = 77
    INTERRUPTED = 130  # second SIGINT
    TERMINATED = 143  # second SIGTERM


class GodmwError(Exception):
    """An error with an exit code and, where there is one, the next step to take.

    `message` is one line: what was seen, what was expected. `code` defaults to the class's own. `hint` is
    the next command to type or the line to change, or None.
    """

    code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, code: int | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = ExitCode(code)
        self.hint = hint

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` prints: `error`, `code` (an integer) and `hint` (or None)."""
        return {"error": self.message, "code": int(self.code), "hint": self.hint}


class UsageError(GodmwError):
    """A command, option or argument that cannot be meant."""

    code = ExitCode.USAGE


class Unreachable(GodmwError):
    """No master answers at the address, or none is known."""

    code = ExitCode.UNREACHABLE


class InternalError(GodmwError):
    """A broken promise of godmw itself."""

    code = ExitCode.INTERNAL


class Refused(GodmwError):
    """The other side understood and said no."""

    code = ExitCode.REFUSED


class VersionMismatch(GodmwError):
    """Two sides that do not speak the same version."""

    code = ExitCode.VERSION


class JobFailed(GodmwError):
    """The job is over and did not succeed."""

    code = ExitCode.FAILED


class Stopped(GodmwError):
    """The job ended early, on purpose, and can be resumed."""

    code = ExitCode.RESUMABLE


class GradientMisuse(GodmwError):
    """The training loop broke the engine's rules; raised at the offending line of the user's script."""

    code = ExitCode.FAILED
