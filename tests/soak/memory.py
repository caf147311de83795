"""How much a survivor's peak memory grows when four workers become one.

python tests/soak/memory.py RESULTS.jsonl [--only NAME] [--seed N]

`scale` and SIGKILL of three, a model of 1.2 MB and one of 13 MB, with Adam.  The peak is VmHWM, set back
through /proc/PID/clear_refs before 60 steps of four workers and again before the change and 100 steps alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import cases

from tests.integration.jobs import job

BAR_MB = 10.0


def all_cases(seed: int) -> Iterator[cases.Case]:
    for net in ("small", "mlp13"):
        for how in ("scale", "kill"):
            for number in range(2):
                yield {"name": f"{net}-{how}-{number}", "net": net, "how": how}


def sizes(pid: int) -> dict[str, float]:
    """MB of each of the process's counts in /proc/PID/status."""
    lines = (line.split() for line in Path("/proc", str(pid), "status").read_text().splitlines())
    wanted = ("VmHWM:", "VmRSS:", "RssAnon:", "RssFile:", "RssShmem:")
    return {words[0][:-1]: round(int(words[1]) / 1e3, 2) for words in lines if words and words[0] in wanted}


def forget_peak(pid: int) -> None:
    Path("/proc", str(pid), "clear_refs").write_text("5")


def run_case(case: cases.Case, folder: Path) -> cases.Case:
    with job(folder) as run:
        script = cases.SCRIPTS / "workload.py"
        args = ("--net", case["net"], "--pace", "0.005")
        run.start(4, "--restarts", "0", script=script, args=args)
        run.goes_on(40)
        for pid in run.first_pids.values():
            forget_peak(pid)
        run.goes_on(60)
        before = {name: sizes(pid) for name, pid in run.first_pids.items()}
        for pid in run.first_pids.values():
            forget_peak(pid)
        if case["how"] == "scale":
            run.run.scale(1)
        else:
            run.kill("w1", "w2", "w3")
        run.see("formed", members=1)
        run.goes_on(100)
        (last,) = run.pids()
        after = sizes(run.first_pids[last])
        run.finish(survivors=(last,))
    grown = {name: round(after[name] - before[last][name], 2) for name in after}
    return {
        "good": grown["VmHWM"] < BAR_MB,
        "grown_mb": grown["VmHWM"],
        "grown": grown,
        "before": before[last],
        "survivor": last,
    }


if __name__ == "__main__":
    sys.exit(cases.measure("memory", all_cases, run_case, __doc__.splitlines()[0]))
