"""`godmw logs`: what a worker printed."""

import json
import threading
from pathlib import Path

import pytest

from godmw.cli.logs import lines
from tests.fakes.command import godmw

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "w0.log").write_text("one\ntwo\r\nun")
    (tmp_path / "logs" / "w11.log").write_text("")
    (tmp_path / "secret.log").write_text("not a worker's")
    return tmp_path


def test_all_that_is_there(run: Path, capsys: Capture) -> None:
    assert godmw(capsys, "logs", "w0", run) == (0, "one\ntwo\r\nun\n", "")
    code, out, _ = godmw(capsys, "logs", "w0", run, "--json")
    assert [json.loads(text) for text in out.splitlines()] == [
        {"worker": "w0", "line": text} for text in ("one", "two\r", "un")
    ]
    assert code == 0


@pytest.mark.parametrize("name", ["w1", "../secret", "/etc/passwd"])
def test_a_worker_without_a_log(run: Path, capsys: Capture, name: str) -> None:
    code, out, err = godmw(capsys, "logs", name, run)
    assert (code, out) == (64, "")
    assert err.splitlines()[1] == "hint: there are logs of: w0, w11"


def test_follow_reads_what_comes_until_the_job_is_over(tmp_path: Path) -> None:
    path, over, first = tmp_path / "w0.log", threading.Event(), threading.Event()
    path.write_text("one\ntw")
    seen: list[str] = []

    def read() -> None:
        for text in lines(path, True, over.is_set):
            seen.append(text)
            first.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(5.0)
    with open(path, "a") as file:
        file.write("o\nthree")
    over.set()
    reader.join(5.0)
    assert seen == ["one", "two", "three"]
