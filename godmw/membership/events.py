"""What can happen to a machine: everything that reaches ``Coordinator.step`` or ``Participant.step``.

Events are facts, told with the time at which the shell learned them.  They carry no sockets, threads
or clocks; a ``peer`` is the shell's opaque name of one connection (a routing id), which the
coordinator gives back in ``Send``.
"""

from __future__ import annotations

import dataclasses

from godmw.protocol.fields import Checked
from godmw.protocol.messages import Committed, Header, LoopOpened


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else."""


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """A valid message arrived on the connection ``peer`` (for a participant always the master's)."""

    peer: str
    header: Header
    message: Checked


# ---------------------------------------------------------------- coordinator only


@dataclasses.dataclass(frozen=True, slots=True)
class PeerGone:
    """The connection ``peer`` was closed or reset by the other side."""

    peer: str


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerDurable:
    """Every committed operation below ``below`` that was handed to the shell is on disk."""

    below: int


@dataclasses.dataclass(frozen=True, slots=True)
class StopAsked:
    """The master's own process was asked to end the job (signal, handle)."""

    reason: str


# ---------------------------------------------------------------- participant only


@dataclasses.dataclass(frozen=True, slots=True)
class MasterGone:
    """The connection to the master was lost (it will be tried again)."""


@dataclasses.dataclass(frozen=True, slots=True)
class MasterBack:
    """A connection to the master stands; the worker registers on it."""


@dataclasses.dataclass(frozen=True, slots=True)
class OperationOpened:
    """The main thread stands at operation ``operation``, which has ``shards`` shards."""

    operation: int
    shards: int


@dataclasses.dataclass(frozen=True, slots=True)
class LinksFormed:
    """The links of ``generation`` stand on this worker."""

    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class LinksBroken:
    """A link of ``generation`` to ``peer`` broke, or could not be made, at ``stage``."""

    generation: int
    peer: str
    stage: str


@dataclasses.dataclass(frozen=True, slots=True)
class StateApplied:
    """The joiner's main thread has applied the state of the boundary before operation ``position``.

    ``records`` is what the donor's participant had as ``unrecorded()`` when that state was taken: should all
    older members die, this worker tells the master what it had not.
    """

    generation: int
    position: int
    records: tuple[Committed | LoopOpened, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ScriptEnded:
    """The user's script has ended with no loop open."""

    summary: str
    digest: bytes = b""  # of the final state
