"""The master as a process of its own: started, found, signalled, killed, started again."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from godmw.client.handle import connect
from godmw.client.rundir import RunDir
from tests.fakes.machine import Peer
from tests.integration.processes import alive, godmw, wait_until

Process = subprocess.Popen[str]


def bound(process: Process, files: RunDir) -> None:
    """Until this process's master listens."""
    wait_until(
        lambda: files.master_pid() == process.pid or process.poll() is not None, what="a master listens"
    )
    assert process.poll() is None, process.stderr and process.stderr.read()


def ended(process: Process, within_s: float = 5.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def master(path: Path, *args: str) -> tuple[str, ...]:
    return ("master", "--run-dir", str(path), *args)


def test_it_prints_the_line_to_paste_and_stops_at_the_first_signal(tmp_path: Path) -> None:
    files = RunDir(tmp_path / "run")
    with godmw(*master(files.path)) as process:
        bound(process, files)
        process.send_signal(signal.SIGTERM)
        code, out, err = ended(process)
    address = files.address()
    assert address is not None
    assert out == f"GODMW_JOIN='{address.format()}' godmw worker SCRIPT\n"
    assert code == 75
    assert err.splitlines() == [
        "error: stopped after 0 steps: the master got SIGTERM",
        "hint: there is no state on disk to go on from",
    ]
    summary = files.read_summary()
    assert summary is not None
    assert (summary["outcome"], summary["steps"]) == ("stopped", 0)
    with godmw(*master(files.path), "--json") as again:
        code, out, _ = ended(again)
    assert code == 1
    assert "is over (stopped: the master got SIGTERM)" in json.loads(out)["error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_it_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    files = RunDir(tmp_path)
    with godmw(*master(tmp_path)) as process:
        bound(process, files)
        address = files.address()
        assert address is not None
        peer = Peer(address, "")  # somebody who will never confirm that it heard Finish
        peer.join()
        peer.receive()
        process.send_signal(number)
        wait_until(lambda: connect(address).status()["phase"] == "STOPPED", what="the first signal is heard")
        process.send_signal(number)
        begin = time.monotonic()
        assert ended(process)[0] == code
        assert time.monotonic() - begin < 1.0
        peer.close()


def test_killed_and_started_again_it_has_the_same_address_and_a_higher_term(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    with godmw(*master(tmp_path, "--min", "2")) as first:
        bound(first, files)
        before, address = connect(tmp_path).status(), files.address()
        connect(tmp_path).scale(5)
        first.kill()
        first.wait()
    with godmw(*master(tmp_path, "--listen", "127.0.0.1:1")) as second:
        bound(second, files)
        assert files.address() == address
        after = connect(tmp_path).status()
        assert (before["term"], after["term"]) == (1, 2)
        assert (after["job"], after["min"], after["target"]) == (before["job"], 2, 5)
        terms = [event["term"] for event in connect(tmp_path).events() if event["kind"] == "term"]
        assert terms == [1, 2]
        since = [event["since_s"] for event in connect(tmp_path).events()]
        assert since == sorted(since)
        with godmw(*master(tmp_path)) as third:
            code, _, err = ended(third)
        assert code == 77
        assert f"a master (pid {second.pid}) already runs on" in err
        assert alive(second.pid)


def test_a_stopped_master_blames_nobody_when_it_goes_on(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    with godmw(*master(tmp_path, "--lease", "0.6")) as process:
        bound(process, files)
        address = files.address()
        assert address is not None
        peer = Peer(address, "")
        peer.join()
        peer.receive()
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # what is tested is that this does not count
        os.kill(process.pid, signal.SIGCONT)
        assert [worker["id"] for worker in connect(tmp_path).status()["workers"]] == ["w0"]
        wait_until(
            lambda: not connect(tmp_path).status()["workers"], what="a real silence of one lease is a death"
        )
        peer.close()


def test_a_port_that_is_taken_is_named_with_its_owner(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "a")
    with godmw(*master(first.path)) as owner:
        bound(owner, first)
        address = first.address()
        assert address is not None
        with godmw(*master(tmp_path / "b", "--listen", address.endpoint)) as process:
            code, _, err = ended(process)
        assert code == 64
        assert f"port {address.port} of 127.0.0.1 is taken by pid {owner.pid} (" in err
        assert "hint: --listen HOST:0 takes a free port" in err
        assert address.token not in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--listen", "nowhere"), "HOST:PORT was expected"),
        (("--listen", "192.0.2.7:0"), "--listen 192.0.2.7:0: "),
        (("--min", "3", "--max", "2"), "--min 3 is above --max 2"),
        (("--stall-timeout", "soon"), "--stall-timeout soon: a number of seconds"),
    ],
)
def test_what_cannot_be_meant_is_64(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    with godmw(*master(tmp_path / "run", *args)) as process:
        code, _, err = ended(process)
    assert code == 64
    assert words in err
    assert "Traceback" not in err


def test_it_is_small_and_idle_when_nothing_happens(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    with godmw(*master(tmp_path)) as process:
        bound(process, files)
        text = Path(f"/proc/{process.pid}/status").read_text()
        resident_kb = int(text.split("VmRSS:")[1].split()[0])
        assert resident_kb < 60_000
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
