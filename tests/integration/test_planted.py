"""A worker killed at each planted point of its life, the leader and another: `godmw.worker.faults.POINTS`.

The random instants, and three victims a point, are in tests/soak/kill_matrix.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from godmw.worker.faults import POINTS
from tests.integration.jobs import job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
STEP = 20
LEADER, OTHER = "w0", "w1"  # by their slots: w0 is rank 0 of the first generation of `godmw run`


def planted(point: str, victim: str) -> list[dict[str, Any]]:
    """The fault table that kills `victim` at `point`: forming and a join need another's death before."""
    first = {"worker": OTHER if victim == LEADER else LEADER, "step": STEP, "point": "committed"}
    last = {"worker": victim, "step": STEP, "point": point}
    if point == "joiner_receiving":
        return [{**last, "point": "committed"}, {**last, "step": 0, "incarnation": 2}]
    return [first, last] if point.startswith("forming") or point == "donor_sending" else [last]


@pytest.mark.parametrize("victim", [LEADER, OTHER])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(tmp_path: Path, point: str, victim: str) -> None:
    faults = planted(point, victim)
    log = tmp_path / "faults.jsonl"
    with job(tmp_path) as run:
        run.start(3, "--restarts", "off", args=("--faults", json.dumps(faults), "--fault-log", str(log)))
        assert next(iter(run.first_pids)) == LEADER
        for fault in faults:
            run.see("verdict", worker=fault["worker"])
        run.see("formed", members=3)
        run.goes_on()
        victims = {fault["worker"] for fault in faults}
        run.finish(survivors=tuple(w for w in run.first_pids if w not in victims))
    acted = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["worker"], line["point"]) for line in acted] == [(f["worker"], f["point"]) for f in faults]
