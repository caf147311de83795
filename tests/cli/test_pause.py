"""`godmw pause` and what it does to the phase that others see."""

from pathlib import Path

import pytest

from tests.fakes.command import godmw
from tests.fakes.machine import Served

Capture = pytest.CaptureFixture[str]


def test_it_says_how_to_go_on(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True):
        assert godmw(capsys, "pause", tmp_path) == (0, "paused; godmw resume goes on\n", "")
        assert godmw(capsys, "pause", tmp_path, "--json") == (0, '{"phase": "PAUSED"}\n', "")
