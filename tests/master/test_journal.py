"""What was committed is read again, in order, by the next master."""

import sqlite3
from pathlib import Path

import pytest

from godmw.errors import GodmwError
from godmw.master.journal import Journal
from godmw.membership import records as rec

TERM = rec.TermBegan(term=1, address="127.0.0.1:7000", job="job-1", token="secret")
PLAN = rec.PlanMade(
    number=2, planned=False, members=(("w0", 1, "h:1"), ("w1", 2, "h:2")), joiners=("w1",), start=5,
    shards=8, added=(("w0", (3, 4)),), reason="w2 is dead",
)  # fmt: skip


def journal(path: Path, now_s: float = 1000.5) -> Journal:
    return Journal(path / "journal.db", lambda: now_s)


def test_records_come_back_in_order(tmp_path: Path) -> None:
    first = journal(tmp_path)
    assert first.open() == []
    for record in (TERM, rec.AbortMade(1), PLAN, rec.JobOver()):
        first.append(record)
    first.close()
    second = journal(tmp_path, 2000.0)
    assert second.open() == [TERM, rec.AbortMade(1), PLAN, rec.JobOver()]
    assert second.began_s == 1000.5
    second.close()


def test_a_committed_record_is_seen_by_others_at_once_and_an_open_one_is_not(tmp_path: Path) -> None:
    writer = journal(tmp_path)
    writer.open()
    writer.append(TERM)
    reader = sqlite3.connect(tmp_path / "journal.db")
    count = "SELECT count(*) FROM records"
    assert reader.execute(count).fetchone() == (0,)
    writer.commit()
    assert reader.execute(count).fetchone() == (1,)
    assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    reader.close()
    writer.close()


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    writer = journal(tmp_path)
    writer.open()
    writer.append(TERM)
    writer.commit()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("journal.db*")} == {0o600}
    writer.close()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_a_file_that_is_no_journal_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.db").write_bytes(content)
    broken = journal(tmp_path)
    if not content:
        assert broken.open() == []
        broken.close()
        return
    with pytest.raises(GodmwError, match=r"journal\.db cannot be read as a journal"):
        broken.open()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.db") as file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    with pytest.raises(GodmwError, match="format 2, this godmw writes 1"):
        journal(tmp_path).open()
