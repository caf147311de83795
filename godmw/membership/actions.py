"""What a machine wants done: the list that ``step`` returns, performed in order by the shell.

A ``Record`` must be durable before any later ``Send`` of the same or a later list leaves; that is the
whole contract between deciding and performing.  Every action carries plain values; performers are one
match, no decisions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from godmw.membership.records import JournalRecord
from godmw.protocol.fields import Checked
from godmw.protocol.messages import Committed, LoopOpened


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """Give ``message`` to the connection ``peer`` (for a participant always the master's)."""

    peer: str
    message: Checked


# ---------------------------------------------------------------- coordinator only


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Append ``record`` to the journal, durably, before anything that follows is sent."""

    record: JournalRecord


@dataclasses.dataclass(frozen=True, slots=True)
class WriteCommitted:
    """Append one committed operation to the ledger and, for a step, a line to the metrics.  In operation
    order.
    """

    record: Committed
    redone_shards: tuple[int, ...]  # of members that died in it; their samples are in the table


@dataclasses.dataclass(frozen=True, slots=True)
class WriteLoop:
    """Append a loop's description to the ledger."""

    record: LoopOpened


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """One line of ``events.jsonl``; ``fields`` are JSON values."""

    kind: str
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The reply to an admin request; ``body`` is a JSON object."""

    peer: str
    request: int
    code: int
    body: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class EndJob:
    """Nothing is left to wait for: write the summary, close, exit with ``code``."""

    outcome: str
    code: int
    reason: str


# ---------------------------------------------------------------- participant only


@dataclasses.dataclass(frozen=True, slots=True)
class Abandon:
    """Give up the links of ``generation`` and everything they own; never blocks."""

    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class FormLinks:
    """Make the links of ``generation``; tell ``LinksFormed`` or ``LinksBroken``."""

    generation: int
    rank: int
    members: tuple[tuple[str, str], ...]  # (worker, address) in rank order


@dataclasses.dataclass(frozen=True, slots=True)
class FetchState:
    """Fetch the state for ``generation`` from the first donor that serves it, then apply it:
    ``StateApplied``.
    """

    generation: int
    donors: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """At this boundary keep the state for the joiners of ``generation`` until ``DropSnapshot``."""

    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class DropSnapshot:
    """``generation`` has formed, or was given up: what was kept for its joiners, or for older ones', may
    go.
    """

    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """The process ends: ``code`` and one line."""

    code: int
    reason: str
    hint: str


@dataclasses.dataclass(frozen=True, slots=True)
class Say:
    """A line for the person at the terminal."""

    text: str
