"""Files of lines: appended to, torn, repaired, followed."""

from pathlib import Path

import pytest

from godmw.lines import BrokenLine, LineFile, encode, read_lines


def test_a_record_is_one_line() -> None:
    assert encode({"b": 1, "a": "x\ny ü"}) == '{"b":1,"a":"x\\ny ü"}\n'.encode()
    with pytest.raises(ValueError):
        encode({"loss": float("nan")})


@pytest.mark.parametrize("torn", [b"", b"{", b'{"n":3}', b"\0" * 100_000, b'{"n":3' + b" " * 70_000])
def test_a_torn_tail_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "deep" / "file.jsonl"
    first = LineFile(path)
    for n in range(3):
        first.append({"n": n})
    first.close()
    good = path.read_bytes()
    path.write_bytes(good + torn)
    assert [record["n"] for record, _ in read_lines(path)] == [0, 1, 2]
    second = LineFile(path)
    assert second.repaired == len(torn)
    second.append({"n": 3})
    second.sync()
    second.close()
    second.close()
    assert path.read_bytes() == good + b'{"n":3}\n'


def test_a_file_that_is_only_torn(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"x" * 200_000)
    LineFile(path).close()
    assert path.read_bytes() == b""


def test_following(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    assert list(read_lines(path)) == []
    file = LineFile(path)
    file.append({"n": 0})
    ((record, offset),) = read_lines(path)
    assert record == {"n": 0}
    file.append({"n": 1})
    assert [record for record, _ in read_lines(path, offset)] == [{"n": 1}]
    file.close()


@pytest.mark.parametrize("broken", [b"not json\n", b"[1]\n", b"\n"])
def test_a_broken_line_is_named(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b'{"n":0}\n' + broken)
    with pytest.raises(
        BrokenLine, match=rf"file.jsonl: the line that ends at byte {8 + len(broken)} is not"
    ):
        list(read_lines(path))
