"""`godmw drain`."""

import json
from pathlib import Path

import pytest

from tests.fakes.command import godmw
from tests.fakes.machine import Peer, Served

Capture = pytest.CaptureFixture[str]


def test_a_worker_is_let_go_and_the_target_goes_down(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True) as served:
        peer = Peer(served.address, "")
        peer.join()
        peer.receive()
        code, out, _ = godmw(capsys, "drain", "w0", tmp_path, "--json")
        peer.close()
    assert (code, json.loads(out)) == (0, {"worker": "w0", "target": 0})


def test_nobody_of_that_name_is_64(tmp_path: Path, capsys: Capture) -> None:
    with Served(tmp_path, real=True):
        code, _, err = godmw(capsys, "drain", "w9", tmp_path)
    assert (code, err) == (64, "error: no worker 'w9' is running\nhint: running: none\n")
