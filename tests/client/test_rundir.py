"""Names and contents of a run directory, as readers see them."""

from pathlib import Path

from godmw.client.rundir import RunDir, default_path, newest, read_json
from godmw.config import JoinAddress


def test_an_empty_directory_says_nothing(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    assert files.address() is None
    assert files.master_pid() is None
    assert files.read_summary() is None
    assert files.final_status() is None
    assert files.logged_workers() == []
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nothing") is None


def test_the_files_of_the_contract(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    named = (
        files.master,
        files.events,
        files.metrics,
        files.ledger,
        files.logs,
        files.checkpoints,
        files.summary,
    )
    assert [path.name for path in named] == [
        "master.json", "events.jsonl", "metrics.jsonl", "ledger", "logs", "checkpoints", "summary.json",
    ]  # fmt: skip
    assert files.log("w3") == tmp_path / "logs" / "w3.log"


def test_the_address_is_read_with_its_token(tmp_path: Path) -> None:
    (tmp_path / "join").write_text("GODMW_JOIN='godmw://10.0.0.1:7000/abc'\n")
    assert RunDir(tmp_path).address() == JoinAddress("10.0.0.1", 7000, "abc")


def test_workers_are_listed_in_natural_order(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("w10", "w9", "w0"):
        (tmp_path / "logs" / f"{name}.log").touch()
    assert RunDir(tmp_path).logged_workers() == ["w0", "w9", "w10"]


def test_a_torn_or_strange_file_reads_as_absent(tmp_path: Path) -> None:
    for content in (b'{"a": ', b"[1]", b"\xff\xfe", b""):
        (tmp_path / "x").write_bytes(content)
        assert read_json(tmp_path / "x") is None


def test_a_new_run_is_named_after_time_and_script_and_is_new(tmp_path: Path) -> None:
    first = default_path("some where/train it.py", "20260101-000000", tmp_path)
    assert first == tmp_path / "20260101-000000-train-it"
    first.mkdir()
    assert default_path("train it.py", "20260101-000000", tmp_path).name == "20260101-000000-train-it-2"
