"""What incumbents feel of scale 2 -> 5 -> 1 -> 3 in mid-epoch (a 13 MB model, Adam) and of drains.

python tests/soak/join_stall.py RESULTS.jsonl [--only NAME] [--seed N]

A join's stall is measured from outside: the longest gap between two commits in metrics.jsonl, from the
joiner's plan to the second commit after its generation has formed, less the median step of before.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
import cases

from tests.integration.jobs import PATIENCE_S, Job, job
from tests.integration.processes import wait_until

BATCH, SAMPLES = 64, 20000
PER_EPOCH = -(-SAMPLES // BATCH)
ARGS = ("--net", "mlp13", "--batch", str(BATCH), "--samples", str(SAMPLES))
MEDIAN_OF = 30  # steps before a change


def all_cases(seed: int) -> Iterator[cases.Case]:
    for number in range(4):
        for pace in (0.0, 0.02):
            yield {"name": f"scale-{pace}-{number}", "how": "scale", "pace": pace}
    yield {"name": "drains", "how": "drains", "pace": 0.005}


def stalls(events: list[dict[str, Any]], commits: list[float]) -> list[dict[str, Any]]:
    """Of every join after the job's beginning."""
    found = []
    plans = {event["number"]: event for event in events if event["kind"] == "plan"}
    for event in events:
        if event["kind"] != "formed" or not event["joiners"] or event["number"] == 1:
            continue
        plan = plans[event["number"]]
        first = max(i for i, t in enumerate(commits) if t <= plan["t"])
        later = [i for i, t in enumerate(commits) if t > event["t"]][:2]
        usual = statistics.median(cases.gaps(commits[max(0, first - MEDIAN_OF) : first + 1]))
        longest = max(cases.gaps(commits[first : later[-1] + 1]))
        found.append(
            {
                "stall_s": round(longest - usual, 4),
                "usual_s": round(usual, 4),
                "joiners": len(event["joiners"]),
                "to": len(event["members"]),
                "mid_epoch": event["step"] % PER_EPOCH != 0,
            }
        )
    return found


def scaled(run: Job) -> None:
    for workers in (5, 1, 3):
        assert run.run.scale(workers)["target"] == workers
        run.see("formed", members=workers)
        run.goes_on(40)


def drained(run: Job) -> None:
    """The middle, the lowest and the highest rank of four."""
    first, middle, _, highest = run.first_pids
    for left, victim in ((3, middle), (2, first), (1, highest)):
        run.run.drain(victim)
        run.see("formed", members=left)
        wait_until(lambda victim=victim: victim not in run.pids(), PATIENCE_S, f"{victim} is no member")
        run.goes_on(20)


def run_case(case: cases.Case, folder: Path) -> cases.Case:
    with job(folder) as run:
        args = (*ARGS, "--pace", str(case["pace"]))
        workers = 2 if case["how"] == "scale" else 4
        run.start(workers, "--max", "5", script=cases.SCRIPTS / "workload.py", args=args)
        run.goes_on(40)
        (scaled if case["how"] == "scale" else drained)(run)
        still = tuple(w for w, pid in run.pids().items() if run.first_pids.get(w) == pid)
        summary = run.finish(survivors=still)
        columns, events = run.run.metrics(), list(run.run.events())
    expected = [BATCH if (s + 1) % PER_EPOCH else SAMPLES % BATCH or BATCH for s in columns["step"]]
    joins = stalls(events, columns["t"])
    seen = {
        "batch_constant": columns["samples"] == expected,
        "redone": sum(columns["redone_samples"]),
        "recoveries": len(summary["recoveries"]),
        "mid_epoch": all(join["mid_epoch"] for join in joins),
        "joins": joins,
    }
    seen["good"] = seen["batch_constant"] and seen["redone"] == 0 and seen["recoveries"] == 0
    if joins:
        seen["stall_s"] = round(statistics.median(join["stall_s"] for join in joins), 4)
    return seen


if __name__ == "__main__":
    sys.exit(cases.measure("join_stall", all_cases, run_case, __doc__.splitlines()[0]))
