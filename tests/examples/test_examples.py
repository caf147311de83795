"""Each example runs as a user would run it, and is short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str, **more: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GODMW_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**environment, "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 120


def test_digits_reaches_its_accuracy_and_stops_early() -> None:
    output = run("digits.py")
    best = re.search(r"best accuracy ([0-9.]+) in epoch (\d+)", output)
    assert best is not None
    assert float(best[1]) >= 0.95
    epochs = len(re.findall("^epoch", output, re.MULTILINE))
    assert epochs == min(30, int(best[2]) + 1 + 4)


def test_char_gpt_learns_from_any_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 50)
    output = run(
        "char_gpt.py",
        "--steps",
        "25",
        "--batch-size",
        "8",
        "--length",
        "32",
        "--text",
        str(tmp_path / "text.txt"),
    )
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", output)]
    assert losses[0] > 5
    assert losses[-1] < 3
