"""What torchrun tells a process, and how its ranks learn where to join; the store here is a dictionary."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from godmw.client.rundir import RunDir
from godmw.config import JoinAddress
from godmw.errors import Unreachable, UsageError
from godmw.frontends import torchrun

ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
JOIN = JoinAddress("127.0.0.1", 7000, "secret")


def place(**other: str) -> torchrun.Place:
    return torchrun.Place.read({**ENVIRONMENT, **other})


class Store:
    """As much of a TCPStore as is asked of it: one answer a question, the last for ever."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self._answers = list(answers)
        self._now: Any = None

    def check(self, keys: list[str]) -> bool:
        self._now = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(self._now, Exception):
            raise self._now
        return self._now is not None

    def get(self, key: str) -> bytes:
        return bytes(self._now, "utf-8")


def test_what_torchrun_says() -> None:
    assert place() == torchrun.Place(
        rank=1,
        world_size=4,
        local_world_size=2,
        address="node-0",
        port=29500,
        run_id="none",
        attempt=1,
        restarts="3",
        agent_store=True,
    )
    assert not place().one_host
    assert place(LOCAL_WORLD_SIZE="4").one_host


@pytest.mark.parametrize(("name", "value"), [("RANK", ""), ("WORLD_SIZE", "two"), ("MASTER_PORT", "123456")])
def test_an_environment_that_torchrun_did_not_make(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"TORCHELASTIC_RUN_ID is set, but {name} is not") as caught:
        place(**{name: value})
    assert "unset TORCHELASTIC_RUN_ID" in (caught.value.hint or "")


def test_a_meeting_survives_the_way() -> None:
    meeting = torchrun.Meeting(JOIN, "/runs/a")
    assert torchrun.Meeting.parse(meeting.format()) == meeting


def test_the_start_line_tells_the_rules_and_not_the_token() -> None:
    line = torchrun.start_line(place(), torchrun.Meeting(JOIN, "/runs/a"))
    assert "4 workers under torchrun" in line
    assert "master at 127.0.0.1:7000, run directory /runs/a" in line
    assert "deaths follow torchrun's rules (--max-restarts 3)" in line
    assert "starts them again from the first step" in line
    assert "secret" not in line
    never = torchrun.start_line(place(TORCHELASTIC_MAX_RESTARTS="0"), torchrun.Meeting(JOIN, "/runs/a"))
    assert "again" not in never


def test_each_attempt_has_a_run_directory_of_its_own(tmp_path: Path) -> None:
    given = str(tmp_path / "d")
    assert [torchrun._run_dir(given, attempt) for attempt in (0, 1)] == [
        Path(given),
        Path(f"{given}-restart1"),
    ]
    assert torchrun._run_dir(None, 1).parent == Path("godmw-runs")


@pytest.mark.parametrize("started_by_torchrun", [False, True])
def test_a_master_of_an_earlier_attempt_is_passed_over(tmp_path: Path, started_by_torchrun: bool) -> None:
    """It lives for a few seconds more on the directory all attempts were given, and then stops its job."""
    marks = {"TORCHELASTIC_RUN_ID": "none"} if started_by_torchrun else {}
    sleeper = subprocess.Popen(["sleep", "60"], env=marks)
    try:
        run = RunDir(tmp_path)
        run.join.write_text(JOIN.format())
        run.master.write_text(json.dumps({"pid": sleeper.pid}))
        assert torchrun._standing(run) == (None if started_by_torchrun else JOIN)
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    ("local", "address", "dialled"),
    [("4", "10.0.0.5", "10.9.9.9"), ("2", "10.0.0.5", "10.0.0.5"), ("2", "127.0.0.1", "10.9.9.9")],
)
def test_what_other_hosts_dial(local: str, address: str, dialled: str) -> None:
    """The master says 10.9.9.9; torchrun's own address is better where it is none of the host alone."""
    assert torchrun._dialled("10.9.9.9", place(LOCAL_WORLD_SIZE=local, MASTER_ADDR=address)) == dialled


# ---- the other ranks wait


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield JoinAddress("127.0.0.1", server.getsockname()[1], "t")


def nobody() -> JoinAddress:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return JoinAddress("127.0.0.1", server.getsockname()[1], "t")


def wait(store: Store) -> torchrun.Meeting:
    return torchrun._wait_for_rank_0(store, "key", place())


def test_a_master_that_is_gone_is_passed_over(listening: JoinAddress) -> None:
    old, new = torchrun.Meeting(nobody(), "/old"), torchrun.Meeting(listening, "/new")
    assert wait(Store(None, old.format(), old.format(), new.format())) == new


def test_a_master_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "ANSWER_S", 0.0)
    gone = nobody()
    with pytest.raises(Unreachable, match=f"rank 1 cannot reach the master .* at {gone.endpoint}"):
        wait(Store(torchrun.Meeting(gone, "/old").format()))


def test_a_rank_0_that_never_comes_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchrun, "COME_S", 0.0)
    monkeypatch.setattr(torchrun, "SAY_AFTER_S", 0.0)
    with pytest.raises(Unreachable, match="waited 0 s for rank 0 to come to train"):
        wait(Store(None))
    assert capsys.readouterr().err == "godmw: rank 1 waits for rank 0 to come to train()\n"


def test_a_store_that_goes_is_named() -> None:
    with pytest.raises(Unreachable, match="torchrun's store has gone: Connection was likely closed"):
        wait(Store(RuntimeError("Connection was likely closed\nframe #0")))
