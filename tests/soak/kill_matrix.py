"""SIGKILL a worker of a 4-worker run at random instants and at every planted point; one JSON line a
case.

python tests/soak/kill_matrix.py RESULTS.jsonl [--only NAME] [--seed N]

Cases already in RESULTS for this commit are skipped, so a run can be stopped and resumed. A case is
good when the run finishes, the audit is clean, the digests are equal and the survivors keep their
pids; ``gap_s`` is measured from outside: the killer's clock against ``metrics.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import godmw
from godmw.data.audit import audit
from godmw.worker.faults import POINTS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "integration" / "scripts" / "small.py"
WORKERS = 4
STEPS = 150
LIMIT_S = 120.0


def cases(seed: int) -> Iterator[dict[str, Any]]:
    """Twenty random instants and three victims a point, each with 0 and 2 loader processes."""
    chance = random.Random(seed)
    for loaders in (0, 2):
        for number in range(10):
            step, delay_s = chance.randrange(10, 100), chance.uniform(0.0, 0.1)
            victim = f"w{chance.randrange(WORKERS)}"
            yield {
                "name": f"random-{number}-{loaders}",
                "loaders": loaders,
                "victim": victim,
                "step": step,
                "delay_s": delay_s,
            }
        for point in POINTS:
            for victim in chance.sample(range(WORKERS), 3):
                yield {
                    "name": f"{point}-w{victim}-{loaders}",
                    "loaders": loaders,
                    "point": point,
                    "victim": f"w{victim}",
                }


def fault_table(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Points of forming and of a join happen again when a first victim is replaced."""
    point, victim = case["point"], case["victim"]
    other = "w0" if victim != "w0" else "w1"
    if point.startswith("forming"):  # the generation that forms after another's death
        return [
            {"worker": other, "step": 20, "point": "committed"},
            {"worker": victim, "step": 20, "point": point},
        ]
    if point == "donor_sending":
        return [
            {"worker": other, "step": 20, "point": "committed"},
            {"worker": victim, "step": 20, "point": point},
        ]
    if point == "joiner_receiving":
        return [
            {"worker": victim, "step": 20, "point": "committed"},
            {"worker": victim, "step": 0, "point": point, "incarnation": 2},
        ]
    return [{"worker": victim, "step": 20, "point": point}]


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case in a directory of its own; what was seen."""
    work = Path(tempfile.mkdtemp(prefix="godmw-kill-"))
    log = work / "faults.jsonl"
    arguments = ["--steps", str(STEPS), "--loaders", str(case["loaders"]), "--fault-log", str(log)]
    if "point" in case:
        arguments += ["--faults", json.dumps(fault_table(case))]
    began_s = time.monotonic()
    with godmw.start(
        SCRIPT, *arguments, workers=WORKERS, run_dir=work / "run", options=("--restarts", "off")
    ) as run:
        before = {w["id"]: w["pid"] for w in run.wait(workers=WORKERS, timeout_s=LIMIT_S)["workers"]}
        killed: list[float] = []
        if "step" in case:
            seen = run.wait(step=case["step"], timeout_s=LIMIT_S)
            time.sleep(case["delay_s"])
            pid = next(w["pid"] for w in seen["workers"] if w["id"] == case["victim"])
            killed.append(time.time())
            subprocess.run(["kill", f"-{signal.SIGKILL}", str(pid)], check=False)
        summary = run.result(timeout_s=LIMIT_S)
        final = run.final_status()
        if log.exists():
            killed += [json.loads(line)["t"] for line in log.read_text().splitlines()]
        commits = run.metrics()["t"]
        digests = {event["digest"] for event in run.events() if event["kind"] == "ended"}
        verdicts = {event["worker"] for event in run.events() if event["kind"] == "verdict"}
    after = {w["id"]: w["pid"] for w in final["workers"]}
    survivors = [name for name in before if name not in verdicts]
    found = audit(work / "run" / "ledger")
    result = {
        **case,
        "outcome": summary["outcome"],
        "reason": summary["reason"],
        "killed": len(killed),
        "steps": summary["steps"],
        "missing": found.missing,
        "repeated": found.repeated,
        "clean": found.clean,
        "digests": len(digests),
        "pids_kept": all(after.get(name) in (None, before[name]) for name in survivors),
        "gap_s": [round(gap, 3) for gap in gaps(killed, commits)],
        "wall_s": round(time.monotonic() - began_s, 1),
    }
    whole = result["outcome"] == "finished" and result["clean"] and result["digests"] == 1
    result["good"] = whole and result["pids_kept"] and bool(killed)
    if result["good"]:
        shutil.rmtree(work)
    else:
        result["kept"] = str(work)
    return result


def gaps(killed: list[float], commits: list[float]) -> list[float]:
    """For each kill, the time to the second next commit: the first may have been on its way."""
    found = []
    for when in killed:
        later = [t for t in commits if t > when]
        if len(later) >= 2:
            found.append(max(later[0] - when, later[1] - later[0]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    done = set()
    if args.results.exists():
        rows = [json.loads(line) for line in args.results.read_text().splitlines()]
        done = {row["name"] for row in rows if row["commit"] == commit and row["seed"] == args.seed}
    bad = 0
    for case in cases(args.seed):
        if case["name"] in done or args.only not in case["name"]:
            continue
        try:
            result = run_case(case)
        except Exception as error:
            result = {**case, "good": False, "error": f"{type(error).__name__}: {error}"}
        bad += not result["good"]
        line = json.dumps({"commit": commit, "seed": args.seed, **result})
        with args.results.open("a") as file:
            file.write(line + "\n")
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    sys.exit(min(1, main()))
