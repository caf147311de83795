"""The table of everything godmw's processes say to each other.

One row a kind: class, number (append-only, never reused), direction, what may answer it, size limit.  Field
types and bounds sit in the class as ``Annotated`` specs; the wire, the README of this folder, the golden
bytes and the tests are all derived from this table.  Messages are frozen and checked when built.  Nothing
here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from godmw.config import MAX_WORKERS
from godmw.protocol.fields import Bytes, Checked, Int, Seq, Str, Struct
from godmw.protocol.requests import Drain as Drain
from godmw.protocol.requests import Evict as Evict
from godmw.protocol.requests import Kill as Kill
from godmw.protocol.requests import Pause as Pause
from godmw.protocol.requests import Reply as Reply
from godmw.protocol.requests import Resume as Resume
from godmw.protocol.requests import Scale as Scale
from godmw.protocol.requests import Status as Status
from godmw.protocol.requests import Stop as Stop
from godmw.protocol.requests import Subscribe as Subscribe
from godmw.protocol.terms import MAX_SHARDS as MAX_SHARDS
from godmw.protocol.terms import VERSION as VERSION
from godmw.protocol.terms import Child as Child
from godmw.protocol.terms import (
    Digest,
    Flag,
    Ident,
    LongText,
    Name,
    Number,
    Numbers,
    Real,
    Shards,
    SignedNumber,
    Text,
    Token,
)
from godmw.protocol.terms import Direction as Direction
from godmw.protocol.terms import Header as Header
from godmw.protocol.terms import Member as Member
from godmw.protocol.terms import Share as Share

# ---------------------------------------------------------------- worker -> master


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Checked):
    """A worker is there: new (generation 0) or, to a restarted master, with its past."""

    token: Token = field(repr=False)
    agent: Ident
    host: Name
    pid: Number
    address: Annotated[str, Str(256)]
    generation: Number  # 0: none, a worker without state
    position: SignedNumber  # committed operations; -1 without state
    abort: Number  # highest Abort answered, 0: none
    held: Numbers  # plans held and not yet entered
    prepared: Flag  # has passed its checks and waits
    ended: Flag  # its script has ended with no loop open


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Checked):
    """The joiner's script stands at its first operation; what it brings must equal what the job has."""

    settings: Digest  # job settings of the first loop
    model: Digest  # names, shapes and dtypes of all registered state
    data: Digest  # length and digests of 8 fixed samples
    shards: Annotated[int, Int(0, MAX_SHARDS)]  # S of the first loop
    seed: SignedNumber  # -1: takes the job's
    detail: Text  # the same in words, for the error of whoever differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Checked):
    """Sent every beat by the control thread.  ``idle_s`` is how long ``position`` and ``progress`` have
    stood.
    """

    position: SignedNumber
    progress: Number
    phase: Name
    where: Text  # file:line of the main thread
    waits_for: Ident
    idle_s: Real
    limit_s: Real  # job.busy: patience asked for, 0: none
    applied: Number  # highest Recorded seen


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBroken(Checked):
    """A link to ``peer`` broke or could not be made in ``generation`` of the header."""

    peer: Ident
    stage: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Checked):
    """The answer to an Abort, frozen: from here the old generation is not contributed to, made ready or
    committed.  Said again when the main thread has come to its next operation: ``standing``.
    """

    abort: Number
    generation: Number
    position: SignedNumber
    whole: Flag
    shards: Annotated[int, Int(0, MAX_SHARDS)]  # S of the operation at ``position``; 0: not opened yet
    begun: Shards
    assigned: Shards
    held: Numbers
    ended: Flag
    standing: Flag  # the main thread has come to the operation at ``position``, and not only on its way
    enterable: Flag  # a joiner's script can stand there, too: it is no operation in the body of a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHeld(Checked):
    """The worker holds the announced plan ``number``."""

    number: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed(Checked):
    """The worker has entered ``number``, its links stand."""

    number: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Checked):
    """One committed operation; any member's record is enough."""

    operation: Number
    generation: Number
    kind: Name  # step | gather | reduce
    loop: Number
    epoch: Number
    step: SignedNumber  # index of the job's step, -1 for other operations
    table: Annotated[bytes, Bytes(8 * 8 * (MAX_SHARDS + 1))]  # int64 rows, see data/table.py
    metrics: Annotated[str, Str(16384)]  # JSON: t, loss, logged, step_s, …
    wall_s: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOpened(Checked):
    """What a loop's samples are: written once into the ledger, so that an audit can work them out again."""

    loop: Number
    spec: Annotated[str, Str(16384)]  # JSON of data.indices.LoopSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Checked):
    """The worker's script has ended with no loop open at ``position``; ``confirmed`` after Finish was
    heard.
    """

    position: SignedNumber
    confirmed: Flag
    digest: Digest  # of the final state; equal on all members
    summary: Annotated[str, Str(16384)]  # JSON, the leader's: weights_sha256, loss_first, …


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Checked):
    """The worker goes: drained, out, or asked to stop."""

    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Checked):
    """The worker's script raised, ended early or exited; last words."""

    kind: Name  # exception | exit | early_end | nonfinite | engine | mismatch
    code: Annotated[int, Int(-255, 255)]
    traceback: LongText
    step: SignedNumber


