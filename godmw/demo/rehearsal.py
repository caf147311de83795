"""The rehearsal: a person's own script for 40 steps, alone and then on 3 workers that things happen to.

First as plain Python (`plain.py`), which shows what is wrong with the script itself; then as a job
(`trial.py`). What was seen goes to `checklist.py`, which says what it means. Every part has a deadline:
together they take less than 3 minutes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from godmw.client.handle import Run
from godmw.data.audit import AuditReport, audit
from godmw.demo import checklist, plain
from godmw.demo.checklist import Check
from godmw.demo.trial import EVENTS, TOTAL_S, WORKERS, Tell, Trial
from godmw.errors import GodmwError

STEPS = 40
# of the caller's GODMW_ variables those that are about this machine, not about another job
KEPT = ("GODMW_ISA", "GODMW_BACKEND", "GODMW_THREADS")


@dataclasses.dataclass(slots=True)
class Report:
    """`words`: what the script said last, where it failed."""

    checks: list[Check] = dataclasses.field(default_factory=list)
    steps: int = 0
    words: str = ""
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)


def rehearse(
    words: Sequence[str], directory: Path, environment: Mapping[str, str], tell: Tell = lambda _: None
) -> Report:
    """`words`: SCRIPT or ``-m MODULE``, and its arguments; everything is written below `directory`."""
    began_s = time.monotonic()
    own = {name: value for name, value in environment.items() if not _of_another_job(name)}
    report = Report()
    tell(f"python {' '.join(words)}, alone")
    alone = plain.run(words, directory / "plain", own, STEPS, plain.PATIENCE_S)
    report.checks.append(_alone(alone))
    if not report.ok:
        report.words, report.steps = alone.output, len(alone.steps_s)
        report.checks += [Check(name, False, "did not happen", "see the first line") for name in EVENTS]
    else:
        limit = STEPS if alone.cut or alone.code is None else len(alone.steps_s)
        job = Trial(words, directory, own, limit, began_s + TOTAL_S, tell)
        report.checks += job.play() + _verdicts(job, alone)
        report.steps, report.words = len(job.metrics().get("step", ())), job.words
    report.wall_s = time.monotonic() - began_s
    return report


def _of_another_job(name: str) -> bool:
    return name.startswith("GODMW_") and name not in KEPT


def _alone(alone: plain.Plain) -> Check:
    name, count = "plain Python", len(alone.steps_s)
    if alone.code is None and count < plain.ENOUGH:
        return Check(
            name, False, f"{count} steps within {plain.PATIENCE_S:.0f} s", "rehearse with less data"
        )
    if alone.code:
        return Check(name, False, f"exit code {alone.code} after {count} steps", "see its last words above")
    if not count:
        return Check(
            name, False, "it did no step of godmw",
            "job = godmw.join(model, optimizer); for step in job.steps(dataset, batch_size=…): …",
        )  # fmt: skip
    slow = "" if alone.code is not None else ", and it had more to do after them"
    return Check(name, True, f"{count} steps{slow}")


# ---- the verdicts ----


def _verdicts(job: Trial, alone: plain.Plain) -> list[Check]:
    metrics = job.metrics()
    done, times = len(metrics.get("step", ())), metrics.get("step_s", [])
    logs = "\n".join([alone.output, *(_text(path) for path in sorted((job.path / "logs").glob("*.log")))])
    return [
        checklist.finished(done, STEPS, job.failure),
        checklist.digests((e for e in Run(path=job.path).events() if e.get("kind") == "ended"), job.failure),
        checklist.audited(_audit(job.path / "ledger")),
        checklist.survivors(job.seen, frozenset(job.struck)),
        checklist.registered(logs),
        checklist.ordered(logs, done),
        # those before the first event: undisturbed, and not held
        checklist.step_time(alone.steps_s[: job.free], times[: job.free], WORKERS),
    ]


def _audit(ledger: Path) -> AuditReport | None:
    try:
        return audit(ledger)
    except (OSError, GodmwError, ValueError):
        return None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
