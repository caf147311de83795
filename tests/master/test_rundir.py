"""The run directory: locked, announced, linked, and left with a last word."""

import json
import socket
from pathlib import Path

import pytest

from godmw.client.rundir import RunDir, newest
from godmw.config import JoinAddress
from godmw.errors import Refused, UsageError
from godmw.master.rundir import LockedRunDir, port_owner

JOIN = JoinAddress("127.0.0.1", 7001, "secret")


def test_a_second_master_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = LockedRunDir(tmp_path / "run")
    first.open()
    with pytest.raises(Refused, match=r"a master \(pid [0-9]+\) already runs on"):
        LockedRunDir(tmp_path / "run").open()
    first.close()
    second = LockedRunDir(tmp_path / "run")
    second.open()
    second.close()


def test_the_address_is_announced_and_the_token_is_its_owners(tmp_path: Path) -> None:
    place = LockedRunDir(tmp_path / "godmw-runs" / "0001-a")
    place.open()
    place.announce(JOIN)
    told = json.loads(place.files.master.read_text())
    assert set(told) == {"address", "pid", "http"}
    assert (told["address"], told["http"]) == ("127.0.0.1:7001", None)
    assert place.files.address() == JOIN
    assert place.files.join.stat().st_mode & 0o777 == 0o600
    assert "secret" not in place.files.master.read_text()
    found = newest(tmp_path / "godmw-runs")
    assert found is not None
    assert found.path.name == "0001-a"
    place.close()


def test_latest_links_to_the_run_started_last(tmp_path: Path) -> None:
    root = tmp_path / "godmw-runs"
    for name in ("0002-b", "0001-a"):
        place = LockedRunDir(root / name)
        place.open()
        place.announce(JOIN)
        place.close()
    found = newest(root)
    assert found is not None
    assert found.path.name == "0001-a"
    (root / "latest").unlink()
    by_name = newest(root)
    assert by_name is not None
    assert by_name.path.name == "0002-b"


def test_a_directory_elsewhere_gets_no_link(tmp_path: Path) -> None:
    place = LockedRunDir(tmp_path / "mine")
    place.open()
    place.announce(JOIN)
    place.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_the_last_word(tmp_path: Path) -> None:
    place = LockedRunDir(tmp_path / "run")
    place.open()
    assert RunDir(tmp_path / "run").final_status() is None
    place.finish({"phase": "FINISHED"}, {"outcome": "finished"})
    place.close()
    assert RunDir(tmp_path / "run").final_status() == {"phase": "FINISHED"}
    assert RunDir(tmp_path / "run").read_summary() == {"outcome": "finished"}


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"run directory .*file"):
        LockedRunDir(tmp_path / "file").open()


def test_who_listens_on_a_port() -> None:
    import os

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert port_owner(server.getsockname()[1]).startswith(f"pid {os.getpid()} (")
        port = server.getsockname()[1]
    assert port_owner(port) == "nobody that can be seen from here"
