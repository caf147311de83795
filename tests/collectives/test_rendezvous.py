"""Members find each other through their endpoints: one attempt for all; early, late, stale, false posts."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from godmw.collectives.endpoint import Endpoint
from godmw.collectives.rendezvous import HERE, KIND, Cancelled, Meeting, Missing, Rendezvous, Superseded

Hubs = list[Rendezvous]


def never() -> bool:
    return False


@pytest.fixture
def hubs() -> Iterator[Hubs]:
    made = [Rendezvous(Endpoint("127.0.0.1", "token").start(), f"w{rank}") for rank in range(4)]
    yield made
    for hub in made:
        hub.endpoint.close()


def meet(hubs: Hubs, generation: int, present: list[int] | None = None) -> list[Meeting]:
    members = [(hub.worker, hub.endpoint.address) for hub in hubs]
    return [hubs[rank].meet(generation, rank, members) for rank in present or range(len(hubs))]


def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def in_s(seconds: float) -> float:
    return time.monotonic() + seconds


def test_all_meet_in_one_attempt_and_share_keys(hubs: Hubs) -> None:
    def run(meeting: Meeting) -> tuple[int, list[bytes]]:
        attempt = meeting.begin()
        meeting.push(f"key {meeting.rank}", bytes([meeting.rank]))
        meeting.gather(in_s(5), never)
        return attempt, [meeting.value(f"key {rank}", in_s(5), never) for rank in range(4)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, meet(hubs, 1))) == [(1, [b"\0", b"\1", b"\2", b"\3"])] * 4


def test_what_comes_before_the_plan_is_kept(hubs: Hubs) -> None:
    (first,) = meet(hubs[:2], 5, [0])
    first.begin()
    first.push("k", b"v")
    soon(lambda: "k" in getattr(hubs[1].heard(5).get((0, "w0")), "keys", {}))
    (second,) = meet(hubs[:2], 5, [1])
    second.begin()
    second.gather(in_s(5), never)
    assert second.value("k", in_s(5), never) == b"v"


def test_the_missing_are_named_at_the_deadline(hubs: Hubs) -> None:
    meetings = meet(hubs, 1, [0, 2])
    for meeting in meetings:
        meeting.begin()
    began = time.monotonic()
    with pytest.raises(Missing) as caught:
        meetings[0].gather(in_s(0.3), never)
    assert caught.value.ranks == [1, 3]
    assert 0.25 < time.monotonic() - began < 2


def test_whoever_hears_of_a_newer_attempt_joins_it(hubs: Hubs) -> None:
    one, two = meet(hubs[:2], 1)
    one.begin()
    two.begin()
    one.gather(in_s(5), never)
    two.gather(in_s(5), never)
    assert one.begin() == 2
    with pytest.raises(Superseded):
        two.value("never pushed", in_s(5), never)
    assert two.begin() == 2
    one.gather(in_s(5), never)
    two.gather(in_s(5), never)


def test_keys_of_an_older_attempt_are_not_seen(hubs: Hubs) -> None:
    one, two = meet(hubs[:2], 1)
    one.begin()
    one.push("k", b"old")
    two.begin()
    assert two.value("k", in_s(5), never) == b"old"
    assert two.begin() == 2
    assert two.absent() == [0]
    assert not two.has("k")
    with pytest.raises(Missing):
        two.value("k", in_s(0.05), never)
    assert one.begin() == 2
    two.gather(in_s(5), never)
    assert not two.has("k")


def test_older_generations_are_forgotten_and_ignored(hubs: Hubs) -> None:
    (old,) = meet(hubs[:2], 3, [0])
    old.begin()
    soon(lambda: (0, "w0") in hubs[1].heard(3))
    meet(hubs[:2], 4, [1])
    assert hubs[1].heard(3) == {}
    old.begin()
    (new,) = meet(hubs[:2], 4, [0])
    new.begin()
    soon(lambda: (0, "w0") in hubs[1].heard(4))
    assert hubs[1].heard(3) == {}


def test_strangers_do_not_count(hubs: Hubs) -> None:
    """Another worker under a member's rank, a member under another rank, a post meant for somebody else."""
    members = [(hub.worker, hub.endpoint.address) for hub in hubs[:2]]
    meeting = hubs[0].meet(1, 0, members)
    meeting.begin()
    base = {"generation": 1, "attempt": 1, "rank": 1, "worker": "w1", "to": "w0", "key": HERE, "value": b""}
    for false in ({"worker": "w3"}, {"rank": 0}, {"to": "w1"}, {"generation": 0}):
        hubs[1].endpoint.post(members[0][1], KIND, {**base, **false})
    hubs[1].endpoint.post(members[0][1], KIND, {**base, "generation": 9})
    soon(lambda: (1, "w1") in hubs[0].heard(9))
    assert meeting.absent() == [1]
    hubs[1].endpoint.post(members[0][1], KIND, base)
    meeting.gather(in_s(5), never)


@pytest.mark.parametrize(
    "wrong",
    [{"attempt": 0}, {"rank": -1}, {"rank": 1 << 20}, {"value": "text"}, {"key": 3}, {"attempt": True}],
)
def test_what_is_malformed_is_dropped(hubs: Hubs, wrong: dict[str, object]) -> None:
    base = {"generation": 1, "attempt": 1, "rank": 1, "worker": "w1", "to": "w0", "key": HERE, "value": b""}
    hubs[1].endpoint.post(hubs[0].endpoint.address, KIND, {**base, **wrong})
    deadline = time.monotonic() + 5
    while (1, "w1") not in hubs[0].heard(
        2
    ):  # the connection was closed: the next post goes over a fresh one
        assert time.monotonic() < deadline
        hubs[1].endpoint.forget(hubs[0].endpoint.address)
        hubs[1].endpoint.post(hubs[0].endpoint.address, KIND, {**base, "generation": 2})
        time.sleep(0.01)
    assert hubs[0].heard(1) == {}


def test_early_generations_are_bounded(hubs: Hubs) -> None:
    base = {"attempt": 1, "rank": 1, "worker": "w1", "to": "w0", "key": HERE, "value": b""}
    for generation in range(1, 40):
        hubs[1].endpoint.post(hubs[0].endpoint.address, KIND, {**base, "generation": generation})
    hubs[1].endpoint.post(hubs[0].endpoint.address, KIND, {**base, "generation": 1, "key": "last"})
    soon(lambda: "last" in hubs[0].heard(1)[1, "w1"].keys if (1, "w1") in hubs[0].heard(1) else False)
    assert len([number for number in range(40) if hubs[0].heard(number)]) <= 8


def test_a_cancelled_wait_ends(hubs: Hubs) -> None:
    meeting = meet(hubs[:2], 1, [0])[0]
    meeting.begin()
    flag = threading.Event()
    threading.Timer(0.1, flag.set).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        meeting.gather(in_s(30), flag.is_set)
    assert time.monotonic() - began < 2


def test_only_a_member_may_meet(hubs: Hubs) -> None:
    members = [(hub.worker, hub.endpoint.address) for hub in hubs]
    with pytest.raises(ValueError, match="not member 1"):
        hubs[0].meet(1, 1, members)
