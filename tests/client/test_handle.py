"""The handle: a running job is asked, an ended one is read."""

import json
import threading
from pathlib import Path

import pytest

import godmw
from godmw.client.handle import Run, connect
from godmw.config import JoinAddress
from godmw.errors import JobFailed, Unreachable, UsageError
from tests.fakes.machine import Peer, Served

FINAL = {"job": "job-1", "phase": "FINISHED", "step": 12, "world_size": 0, "workers": []}
SUMMARY = {"outcome": "finished", "steps": 12}


def finished(path: Path) -> Path:
    (path / "status.json").write_text(json.dumps(FINAL))
    (path / "summary.json").write_text(json.dumps(SUMMARY))
    (path / "events.jsonl").write_text('{"kind":"join","worker":"w0"}\n{"kind":"end"}\n{"kind":"to')
    (path / "metrics.jsonl").write_text('{"step":0,"loss":2.0}\n{"step":1,"loss":1.0}\n')
    return path


def test_an_ended_job_answers_from_its_files(tmp_path: Path) -> None:
    run = godmw.connect(finished(tmp_path))
    assert run.ended
    assert run.status() == FINAL
    assert run.wait() == FINAL
    assert run.wait(step=12) == FINAL
    assert run.result() == SUMMARY
    assert [event["kind"] for event in run.events(follow=True)] == ["join", "end"]
    assert run.metrics() == {"step": [0, 1], "loss": [2.0, 1.0]}
    for ask in (run.pause, run.resume, run.stop, lambda: run.scale(3), lambda: run.kill("w0")):
        assert ask() == FINAL


def test_a_wait_that_can_not_come_true_fails(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"the job is over \(FINISHED, step 12\), not at"):
        connect(finished(tmp_path)).wait(step=13)


def test_a_running_job_is_asked(tmp_path: Path) -> None:
    with Served(tmp_path, real=True) as served:
        run = connect(tmp_path)
        assert run.status()["phase"] == "WAITING"
        assert run.scale(4) == {"target": 4}
        assert run.wait(phase="WAITING", workers=0, timeout_s=5.0)["target"] == 4
        with pytest.raises(TimeoutError, match=r"waited 0.1 s for .*'step': 1"):
            run.wait(step=1, timeout_s=0.1)
        by_address = connect(served.address.format())
        assert by_address.status()["target"] == 4
        with pytest.raises(UsageError, match="are in the run directory"):
            by_address.metrics()
        with pytest.raises(UsageError, match="past events are in the run directory"):
            next(by_address.events())


def test_a_worker_is_drained_evicted_and_killed(tmp_path: Path) -> None:
    with Served(tmp_path, real=True) as served:
        run, peer = connect(tmp_path), Peer(served.address, "")
        peer.join()
        peer.receive()
        assert [worker["id"] for worker in run.status()["workers"]] == ["w0"]
        with pytest.raises(UsageError, match="w0 has no agent"):
            run.kill("w0")
        assert run.evict("w0") == {"worker": "w0", "target": 0}
        assert run.status()["workers"] == []
        peer.close()


def test_events_are_followed_while_they_come(tmp_path: Path) -> None:
    with Served(tmp_path, real=True) as served:
        run, seen = connect(tmp_path), threading.Event()
        kinds: list[str] = []

        def follow() -> None:
            for event in run.events(follow=True):
                kinds.append(event["kind"])
                seen.set()

        reader = threading.Thread(target=follow)
        reader.start()
        assert seen.wait(5.0)
        run.scale(2)
        connect(served.address).stop()
        served.wait()
        finished_before = (tmp_path / "events.jsonl").read_text()
        served.place.finish({"phase": "STOPPED"}, SUMMARY)
        reader.join(5.0)
        assert not reader.is_alive()
        assert kinds == [json.loads(line)["kind"] for line in finished_before.splitlines()]
        assert kinds[0] == "term"
        assert {"target", "end"} <= set(kinds)


def test_what_is_neither_running_nor_over_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no master has been bound in"):
        connect(tmp_path).status()
    (tmp_path / "join").write_text("GODMW_JOIN='godmw://127.0.0.1:1/abc'\n")
    with pytest.raises(Unreachable, match=r"no master answers at godmw://127\.0\.0\.1:1"):
        connect(tmp_path).status()


@pytest.mark.parametrize(
    ("target", "words"),
    [("/no/such/run", "is no run directory"), ("godmw://h:1", "has no token"), ("godmw://h", "HOST:PORT")],
)
def test_what_is_no_job(target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        connect(target)


def test_a_handle_shows_no_token() -> None:
    assert "secret" not in repr(Run(address=JoinAddress("h", 1, "secret")))
