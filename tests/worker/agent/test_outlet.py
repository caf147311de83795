"""Where output goes: logs, the terminal, prefixes, and what happens when a terminal does not take it."""

import threading
from pathlib import Path

from godmw.worker.agent import outlet as module
from godmw.worker.agent.outlet import Outlet


class Page:
    """A sink that keeps what it was given, and can be held."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, stream: str, data: bytes) -> None:
        self.free.wait(5)
        self.got.append((stream, data))


def test_what_passes_is_passed_as_it_is_and_all_of_it_is_logged(tmp_path: Path) -> None:
    page, log = Page(), tmp_path / "logs" / "w0.log"
    outlet = Outlet(page)
    outlet.start()
    outlet.put("w0", "out", b"10%\r", log=log, passes=True)
    outlet.put("w0", "err", b"oh", log=log)
    outlet.say("hello")
    outlet.close()
    assert page.got == [("out", b"10%\r"), ("err", b"godmw: hello\n")]
    assert log.read_bytes() == b"10%\roh"


def test_tee_says_whose_line_it_is(tmp_path: Path) -> None:
    page = Page()
    outlet = Outlet(page, tee=True)
    outlet.start()
    for worker, data in (("w0", b"one\ntw"), ("w1", b"other\n"), ("w0", b"o\nrest")):
        outlet.put(worker, "out", data, passes=True)
    outlet.close()
    assert page.got == [
        ("out", b"[w0] one\n"), ("out", b"[w1] other\n"), ("out", b"[w0] two\n"), ("out", b"[w0] rest\n"),
    ]  # fmt: skip


def test_a_terminal_that_blocks_stops_nobody_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    page = Page()
    page.free.clear()
    outlet = Outlet(page)
    outlet.start()
    chunk = b"x" * (1024 * 1024)
    for _ in range(module.LIMIT_BYTES // len(chunk) + 5):
        outlet.put("w0", "out", chunk, passes=True)  # returns at once: this test would hang otherwise
    page.free.set()
    outlet.close(10)
    passed = sum(len(data) for stream, data in page.got if stream == "out")
    said = [data.decode() for stream, data in page.got if stream == "err"]
    left_out = (module.LIMIT_BYTES // len(chunk) + 5) * len(chunk) - passed
    assert left_out > 0
    assert said == [f"godmw: {left_out} bytes of output were left out: too much at once\n"]


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    page = Page()
    (tmp_path / "logs").write_text("in the way")
    outlet = Outlet(page)
    outlet.start()
    for _ in range(3):
        outlet.put("w0", "out", b"x", log=tmp_path / "logs" / "w0.log", passes=True)
    outlet.close()
    assert [stream for stream, _ in page.got] == ["err", "out", "out", "out"]
    assert b"cannot be written" in page.got[0][1]
