"""What happened, in one object: ``summary.json`` worked out from the event log and the metrics.

Pure: records in, numbers out. What it needs of the events (each also has `t`, Unix seconds): ``verdict``
worker, reason/cause, detected_s · ``plan`` number, planned, members, joiners, shards_redone · ``formed``
number · ``join`` worker, incarnation. A recovery is a verdict on a worker that some plan had as a member;
a join is a worker that a later plan than the first took in. Times of commits are the leader's clock,
``t``.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
STEPS_BEFORE = 20  # commits whose median gap is the undisturbed step time


def recoveries(
    events: Sequence[Record], commits: Sequence[float], generations: Sequence[int]
) -> list[Record]:
    """One row a death or eviction of a member.  ``commits[i]`` in ``generations[i]``, in step order."""
    rows = []
    members: set[str] = set()
    for index, event in enumerate(events):
        if event.get("kind") == "plan":
            members |= set(event.get("members", ()))
        if event.get("kind") != "verdict" or event.get("worker") not in members:
            continue
        plan = next((e for e in events[index:] if e.get("kind") == "plan" and not e.get("planned")), None)
        verdict_s, detected_s = float(event["t"]), float(event.get("detected_s") or 0.0)
        resumed = _first_commit(generations, plan["number"]) if plan else None
        resumed_s = None if resumed is None else max(0.0, commits[resumed] - verdict_s)
        rows.append(
            {
                "worker": event["worker"],
                "cause": event.get("cause") or event.get("reason") or "dead",
                "detected_s": round(detected_s, 4),
                "resumed_s": None if resumed_s is None else round(resumed_s, 4),
                "gap_s": _longest_gap(commits, verdict_s - detected_s, resumed),
                "shards_redone": int(plan.get("shards_redone", 0)) if plan else 0,
            }
        )
    return rows


def joins(events: Sequence[Record], commits: Sequence[float], generations: Sequence[int]) -> list[Record]:
    """One row a worker taken in by a generation after the first."""
    rows = []
    first = next((e["number"] for e in events if e.get("kind") == "plan"), None)
    asked: dict[str, float] = {}
    plans: dict[int, Record] = {}
    for event in events:
        match event.get("kind"):
            case "join":
                asked[event["worker"]] = float(event["t"])
            case "plan":
                plans[event["number"]] = event
            case "formed" if event.get("number") in plans and event["number"] != first:
                entered = _first_commit(generations, event["number"])
                for worker in plans[event["number"]].get("joiners", ()):
                    began_s = asked.get(worker, float(plans[event["number"]]["t"]))
                    rows.append(
                        {
                            "worker": worker,
                            "join_s": round(max(0.0, float(event["t"]) - began_s), 4),
                            "stall_s": _stall(commits, entered),
                        }
                    )
    return rows


def summarize(
    events: Iterable[Record],
    metrics: Iterable[Record],
    *,
    outcome: str,
    reason: str,
    leader: Record,
    wall_s: float,
) -> Record:
    """The whole object.  ``leader`` is what the leader said at its script's end."""
    story = list(events)
    commits: list[float] = []
    generations: list[int] = []
    logged: Record = {}
    samples, epoch, loss_first, loss_last = 0, -1, None, None
    for line in metrics:
        commits.append(float(line["t"]))
        generations.append(int(line["generation"]))
        samples += int(line["samples"])
        epoch = max(epoch, int(line["epoch"]))
        loss_last = line["loss"]
        loss_first = loss_last if len(commits) == 1 else loss_first
        logged = {**logged, **(line.get("logged") or {})}
    numbers = {e["number"] for e in story if e.get("kind") == "formed"}
    seen = {e["worker"] for e in story if e.get("kind") == "join" and e.get("worker")}
    return {
        "outcome": outcome,
        "reason": reason,
        "steps": len(commits),
        "samples": samples,
        "epochs": leader.get("epochs", epoch + 1),
        "generations": len(numbers),
        "workers_seen": len(seen),
        "wall_s": round(wall_s, 3),
        "loss_first": loss_first,
        "loss_last": loss_last,
        "logged": {**logged, **(leader.get("logged") or {})},
        "weights_sha256": leader.get("weights_sha256"),
        "recoveries": recoveries(story, commits, generations),
        "joins": joins(story, commits, generations),
    }


def _first_commit(generations: Sequence[int], number: int) -> int | None:
    """Index of the first commit in generation ``number`` or a later one; generations never go back."""
    index = bisect.bisect_left(generations, number)
    return index if index < len(generations) else None


def _longest_gap(commits: Sequence[float], fault_s: float, resumed: int | None) -> float | None:
    """The longest time between two commits, from the last before ``fault_s`` to ``resumed``."""
    if resumed is None:
        return None
    begin = max(1, min(bisect.bisect_left(commits, fault_s), resumed))
    gaps = [commits[index] - commits[index - 1] for index in range(begin, resumed + 1)]
    return round(max(gaps), 4) if gaps else None


def _stall(commits: Sequence[float], entered: int | None) -> float | None:
    """How much longer than usual the members waited for the first commit with the joiner."""
    if not entered:
        return None
    before = [commits[i] - commits[i - 1] for i in range(max(1, entered - STEPS_BEFORE), entered)]
    usual_s = statistics.median(before) if before else 0.0
    return round(max(0.0, commits[entered] - commits[entered - 1] - usual_s), 4)
