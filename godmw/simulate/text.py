"""How a transcript says things: one short line a message, shards as ranges.

Nothing secret is shown, and nothing that is noise: tokens, addresses and what every message of a kind has.
Knows messages and journal records by their fields, and no process.
"""

from __future__ import annotations

from collections.abc import Iterable

from godmw.membership import records as rec
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked, specs

BEATS = (msg.Heartbeat, msg.AgentBeat, msg.Recorded)
_HIDDEN = frozenset(
    {"token", "address", "host", "pid", "lease_s", "beat_s", "orphan_s", "run_dir", "wall_s", "table"}
)
_ONLY = {
    msg.Committed: ("operation", "generation"),
    msg.Prepared: ("shards", "seed"),
    msg.Plan: ("number", "planned", "members", "donors", "start", "added", "reason"),
    msg.AgentHello: ("slots", "children"),
    msg.Launch: ("worker", "incarnation"),
    msg.Finish: ("outcome", "code"),
    msg.Finished: ("position", "confirmed"),
    msg.Stopped: (
        "abort",
        "generation",
        "position",
        "whole",
        "begun",
        "assigned",
        "held",
        "ended",
        "standing",
        "enterable",
    ),
}


def numbers(values: Iterable[int]) -> str:
    """``0-2,5`` for 0, 1, 2, 5; a dash for none."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "-"


def _field(value: object) -> str:
    match value:
        case msg.Member(worker=worker, incarnation=incarnation):
            return f"{worker}#{incarnation}"
        case msg.Child(worker=worker, incarnation=incarnation, process=process):
            return f"{worker}#{incarnation}:{process}"
        case msg.Share(worker=worker, shards=shards):
            return f"{worker}:{numbers(shards)}"
        case tuple() if value and all(type(item) is int for item in value):
            return numbers(value)
        case tuple():
            return "[" + " ".join(_field(item) for item in value) + "]"
        case str():
            return value if value and " " not in value else f'"{value}"'
    return str(value)


def brief(message: Checked) -> str:
    """A message as a transcript shows it: its kind and the fields that say something."""
    words = [type(message).__name__]
    for name in _ONLY.get(type(message), tuple(specs(type(message)))):
        value = getattr(message, name)
        if name in _HIDDEN or value is False or value in ("", ()):
            continue
        words.append(name if value is True else f"{name}={_field(value)}")
    return " ".join(words)


def journalled(record: rec.JournalRecord) -> str:
    """A journal record as a transcript shows it."""
    match record:
        case rec.PlanMade(number=number, planned=planned, members=members, start=start):
            how = "planned" if planned else f"from operation {start}"
            return f"plan {number} of {' '.join(f'{m[0]}#{m[1]}' for m in members)}, {how}"
        case rec.AbortMade(number=number):
            return f"abort {number}"
        case rec.GenerationWas(number=number):
            return f"generation {number} has formed"
        case rec.WorkerGone(worker=worker, incarnation=incarnation, verdict=verdict, reason=reason):
            return f"{worker}#{incarnation} is gone ({verdict}: {reason})"
        case rec.DrainAsked(worker=worker, incarnation=incarnation):
            return f"{worker}#{incarnation} is to drain"
        case rec.WorkerSeen(worker=worker, incarnation=incarnation):
            return f"{worker}#{incarnation} is seen"
        case rec.TermBegan(term=term):
            return f"term {term}"
        case rec.JobSet(minimum=low, maximum=high, target=target, paused=paused):
            return f"job min {low} max {high} target {target}" + (" paused" if paused else "")
        case rec.OfferSet():
            return "what the first worker brings"
        case rec.FinishMade(outcome=outcome, code=code):
            return f"the end: {outcome}, {code}"
        case _:
            return "the job is over"
