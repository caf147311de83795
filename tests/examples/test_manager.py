"""The example of the manager runs as its first lines say."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "manager.py"


def test_manager_trains_digits_alone() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GODMW_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = re.search(r"(\d+) steps, (\d+) samples, accuracy ([0-9.]+)", done.stdout)
    assert said is not None, done.stdout
    assert (int(said[1]), int(said[2])) == (20 * 45, 20 * 1437)  # 1437 digits in batches of 32
    assert float(said[3]) >= 0.95
