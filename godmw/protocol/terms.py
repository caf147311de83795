"""What messages are made of: numbers and texts with their bounds, the header, and the nested records.

The leaves of the table in ``messages``; a bound is written here once and holds wherever the term is
used.  No kind of message and no direction of talk is known here beyond their names.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from godmw.protocol.fields import Bool, Bytes, Checked, Float, Id, Int, Seq, Str

VERSION = 1
MAX_SHARDS = 65536

Number = Annotated[int, Int()]
SignedNumber = Annotated[int, Int(-1)]
Shards = Annotated[tuple[int, ...], Seq(Int(0, MAX_SHARDS - 1), MAX_SHARDS)]
Numbers = Annotated[tuple[int, ...], Seq(Int(), 64)]
Ident = Annotated[str, Id()]
Name = Annotated[str, Str(64)]
Text = Annotated[str, Str(4096)]
LongText = Annotated[str, Str(65536)]
Token = Annotated[str, Str(128)]
Flag = Annotated[bool, Bool()]
Real = Annotated[float, Float()]
Digest = Annotated[bytes, Bytes(64)]


class Direction(enum.Enum):
    """Who says it to whom."""

    WORKER_TO_MASTER = "worker → master"
    MASTER_TO_WORKER = "master → worker"
    AGENT_TO_MASTER = "agent → master"
    MASTER_TO_AGENT = "master → agent"
    PROCESS_TO_MASTER = "worker or agent → master"
    MASTER_TO_PROCESS = "master → worker or agent"
    ADMIN_TO_MASTER = "admin → master"
    MASTER_TO_ADMIN = "master → admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Checked):
    """Rides on every message.  ``sender`` is a worker, agent or admin id, empty for the master."""

    version: Annotated[int, Int(0, 65535)]
    kind: Annotated[int, Int(0, 65535)]
    job: Ident
    term: Number
    generation: Number
    sender: Ident
    incarnation: Number
    sequence: Number


# ---------------------------------------------------------------- nested records


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Checked):
    """One member of a generation in rank order; ``address`` is its peer endpoint, ``host:port``."""

    worker: Ident
    incarnation: Number
    address: Annotated[str, Str(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Checked):
    """The shards a plan adds to one worker for an interrupted operation (its begun and assigned ones stay
    its own).
    """

    worker: Ident
    shards: Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Checked):
    """A worker process as its agent sees it; ``process`` is the state letter of ``/proc/PID/stat``."""

    worker: Ident
    incarnation: Number
    pid: Number
    process: Annotated[str, Str(1)]
