"""What may be set about a job, and the join address: what is taken, what is refused and in which words."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godmw import config, ids
from godmw.clock import Clock, SystemClock
from godmw.config import JobSettings, JoinAddress, join_address, parse_endpoint
from godmw.errors import UsageError

TOKEN = "Zm9v-YmFy_0"


def test_the_defaults_of_the_paper() -> None:
    settings = dataclasses.asdict(JobSettings())
    assert settings | {
        "minimum": 1, "maximum": 0, "lease_s": 2.0, "remote_lease_s": 10.0, "beat_s": 0.25,
        "start_timeout_s": 30.0, "stall_timeout_s": 600.0, "restarts": 3, "restart_window_s": 600.0,
        "orphan_s": 600.0,
    } == settings  # fmt: skip


def test_what_may_be_switched_off() -> None:
    settings = JobSettings(stall_timeout_s=None, restarts=None, start_timeout_s=0.0)
    assert (settings.stall_timeout_s, settings.restarts) == (None, None)


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"minimum": 3, "maximum": 2, "target": 2}, "--min 3 is above --max 2"),
        ({"minimum": 0}, "--min 0: 1 to 1024"),
        ({"minimum": 1025}, "--min 1025: 1 to 1024"),
        ({"maximum": -1}, "--max -1: 1 to 1024"),
        ({"target": -1}, "-1 workers asked for"),
        ({"target": 5, "maximum": 4}, "5 workers asked for, above --max 4"),
        ({"lease_s": 0.0}, "--lease 0.0"),
        ({"lease_s": math.inf}, "--lease inf"),
        ({"beat_s": math.nan}, "--beat nan"),
        ({"lease_s": 0.4}, "a lease of 0.4 s is shorter than two beats of 0.25 s"),
        ({"remote_lease_s": 0.4}, "a lease of 0.4 s is shorter than two beats"),
        ({"stall_timeout_s": 0.0}, "--stall-timeout 0.0"),
        ({"start_timeout_s": -1.0}, "--start-timeout -1.0"),
        ({"restarts": -1}, "--restarts -1"),
        ({"orphan_s": -1.0}, "--orphan -1.0"),
    ],
)
def test_settings_that_cannot_be_meant(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        JobSettings(**given_settings)
    assert message in caught.value.message


def test_off_or_a_number() -> None:
    assert config.seconds_or_off("off", "--stall-timeout") is None
    assert config.seconds_or_off("1.5", "--stall-timeout") == 1.5
    assert config.count_or_off("off", "--restarts") is None
    assert config.count_or_off("0", "--restarts") == 0
    for text in ("", "0", "-1", "nan", "inf", "none"):
        with pytest.raises(UsageError, match="--stall-timeout"):
            config.seconds_or_off(text, "--stall-timeout")
    for text in ("", "-1", "1.5", "1e3", "9999999999"):
        with pytest.raises(UsageError, match="--restarts"):
            config.count_or_off(text, "--restarts")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (f"godmw://10.0.0.1:7000/{TOKEN}", "10.0.0.1", 7000),
        (f"godmw://node-3.example.org:65535/{TOKEN}", "node-3.example.org", 65535),
        (f"godmw://[::1]:7000/{TOKEN}", "::1", 7000),
        (f"godmw://[fe80::1%eth0]:1/{TOKEN}", "fe80::1%eth0", 1),
    ],
)
def test_a_join_address(text: str, host: str, port: int) -> None:
    address = JoinAddress.parse(text)
    assert address == JoinAddress(host, port, TOKEN)
    assert address.format() == text
    assert address.bare() == text.removesuffix(f"/{TOKEN}")
    assert TOKEN not in repr(address)
    assert JoinAddress.parse(address.bare()) == JoinAddress(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "", "10.0.0.1:7000", "http://10.0.0.1:7000/x", "godmw://10.0.0.1", "godmw://10.0.0.1:",
        "godmw://:7000", "godmw://10.0.0.1:0", "godmw://10.0.0.1:65536", "godmw://10.0.0.1:7e3",
        "godmw://::1:7000",
        "godmw://[::1:7000", "godmw://a b:7000", "godmw://10.0.0.1:7000/", "godmw://10.0.0.1:7000/a/b",
        "godmw://u@h:7000", "godmw://10.0.0.1:7000/a b", "godmw://10.0.0.1:-1", "godmw://10.0.0.1: 70",
    ],
)  # fmt: skip
def test_no_join_address(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        JoinAddress.parse(text)
    assert caught.value.hint


def test_an_error_never_repeats_the_token() -> None:
    for text in (
        f"godmw://h:x/{TOKEN}",
        f"godmw://h:1/{TOKEN}/more",
        f"h:1/{TOKEN}",
        f"godmw://::1:2/{TOKEN}",
    ):
        with pytest.raises(UsageError) as caught:
            JoinAddress.parse(text)
        assert TOKEN not in f"{caught.value.message} {caught.value.hint}"


@given(st.text(alphabet="godmw:/[]0.1%a-", max_size=24))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    for given_text in (text, "godmw://" + text):
        try:
            address = JoinAddress.parse(given_text)
        except UsageError:
            continue
        assert JoinAddress.parse(address.format()) == address


def test_endpoints() -> None:
    assert parse_endpoint("0.0.0.0:0") == ("0.0.0.0", 0)
    assert parse_endpoint("[::]:7000") == ("::", 7000)
    assert config.format_endpoint("::", 7000) == "[::]:7000"
    with pytest.raises(UsageError, match="--listen '7000': HOST:PORT was expected"):
        parse_endpoint("7000", "--listen")


def test_where_the_address_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "join"
    whole = JoinAddress("10.0.0.1", 7000, TOKEN)
    file.write_text(whole.format() + "\n")
    assert join_address(None, None) is None
    assert join_address("", "") is None
    assert join_address(None, whole.format()) == whole
    assert join_address(f"@{file}", None) == whole
    assert join_address(None, f"@{file}") == whole
    assert join_address("godmw://elsewhere:9", whole.format()) == JoinAddress("elsewhere", 9, TOKEN)
    assert join_address(f"@{file}", "godmw://elsewhere:9/other") == whole
    file.write_text(f"GODMW_JOIN='{whole.format()}'\n")
    assert join_address(f"@{file}", None) == whole


def test_a_token_in_an_argument_list_is_refused() -> None:
    with pytest.raises(UsageError, match="argument lists are readable by everybody") as caught:
        join_address(f"godmw://10.0.0.1:7000/{TOKEN}", None)
    assert TOKEN not in f"{caught.value.message} {caught.value.hint}"
    assert "--join @FILE" in str(caught.value.hint)


def test_an_address_without_a_token(tmp_path: Path) -> None:
    for argument, environment in (
        ("godmw://h:1", None),
        (None, "godmw://h:1"),
        ("godmw://h:1", "godmw://h:2"),
    ):
        with pytest.raises(UsageError, match="no token") as caught:
            join_address(argument, environment)
        assert "GODMW_JOIN" in str(caught.value.hint)
    with pytest.raises(UsageError, match="No such file"):
        join_address(f"@{tmp_path / 'nothing'}", None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text"):
        join_address(f"@{tmp_path / 'binary'}", None)


def test_ids_and_tokens() -> None:
    assert (ids.worker_id(3), ids.agent_id(0)) == ("w3", "a0")
    made = {ids.new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(JoinAddress.parse(f"godmw://h:1/{token}").token == token for token in made)
    assert all(ids.is_id(ids.new_id("job")) for _ in range(100))


def test_the_machines_own_clock_goes_on() -> None:
    clock: Clock = SystemClock()
    first = clock.now_s()
    assert clock.now_s() >= first
    assert clock.wall_s() > 1.7e9
