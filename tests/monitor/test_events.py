"""`events.jsonl`: order of keys, what does not apply, and following a file that grows."""

from pathlib import Path

from godmw.monitor.events import EventLog, read_events


def test_a_line_as_the_contract_has_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("death", t=100.5, since_s=2.25, shards=[1, 2], reason="exit 9", worker="w1", step=None, term=1)
    log.close()
    assert (tmp_path / "events.jsonl").read_text() == (
        '{"t":100.5,"since_s":2.25,"kind":"death","term":1,"worker":"w1","reason":"exit 9","shards":[1,2]}\n'
    )


def test_reopening_cuts_a_torn_tail_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("join", t=1.0, since_s=0.0)
    log.flush()
    log.close()
    path.write_bytes(path.read_bytes() + b'{"t":2.0,"kind":"de')
    ((first, offset),) = read_events(path)
    assert first["kind"] == "join"
    again = EventLog(path)
    again.write("leave", t=3.0, since_s=2.0, loss=float("inf"))
    again.close()
    ((second, _),) = read_events(path, offset)
    assert second == {"t": 3.0, "since_s": 2.0, "kind": "leave", "loss": None}