# ---------------------------------------------------------------- master -> worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Checked):
    """Registered under this term; what the job expects of the worker."""

    worker: Ident
    incarnation: Number
    run_dir: Text
    seed: SignedNumber  # -1: the first leader's
    lease_s: Real
    beat_s: Real
    orphan_s: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Checked):
    """Not taken; the process says ``reason`` and ``hint`` and exits with ``code``."""

    code: Annotated[int, Int(0, 255)]
    reason: Text
    hint: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Checked):
    """Stop the generation at once and answer with Stopped."""

    number: Number
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Checked):
    """A numbered membership.  Planned: entered at the boundary that ``ready`` agrees on.  Unplanned:
    entered at once.
    """

    number: Number
    planned: Flag
    members: Annotated[tuple[Member, ...], Seq(Struct(Member), MAX_WORKERS)]
    donors: Annotated[tuple[Member, ...], Seq(Struct(Member), MAX_WORKERS)]  # empty: no joiner
    start: SignedNumber  # unplanned: the first operation; -1 planned
    shards: Annotated[int, Int(0, MAX_SHARDS)]  # S of ``start`` as reported; 0: not opened by anybody
    added: Annotated[tuple[Share, ...], Seq(Struct(Share), MAX_WORKERS)]
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFormed(Checked):
    """Every member has formed ``number``: kept snapshots may go, drained workers may leave."""

    number: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Checked):
    """The ledger is durable for every operation below ``below``."""

    below: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Checked):
    """Something a person should read: who is waited for, and what it was last doing."""

    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Checked):
    """The job has ended; leave with ``code``."""

    outcome: Name  # finished | stopped | failed
    code: Annotated[int, Int(0, 255)]
    reason: Text


# ---------------------------------------------------------------- agent <-> master


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello(Checked):
    """An agent is there with its slots; ``children`` are the workers it runs already."""

    token: Token = field(repr=False)
    host: Name
    pid: Number
    slots: Annotated[int, Int(0, MAX_WORKERS)]
    children: Annotated[tuple[Child, ...], Seq(Struct(Child), MAX_WORKERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBeat(Checked):
    """What the agent sees of its children, every beat and at once on change."""

    children: Annotated[tuple[Child, ...], Seq(Struct(Child), MAX_WORKERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExited(Checked):
    """A worker process is gone.  ``signal`` 0: it exited with ``code``."""

    worker: Ident
    incarnation: Number
    code: Annotated[int, Int(-255, 255)]
    signal: Annotated[int, Int(0, 64)]
    last_words: LongText


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWelcome(Checked):
    """The agent is registered under this term."""

    run_dir: Text
    lease_s: Real
    beat_s: Real
    orphan_s: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Checked):
    """Start a worker process in a free slot."""

    worker: Ident
    incarnation: Number
    slot: Annotated[int, Int(0, MAX_WORKERS)]
    rank_hint: Number  # snapshot for RANK and LOCAL_RANK
    world_hint: Number  # snapshot for WORLD_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate(Checked):
    """Send ``signal`` to a worker's process group; 9 for one that is out."""

    worker: Ident
    incarnation: Number
    signal: Annotated[int, Int(1, 64)]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of message."""

    number: int
    cls: type[Checked]
    direction: Direction
    replies: tuple[type[Checked], ...] = ()
    limit_bytes: int = 64 * 1024


_W, _M = Direction.WORKER_TO_MASTER, Direction.MASTER_TO_WORKER
_AM, _MA = Direction.AGENT_TO_MASTER, Direction.MASTER_TO_AGENT
_PM, _MP = Direction.PROCESS_TO_MASTER, Direction.MASTER_TO_PROCESS
_DM, _MD = Direction.ADMIN_TO_MASTER, Direction.MASTER_TO_ADMIN
_MIB = 1024 * 1024

MESSAGES: tuple[Row, ...] = (
    Row(1, Join, _W, (Welcome, Refused)),
    Row(2, Prepared, _W, (Refused,)),
    Row(3, Heartbeat, _W),
    Row(4, LinkBroken, _W),
    Row(5, Stopped, _W, (), _MIB),
    Row(6, PlanHeld, _W),
    Row(7, Formed, _W),
    Row(8, Committed, _W, (Recorded,), 8 * _MIB),
    Row(9, LoopOpened, _W),
    Row(10, Finished, _W, (Finish,)),
    Row(11, Leave, _PM),
    Row(12, Failed, _W, (), 128 * 1024),
    Row(20, Welcome, _M),
    Row(21, Refused, _MP),
    Row(22, Abort, _M, (Stopped,)),
    Row(23, Plan, _M, (PlanHeld, Formed), 2 * _MIB),
    Row(24, GenerationFormed, _M),
    Row(25, Recorded, _M),
    Row(26, Notice, _MP),
    Row(27, Finish, _MP, (Finished,)),
    Row(40, AgentHello, _AM, (AgentWelcome, Refused), 256 * 1024),
    Row(41, AgentBeat, _AM, (), 256 * 1024),
    Row(42, ChildExited, _AM, (), 128 * 1024),
    Row(50, AgentWelcome, _MA),
    Row(51, Launch, _MA),
    Row(52, Terminate, _MA),
    Row(60, Status, _DM, (Reply,)),
    Row(61, Scale, _DM, (Reply,)),
    Row(62, Drain, _DM, (Reply,)),
    Row(63, Evict, _DM, (Reply,)),
    Row(64, Kill, _DM, (Reply,)),
    Row(65, Pause, _DM, (Reply,)),
    Row(66, Resume, _DM, (Reply,)),
    Row(67, Stop, _DM, (Reply,)),
    Row(68, Subscribe, _DM, (Reply,)),
    Row(80, Reply, _MD, (), 8 * _MIB),
)

BY_NUMBER: dict[int, Row] = {row.number: row for row in MESSAGES}
BY_CLASS: dict[type, Row] = {row.cls: row for row in MESSAGES}
