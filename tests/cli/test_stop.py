"""`godmw stop`."""

from pathlib import Path

import pytest

from tests.fakes.command import godmw
from tests.fakes.machine import Served

Capture = pytest.CaptureFixture[str]


def test_the_job_ends_with_the_reason_that_was_given(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True) as served:
        code, out, _ = godmw(capsys, "stop", tmp_path, "--reason", "enough")
        served.wait()
    assert (code, out) == (0, "the job is told to stop\n")
    assert (served.ended.outcome, served.ended.code, served.ended.reason) == ("stopped", 75, "enough")
