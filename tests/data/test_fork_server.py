"""The fork server and its loaders: they die with the training process, and hold none of its sockets."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from godmw.data.fork_server import start_fork_server
from godmw.errors import JobFailed

ROOT = Path(__file__).resolve().parents[2]

SETUP = """
import os, signal, socket, sys, time
early = socket.socketpair()
import numpy as np
from godmw.data.loader import start_fork_server, take_over

class Samples:
    def __len__(self): return 10
    def __getitem__(self, index):
        if index == 9: time.sleep(60)
        return index

server = start_fork_server()
late = socket.create_server(("127.0.0.1", 0))
source = take_over(Samples(), batch_size=1, num_workers=2, server=server)
"""


def start(script: str) -> tuple[subprocess.Popen[str], str]:
    """A training process and the mark by which everything it starts is known."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "GODMW_TEST_MARK": mark, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, mark


def marked(mark: str) -> set[int]:
    """The processes that carry the mark, zombies excepted: they have no environment any more."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
        except OSError:
            continue
    return found


def gone_within(mark: str, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while marked(mark):
        if time.monotonic() > deadline_s:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


def said(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == expected + "\n"


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    process.stdin.close()  # type: ignore[union-attr]
    process.stdout.close()  # type: ignore[union-attr]


def sockets(pid: int) -> int:
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    return sum(link.startswith("socket:") for link in links)


def test_loaders_hold_no_socket_but_their_channel_and_die_within_a_second() -> None:
    process, mark = start(
        "source.fetch(np.array([1])); source.expect([np.array([9])]); print('ready', flush=True); input()"
    )
    said(process, "ready")
    family = marked(mark) - {process.pid}
    assert len(family) == 3  # the server and two loaders
    assert [sockets(pid) for pid in family] == [1, 1, 1]
    assert sockets(process.pid) == 6  # two early, one late, the server's control, two channels
    kill(process)
    assert gone_within(mark, 1.0)


@pytest.mark.parametrize("moment", range(6))
def test_a_training_process_that_dies_while_loaders_start(moment: int) -> None:
    """At several instants from the first fork on: the loop burns a growing share of a start's time."""
    process, mark = start(f"""
print('ready', flush=True)
input()
channels = [server.spawn() for _ in range(4)]
end = time.monotonic() + {moment} * 0.001
while time.monotonic() < end: pass
os.kill(os.getpid(), signal.SIGKILL)
""")
    said(process, "ready")
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.wait()
    kill(process)
    assert gone_within(mark, 1.0)


def test_a_training_process_that_ends_in_good_order_leaves_nothing() -> None:
    process, mark = start("source.fetch(np.array([1])); print('ready', flush=True)")
    said(process, "ready")
    assert process.wait(timeout=20) == 0
    kill(process)
    assert gone_within(mark, 1.0)


def test_an_interrupt_at_the_terminal_is_the_training_processs_affair() -> None:
    process, mark = start("""
signal.signal(signal.SIGINT, lambda *_: None)
source.fetch(np.array([1]))
os.setpgid(0, 0)
print('ready', flush=True)
input()
print(source.fetch(np.array([2])).tolist(), flush=True)
""")
    said(process, "ready")
    for pid in marked(mark) - {process.pid}:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    said(process, "[2]")
    process.wait(timeout=20)
    kill(process)
    assert gone_within(mark, 1.0)


def test_a_server_that_is_gone_is_said() -> None:
    server = start_fork_server(lambda channel: None)
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(server.pid, 0)
    with pytest.raises(JobFailed, match=r"the fork server .* is gone"):
        server.spawn()
    server.close()


def test_what_a_loader_writes_comes_out_once(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end="")
    server = start_fork_server(lambda channel: print("inside"))
    channel = server.spawn()
    assert channel.recv(1) == b""  # it has ended
    channel.close()
    server.close()
    assert capfd.readouterr().out == "beforeinside\n"
