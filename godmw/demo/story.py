"""The demo: a real small training that loses a worker, freezes another, gets both back, and grows by
one.

A user of the handle and nothing more: it starts the job, does to its workers what a bad day does, and
tells what happened from the job's own files.  The training itself is ``train_digits.py`` beside this
file.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from godmw.client.launch import start
from godmw.data.audit import AuditReport, audit

SCRIPT = Path(__file__).with_name("train_digits.py")
EPOCHS = "20"
WAIT_S = 60.0
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found out; ``ok`` is the verdict on it."""

    summary: dict[str, Any]
    audit: AuditReport
    digests: int  # different weights reported by the workers that finished
    accuracy: float

    @property
    def ok(self) -> bool:
        return self.summary.get("outcome") == "finished" and self.audit.clean and self.digests == 1


def play(run_dir: Path, tell: Tell) -> Outcome:
    """Train, kill, freeze, scale, finish.  Raises GodmwError or TimeoutError when the job does not get
    there.
    """
    tell("training handwritten digits with 3 workers")
    enough = run_dir / "enough"
    with start(SCRIPT, EPOCHS, str(enough), workers=3, run_dir=run_dir) as run:
        tell(f"run directory: {run_dir}")
        seen = run.wait(step=15, workers=3, timeout_s=WAIT_S)
        victim = _member(seen, rank=1)
        tell(f"step {seen['step']}: SIGKILL to {victim['id']} (pid {victim['pid']})")
        run.kill(victim["id"], signal.SIGKILL)
        _until_replaced(run, victim, 3)
        seen = run.wait(workers=3, timeout_s=WAIT_S)
        tell(f"step {seen['step']}: {victim['id']} is back as incarnation {victim['incarnation'] + 1}")
        sleeper = _member(seen, rank=0)
        tell(f"step {seen['step']}: SIGSTOP to {sleeper['id']} (pid {sleeper['pid']}), the leader")
        os.kill(sleeper["pid"], signal.SIGSTOP)
        _until_replaced(run, sleeper, 3)
        seen = run.wait(workers=3, timeout_s=WAIT_S)
        tell(f"step {seen['step']}: {sleeper['id']} is back as incarnation {sleeper['incarnation'] + 1}")
        run.scale(4)
        seen = run.wait(workers=4, timeout_s=WAIT_S)
        tell(f"step {seen['step']}: a fourth worker has joined")
        enough.touch()
        summary = run.result(timeout_s=2 * WAIT_S)
        return Outcome(
            summary=summary,
            audit=audit(run_dir / "ledger"),
            digests=_digests(run.events()),
            accuracy=_accuracy(run_dir / "logs" / "run.log"),
        )


def _member(seen: dict[str, Any], rank: int) -> dict[str, Any]:
    return next(worker for worker in seen["workers"] if worker["rank"] == rank)


def _until_replaced(run: Any, old: dict[str, Any], size: int) -> None:
    """Until the generation has ``size`` members again and none of them is the old process."""
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s:
        seen = run.status()
        ranked = [worker for worker in seen["workers"] if worker["rank"] is not None]
        if len(ranked) == size and all(worker["pid"] != old["pid"] for worker in ranked):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{old['id']} was not replaced within {WAIT_S:.0f} s")


def _accuracy(output: Path) -> float:
    """What the leader printed at its end."""
    said = re.findall(r"held-out digits: ([0-9.]+)", output.read_text(encoding="utf-8", errors="replace"))
    return float(said[-1]) if said else 0.0


def _digests(events: Iterable[dict[str, Any]]) -> int:
    """How many different final weights the finished workers had."""
    return len({event["digest"] for event in events if event.get("kind") == "ended"})


def report(outcome: Outcome) -> list[str]:
    """The demo's last lines."""
    summary, found = outcome.summary, outcome.audit
    lines = [
        f"recovered from {row['cause']} of {row['worker']}: longest gap between two steps {row['gap_s']} s, "
        f"{row['shards_redone']} shards computed again"
        for row in summary.get("recoveries", ())
    ]
    lines += [
        f"{row['worker']} joined in {row['join_s']} s, the others waited {row['stall_s']} s"
        for row in summary.get("joins", ())
    ]
    lines.append(f"accuracy on held-out digits: {outcome.accuracy:.4f}")
    lines.append(f"audit: {found.samples} samples, missing {found.missing}, repeated {found.repeated}")
    same = "one digest on all workers" if outcome.digests == 1 else f"{outcome.digests} different digests"
    lines.append(f"weights: {same}, sha256 {str(summary.get('weights_sha256'))[:16]}…")
    return lines
