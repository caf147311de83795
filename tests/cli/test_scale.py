"""`godmw scale`."""

import json
from pathlib import Path

import pytest

from tests.fakes.command import godmw
from tests.fakes.machine import Served

Capture = pytest.CaptureFixture[str]


def test_the_target_is_set(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True):
        assert godmw(capsys, "scale", 3, tmp_path) == (0, "the target is 3 workers\n", "")
        code, out, _ = godmw(capsys, "scale", 5, tmp_path, "--json")
        assert (code, json.loads(out)) == (0, {"target": 5})
        assert json.loads(godmw(capsys, "status", tmp_path, "--json")[1])["target"] == 5


@pytest.mark.parametrize("count", ["0", "-1", "many", "1025"])
def test_a_number_that_cannot_be_is_64(tmp_path: Path, capsys: Capture, count: str) -> None:
    with Served(tmp_path, real=True):
        code, _, err = godmw(capsys, "scale", "--", count, tmp_path)
    assert code == 64
    assert err.startswith("error: ")
