"""One table of what the soak scripts measured: row, bar, figure, met or not.

python tests/soak/figures.py RESULTS.jsonl ... [--commit C]

Of a case that was run more than once for the commit (default: that of the last line) the last line counts.
A good case has also left nothing behind within 5 s: `Job.check`, which each of them calls, raises otherwise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import cases

Lines = list[dict[str, Any]]


def pick(lines: Lines, start: str) -> Lines:
    return [line for line in lines if line["name"].startswith(start)]


def most(lines: Lines, key: str) -> float:
    """The largest figure; a case without it is as bad as can be."""
    return max((float(line.get(key, "inf")) for line in lines), default=float("inf"))


def stalls(lines: Lines) -> float:
    found = [join["stall_s"] for line in lines for join in line.get("joins", ())]
    return float(statistics.median(found)) if found else float("inf")


Figure = Callable[[Lines], float]
TABLE: tuple[tuple[str, str, str, float, Figure], ...] = (
    ("weights", "digits", "relative error of a tensor, digits", 1e-5, lambda s: most(s, "error")),
    ("weights", "conv", "relative error of a tensor, batch-norm", 1e-5, lambda s: most(s, "error")),
    ("weights", "gpt", "relative error of a gradient, char_gpt", 1e-5, lambda s: most(s, "error")),
    ("weights", "gpt", "loss curve apart, char_gpt", 1e-3, lambda s: most(s, "loss_apart")),
    ("memory", "small", "survivor's peak grows, MB (1.2 MB model)", 10.0, lambda s: most(s, "grown_mb")),
    ("memory", "mlp13", "survivor's peak grows, MB (13 MB model)", 10.0, lambda s: most(s, "grown_mb")),
    ("join_stall", "scale-0.0-", "median stall a join, s (no pace)", 0.15, stalls),
    ("join_stall", "scale-0.02-", "median stall a join, s (20 ms pace)", 0.15, stalls),
    ("join_stall", "", "steps redone by joins and drains", 0.0, lambda s: most(s, "redone")),
    ("eviction", "agent-", "evicted under an agent, s", 3.0, lambda s: most(s, "evicted_s")),
    ("eviction", "plain", "evicted without an agent, s", 3.0, lambda s: most(s, "evicted_s")),
    ("eviction", "frozen", "evicted with a frozen agent, s", 3.0, lambda s: most(s, "evicted_s")),
    ("eviction", "plain", "applied after being continued", 0.0, lambda s: most(s, "applied_after")),
    ("eviction", "frozen", "the same with its agent", 0.0, lambda s: most(s, "applied_after")),
    ("eviction", "hold", "evictions of who only stands", 0.0, lambda s: most(s, "evicted")),
    ("control_plane", "", "master's share of a core", 0.02, lambda s: most(s, "cpu_share")),
    ("control_plane", "", "master's memory, MB", 60.0, lambda s: most(s, "rss_mb")),
)


def table(lines: Lines) -> tuple[list[tuple[str, str, str, str]], bool]:
    """Rows of (what, bar, figure, verdict); whether all bars are met."""
    rows, met = [], True
    for script, start, what, bar, figure in TABLE:
        mine = pick([line for line in lines if line["row"] == script], start)
        if not mine:
            rows.append((f"{script}: {what}", f"{bar:g}", "-", "not run"))
            met = False
            continue
        value = figure(mine)
        rows.append((f"{script}: {what}", f"{bar:g}", f"{value:.3g}", "met" if value <= bar else "NOT MET"))
        met = met and value <= bar
    for script in sorted({line["row"] for line in lines}):
        mine = [line for line in lines if line["row"] == script]
        good = sum(line["good"] for line in mine)
        rows.append((f"{script}: good cases", str(len(mine)), str(good), verdict := _all(good, mine)))
        met = met and verdict == "met"
    return rows, met


def _all(count: int, lines: Lines) -> str:
    return "met" if count == len(lines) else "NOT MET"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    lines = [line for path in args.results for line in cases.read(path) if "row" in line]
    if not lines:
        sys.exit("no lines of a soak script in these files")
    commit = args.commit or lines[-1]["commit"]
    last = {(line["row"], line["name"], line["seed"]): line for line in lines if line["commit"] == commit}
    rows, met = table(list(last.values()))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    print(f"commit {commit}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
