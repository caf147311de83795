"""What the master must remember over its own death: the kinds of journal record.

Each is written before the thing it describes is said (DESIGN 4, "Master restart").  Records are
frozen, hold plain values only and turn into JSON objects and back; the journal on disk
(``master/journal.py``) knows nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True, slots=True)
class JournalRecord:
    """Base of all records; ``kind`` is the name on disk."""

    kind: ClassVar[str] = ""


@dataclasses.dataclass(frozen=True, slots=True)
class TermBegan(JournalRecord):
    """A master started on this journal and listens at ``address``."""

    kind: ClassVar[str] = "term"
    term: int
    address: str
    job: str
    token: str


@dataclasses.dataclass(frozen=True, slots=True)
class JobSet(JournalRecord):
    """Bounds and target of the job, whenever they change."""

    kind: ClassVar[str] = "job"
    minimum: int
    maximum: int  # 0: not known yet
    target: int
    paused: bool


@dataclasses.dataclass(frozen=True, slots=True)
class OfferSet(JournalRecord):
    """What the first worker brought and every later one must equal."""

    kind: ClassVar[str] = "offer"
    settings: str  # hex digests
    model: str
    data: str
    shards: int
    seed: int
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSeen(JournalRecord):
    """A worker's incarnation and where it runs."""

    kind: ClassVar[str] = "worker"
    worker: str
    incarnation: int
    agent: str
    slot: int
    host: str
    pid: int


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerGone(JournalRecord):
    """A worker's incarnation is dead, evicted or has left, with the evidence."""

    kind: ClassVar[str] = "gone"
    worker: str
    incarnation: int
    verdict: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class DrainAsked(JournalRecord):
    """A member is to leave at the next boundary that a plan can be made for."""

    kind: ClassVar[str] = "drain"
    worker: str
    incarnation: int


@dataclasses.dataclass(frozen=True, slots=True)
class AbortMade(JournalRecord):
    """An Abort round with this number was begun."""

    kind: ClassVar[str] = "abort"
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class PlanMade(JournalRecord):
    """A plan was made; ``members`` are (worker, incarnation, address) in rank order, ``added`` (worker,
    shards).
    """

    kind: ClassVar[str] = "plan"
    number: int
    planned: bool
    members: tuple[tuple[str, int, str], ...]
    joiners: tuple[str, ...]
    start: int
    shards: int
    added: tuple[tuple[str, tuple[int, ...]], ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationWas(JournalRecord):
    """Every member of generation ``number`` has formed it."""

    kind: ClassVar[str] = "formed"
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class FinishMade(JournalRecord):
    """The end of the job was decided."""

    kind: ClassVar[str] = "finish"
    outcome: str
    code: int
    reason: str
    summary: str


@dataclasses.dataclass(frozen=True, slots=True)
class JobOver(JournalRecord):
    """Every member confirmed Finish, or its exit was seen: the run directory is finished."""

    kind: ClassVar[str] = "over"


KINDS: dict[str, type[JournalRecord]] = {
    cls.kind: cls
    for cls in (
        TermBegan,
        JobSet,
        OfferSet,
        WorkerSeen,
        WorkerGone,
        DrainAsked,
        AbortMade,
        PlanMade,
        GenerationWas,
        FinishMade,
        JobOver,
    )
}


def to_json(item: JournalRecord) -> dict[str, Any]:
    """A record as a JSON object with its kind under ``kind``."""
    return {"kind": item.kind, **dataclasses.asdict(item)}


def from_json(data: dict[str, Any]) -> JournalRecord:
    """The record ``to_json`` described.  Raises ValueError on an unknown kind or wrong fields."""
    cls = KINDS.get(data.get("kind", ""))
    if cls is None:
        raise ValueError(f"unknown journal record {data.get('kind')!r}")
    fields = {key: value for key, value in data.items() if key != "kind"}
    if set(fields) != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"journal record {cls.kind!r} with the wrong fields: {sorted(fields)}")
    return cls(**{key: _tuples(value) for key, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value
