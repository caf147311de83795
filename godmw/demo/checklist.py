"""What a rehearsal found out, as a checklist: each line passed or not, what was seen, what to do about it.

Pure: statuses, events, logs' text and numbers in, `Check` out. The driver (`rehearsal.py`) collects them;
what they mean for a person's script is said here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from godmw.data.audit import AuditReport

WARMING = 2  # first steps that say nothing about speed
TWICE = 2.0  # a step of three workers may take this many times one of plain Python …
SLACK_S = 0.05  # … or this much longer: what a step of milliseconds costs in messages is not the script's
FORGOTTEN = re.compile(r"not given to godmw\.join, so not kept equal on the workers: ([^;\n]+)")
OUT_OF_ORDER = re.compile(r"(?:error: )?([^\n]*)\n\s*hint: [^\n]*must run the same script[^\n]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One line. `advice` is what to do when it did not pass."""

    name: str
    passed: bool
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "advice": "" if self.passed else self.advice}


def lines(checks: Sequence[Check]) -> list[str]:
    """For a person: the verdicts in a column, advice below what it is for."""
    width = max((len(check.name) for check in checks), default=0)
    told = []
    for check in checks:
        told.append(f"{'pass' if check.passed else 'FAIL'}  {check.name:<{width}}  {check.found}")
        if not check.passed and check.advice:
            told.append(f"{'':<6}{'':<{width}}  -> {check.advice}")
    return told


def finished(done: int, wanted: int, failure: str | None) -> Check:
    """Whether the job came to its end, and after how many steps. `failure`: why not, None when it did."""
    if failure is not None:
        return Check("finished", False, f"{done} steps, then: {failure}", "see the last words above")
    short = "" if done >= wanted else f" (fewer than {wanted}: that is all there was time or data for)"
    return Check("finished", True, f"{done} steps{short}")


def digests(events: Iterable[dict[str, Any]], failure: str | None) -> Check:
    """Whether all workers that ended had the same weights and the same other state."""
    found = {str(event["worker"]): str(event["digest"]) for event in events if event.get("digest")}
    advice = (
        "register all state; change model, optimizer and job.state alike on every worker: not below "
        "`if job.is_leader`, not by the worker's rank, time or files"
    )
    different = len(set(found.values()))
    if different > 1:
        return Check("equal state", False, f"{different} different digests on {len(found)} workers", advice)
    if failure is not None:
        return Check("equal state", False, "the job did not come to its end", "see the last words above")
    return Check("equal state", bool(found), f"one digest on {len(found)} workers", advice)


def audited(report: AuditReport | None) -> Check:
    """Whether each sample of each epoch went into exactly one step."""
    if report is None:
        return Check("audit", False, "there is no ledger to audit", "see the last words above")
    found = f"{report.samples} samples, missing {report.missing}, repeated {report.repeated}"
    return Check("audit", report.clean, found, "this is a fault of godmw: report it with --run-dir's files")


def survivors(seen: Sequence[dict[str, Any]], struck: frozenset[str]) -> Check:
    """Whether every worker that nobody struck had one process from its first status to its last."""
    pids: dict[str, set[int]] = {}
    for status in seen:
        for worker in status.get("workers", ()):
            if worker.get("rank") is not None and worker["id"] not in struck:
                pids.setdefault(worker["id"], set()).add(worker["pid"])
    moved = sorted(worker for worker, its in pids.items() if len(its) > 1)
    if moved:
        return Check(
            "survivors' pids", False, f"{', '.join(moved)} came back as another process",
            "see its last words in logs/ of --run-dir D: something in the script ended it",
        )  # fmt: skip
    if not pids:
        return Check("survivors' pids", False, "no worker was left alone", "see the last words above")
    return Check("survivors' pids", True, f"{', '.join(sorted(pids))} kept process and memory")


def registered(logs: str) -> Check:
    """Whether the engine's warning of forgotten state is nowhere in the workers' output."""
    names = sorted({name.strip() for match in FORGOTTEN.findall(logs) for name in match.split(",")})
    if names:
        return Check(
            "registered state", False, f"not given to godmw.join: {', '.join(names)}",
            "give everything that has a state_dict: job = godmw.join(model, optimizer, scheduler)",
        )  # fmt: skip
    return Check("registered state", True, "optimizers, schedulers and scalers are all in godmw.join")


def ordered(logs: str, done: int) -> Check:
    """Whether all workers did the same collective operations in the same order, in `done` steps."""
    match = OUT_OF_ORDER.search(logs)
    if match:
        return Check(
            "collectives", False, " ".join(match.group(1).split()),
            "call job.evaluate, allreduce, once and steps on every worker: not below `if job.is_leader`",
        )  # fmt: skip
    if not done:
        return Check("collectives", False, "no step was done together", "see the last words above")
    return Check("collectives", True, f"in the same order on every worker, in {done} steps")


def step_time(plain_s: Sequence[float], ours_s: Sequence[float], workers: int) -> Check:
    """An undisturbed step of all workers against one of `python SCRIPT` alone, at the median."""
    if len(plain_s) <= WARMING or len(ours_s) <= WARMING:
        return Check("step time", False, "too few steps to tell", "rehearse with more data or epochs")
    plain, ours = statistics.median(plain_s[WARMING:]), statistics.median(ours_s[WARMING:])
    found = (
        f"{ours * 1e3:.1f} ms with {workers} workers on this machine, {plain * 1e3:.1f} ms in plain Python: "
        f"ratio {ours / max(plain, 1e-9):.2f}"
    )
    return Check(
        "step time", ours <= max(TWICE * plain, plain + SLACK_S), found,
        "the workers share this machine: fewer workers, --threads, or a larger batch_size",
    )  # fmt: skip
