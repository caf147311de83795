"""Cases of a soak script: each run once a commit and seed, one JSON line each, so that a run can be stopped
and gone on with.

A script gives `measure` its row's name, its cases (names with what they vary) and a function that runs one
in a folder of its own and returns what was seen; an exception, or a broken promise that `Job` raises as one,
makes the case a bad one and keeps its folder.  `figures.py` reads the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
Case = dict[str, Any]


def commit() -> str:
    """The commit that is measured; `+` when the library differs from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "godmw", "native"], check=False)
    return head.stdout.strip() + ("+" if changed.returncode else "")


def read(path: Path) -> list[Case]:
    """The lines of a results file; none when it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(
    row: str, cases: Callable[[int], Iterable[Case]], run_case: Callable[[Case, Path], Case], about: str
) -> int:
    """Run the cases that the results file lacks; 1 when one of them was bad."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    mine = {"row": row, "commit": commit(), "seed": args.seed}
    done = {line["name"] for line in read(args.results) if mine.items() <= line.items()}
    bad = 0
    for case in cases(args.seed):
        if case["name"] in done or args.only not in case["name"]:
            continue
        seen = _one(case, run_case)
        bad += not seen["good"]
        line = json.dumps({**mine, **case, **seen})
        with args.results.open("a") as file:
            file.write(line + "\n")
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return min(1, bad)


def _one(case: Case, run_case: Callable[[Case, Path], Case]) -> Case:
    folder = Path(tempfile.mkdtemp(prefix="godmw-soak-"))
    began_s, load = time.monotonic(), os.getloadavg()[0]
    try:
        seen = {"good": True, **run_case(case, folder)}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        seen = {"good": False, "error": f"{where} {type(error).__name__}: {str(error)[:2000]}"}
    if seen["good"]:
        shutil.rmtree(folder)
    else:
        seen["kept"] = str(folder)
    return {**seen, "wall_s": round(time.monotonic() - began_s, 1), "load": load, "host": platform.node()}


def gaps(times: list[float]) -> list[float]:
    """The times between neighbours."""
    return [later - earlier for earlier, later in pairwise(times)]


def gap_after(when: float, commits: list[float]) -> float | None:
    """From `when` until commits flow again: the first one after it may have been on its way."""
    later = [t for t in commits if t > when]
    return round(max(later[0] - when, later[1] - later[0]), 4) if len(later) >= 2 else None
