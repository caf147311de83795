"""`godmw resume`."""

from pathlib import Path

import pytest

from tests.fakes.command import godmw
from tests.fakes.machine import Served

Capture = pytest.CaptureFixture[str]


def test_a_pause_ends_and_a_job_that_is_not_paused_does_not_mind(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True):
        godmw(capsys, "pause", tmp_path)
        for _ in range(2):
            assert godmw(capsys, "resume", tmp_path) == (0, "the pause is over\n", "")
