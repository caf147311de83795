"""Who is evicted, when, and who is not: SIGSTOP in mid-bucket, a held GIL, a long validation, a debugger.

python tests/soak/eviction.py RESULTS.jsonl [--only NAME] [--seed N]

agent-*: a worker under an agent stops itself at a planted point and is never continued.  plain and
frozen-agent: continued after 10 s.  `evicted_s` is from the killer's clock (the fault log) to the verdict
in events.jsonl.  hold-*: nobody is evicted, and whoever stands is named.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
import cases

from tests.integration.jobs import PATIENCE_S, Job, job
from tests.integration.processes import alive, children, freeze, wait_until

SCRIPT = cases.SCRIPTS / "workload.py"
AGENT_BAR_S, LEASE_S = 3.0, 2.0
AWAY_S = 10.0
STEP = 40


def all_cases(seed: int) -> Iterator[cases.Case]:
    for point in ("between_buckets", "first_send", "results_in"):
        for victim in ("w0", "w2"):
            yield {"name": f"agent-{point}-{victim}", "how": "agent", "point": point, "victim": victim}
    for number in range(3):
        yield {"name": f"plain-{number}", "how": "plain", "point": "between_buckets", "victim": "w2"}
        yield {"name": f"frozen-agent-{number}", "how": "frozen", "point": "between_buckets", "victim": "w2"}
    yield {"name": "hold-gil", "how": "hold", "hold": "gil", "for_s": 30}
    yield {"name": "hold-validate", "how": "hold", "hold": "validate", "for_s": 60}
    yield {"name": "hold-debugger", "how": "hold", "hold": "debugger", "for_s": 30}


def line_of(case: cases.Case, folder: Path) -> tuple[str, ...]:
    table = [{"worker": case["victim"], "step": STEP, "point": case["point"], "do": "freeze"}]
    return (
        "--applied", str(folder / "applied"), "--faults", json.dumps(table),
        "--fault-log", str(folder / "faults.jsonl"), "--pace", "0.01",
    )  # fmt: skip


def stopped_at(folder: Path) -> float:
    """When the planted stop happened."""
    log = folder / "faults.jsonl"
    wait_until(log.exists, PATIENCE_S, "the planted stop")
    wait_until(lambda: cases.read(log), PATIENCE_S, "the line of the planted stop")
    return float(cases.read(log)[0]["t"])


def applied_after(folder: Path, pid: int, when: float) -> int:
    """Steps that a process applied after `when`."""
    path = folder / "applied" / str(pid)
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(float(line.split()[0]) > when for line in lines)


def under_an_agent(case: cases.Case, folder: Path) -> cases.Case:
    victim = case["victim"]
    with job(folder) as run:
        run.start(4, "--restarts", "off", script=SCRIPT, args=line_of(case, folder))
        when = stopped_at(folder)
        verdict = run.see("verdict", worker=victim)
        run.see("formed", members=4)
        run.goes_on()
        gap = cases.gap_after(when, run.run.metrics()["t"])
        run.finish(survivors=tuple(w for w in run.first_pids if w != victim))
    evicted = verdict["t"] - when
    return {
        "good": evicted <= AGENT_BAR_S,
        "evicted_s": round(evicted, 3),
        "gap_s": gap,
        "reason": verdict.get("reason"),
    }


def two_parts(run: Job, case: cases.Case, folder: Path) -> tuple[Any, Any]:
    """Two workers under an agent; then one by itself, or two more under another agent."""
    run.process = run.master("--min", "1")
    line = run.line(SCRIPT, *line_of(case, folder))
    first = run.godmw("worker", "--nproc", "2", *line, env=run.join)
    run.see("formed", members=2)
    plain = case["how"] == "plain"
    second = (
        run.python(*line, env=run.join)
        if plain
        else run.godmw("worker", "--nproc", "2", *line, env=run.join)
    )
    run.see("formed", members=3 if plain else 4)
    run.first_pids = run.pids()
    return first, second


def continued(case: cases.Case, folder: Path) -> cases.Case:
    with job(folder) as run:
        first, second = two_parts(run, case, folder)
        when = stopped_at(folder)
        gone = (
            [second.pid]
            if case["how"] == "plain"
            else [pid for pid in children(second.pid) if pid in run.first_pids.values()]
        )
        victims = {w for w, pid in run.first_pids.items() if pid in gone}
        assert case["victim"] in victims, (run.first_pids, gone)
        if case["how"] == "frozen":
            for pid in (second.pid, *gone):
                freeze(pid)
        evicted = [run.see("verdict", worker=worker)["t"] - when for worker in sorted(victims)]
        run.see("formed", members=2)
        while time.time() - when < AWAY_S:
            run.goes_on()
        again = time.time()
        for pid in (second.pid, *gone):
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not any(alive(pid) for pid in gone), PATIENCE_S, "the evicted processes end")
        run.goes_on(20)
        told = sum(applied_after(folder, pid, again) for pid in gone)
        workers_now = len(run.pids())
        run.finish(survivors=tuple(w for w in run.first_pids if w not in victims))
        first.wait(PATIENCE_S)
        code = second.wait(PATIENCE_S)
    bar = LEASE_S + 1.0
    return {
        "good": max(evicted) <= bar and told == 0 and (case["how"] != "plain" or code == 77),
        "evicted_s": round(max(evicted), 3),
        "applied_after": told,
        "exit": code,
        "workers_after": workers_now,
    }


def held(case: cases.Case, folder: Path) -> cases.Case:
    """Nobody is evicted; the one who stands is named in events or status before it is over."""
    kind, for_s = case["hold"], case["for_s"]
    args = ["--pace", "0.01"]
    if kind != "debugger":
        args += ["--hold", kind, "--hold-step", str(STEP), "--hold-for", str(for_s)]
    with job(folder) as run:
        run.start(3, script=SCRIPT, args=tuple(args))
        leader, other, _ = run.first_pids
        debugger = None
        if kind == "debugger":
            run.goes_on()
            debugger = subprocess.Popen(
                [sys.executable, str(cases.SCRIPTS / "debugger.py"), str(run.first_pids[other]), str(for_s)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert debugger.stdout is not None
            assert debugger.stdout.readline().split() == ["held", "t"]
        else:
            run.run.wait(step=STEP, timeout_s=PATIENCE_S)
        begin = time.monotonic()
        notice = run.see("notice", within_s=for_s + PATIENCE_S)
        named_s = time.monotonic() - begin
        if debugger is not None:
            assert debugger.wait(for_s + PATIENCE_S) == 0
        run.run.wait(step=run.status()["step"] + 5, timeout_s=for_s + PATIENCE_S)
        kinds = {event["kind"] for event in run.run.events()}
        run.finish(survivors=tuple(run.first_pids))
    stands = leader if kind == "validate" else other
    return {
        "good": "verdict" not in kinds and stands in str(notice.get("reason")),
        "named_s": round(named_s, 2),
        "notice": notice.get("reason"),
        "evicted": "verdict" in kinds,
    }


def run_case(case: cases.Case, folder: Path) -> cases.Case:
    return {"agent": under_an_agent, "plain": continued, "frozen": continued, "hold": held}[case["how"]](
        case, folder
    )


if __name__ == "__main__":
    sys.exit(cases.measure("eviction", all_cases, run_case, __doc__.splitlines()[0]))
