"""What an operator says to the master, and the one answer to it.

Part of the table in ``messages``, in a file of its own because nobody in a job's own conversation
needs it.  Every request carries the job's token; a Reply names the request it answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from godmw.config import MAX_WORKERS
from godmw.protocol.fields import Checked, Int, Str
from godmw.protocol.terms import Ident, Number, Text, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Checked):
    """Ask for the state of the job."""

    token: Token = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Checked):
    """Set the target number of workers."""

    token: Token = field(repr=False)
    target: Annotated[int, Int(0, MAX_WORKERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Checked):
    """Let one worker leave at the next boundary and lower the target by one."""

    token: Token = field(repr=False)
    worker: Ident


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict(Checked):
    """Remove one worker without its consent and lower the target by one."""

    token: Token = field(repr=False)
    worker: Ident


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(Checked):
    """Send a signal to a worker through its agent; an exit it causes is not counted against the restart
    budget.
    """

    token: Token = field(repr=False)
    worker: Ident
    signal: Annotated[int, Int(1, 64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Checked):
    """Hold all members at the next boundary."""

    token: Token = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Checked):
    """End a pause that an operator asked for."""

    token: Token = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Checked):
    """End the job early (exit 75)."""

    token: Token = field(repr=False)
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(Checked):
    """Send a Reply for every event from now on, until the connection goes."""

    token: Token = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Checked):
    """The answer to an admin message: JSON in ``body``; ``code`` 0 or an exit code with ``error`` and
    ``hint`` in it.
    """

    request: Number  # the sequence number it answers
    code: Annotated[int, Int(0, 255)]
    body: Annotated[str, Str(4 * 1024 * 1024)]
