"""State from donor to joiner over real endpoints: whole or not at all, from whoever is left."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from godmw.checkpoint.encoding import pack
from godmw.checkpoint.snapshot import Entry, Snapshot
from godmw.checkpoint.transfer import CHUNK_BYTES, Cancelled, Donor, Fetch, NoDonor
from godmw.collectives.endpoint import Endpoint
from godmw.collectives.frames import Connection, PeerError

TOKEN = "token"
LIMIT_BYTES = 64 << 20


def snapshot(seed: int, changed: Sequence[int] = (), big: int = CHUNK_BYTES // 4 + 1000) -> Snapshot:
    """Tensors of many dtypes and sizes; those numbered in `changed` have other values."""
    tensors = []
    kinds = [torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.uint8]
    for number, (size, dtype) in enumerate(zip([big, 0, 7, 1, 90_000], kinds, strict=True)):
        generator = torch.Generator().manual_seed(100 * seed + number + (50 if number in changed else 0))
        tensors.append(torch.randint(0, 99, (size,), generator=generator).to(dtype))
    tensors[3] = tensors[3].reshape(())
    entries = [Entry.of(f"model/{i}", tensor) for i, tensor in enumerate(tensors)]
    return Snapshot(pack(["plain", seed, list(changed)]), entries, tensors)


@pytest.fixture
def endpoint() -> Iterator[Callable[[], Endpoint]]:
    made: list[Endpoint] = []

    def make() -> Endpoint:
        made.append(Endpoint("127.0.0.1", TOKEN).start())
        return made[-1]

    yield make
    for one in made:
        one.close()


def fetch(joiner: Endpoint, donors: Sequence[Endpoint], have: Snapshot, **options: Any) -> Fetch:
    given = {"limit_bytes": LIMIT_BYTES, "stall_s": 5.0, **options}
    return Fetch(joiner, [donor.address for donor in donors], 3, have, **given)


def donor(endpoint: Endpoint, offered: Snapshot | None = None, **options: Any) -> Donor:
    serving = Donor(endpoint, **{"keepalive_s": 0.02, "stall_s": 5.0, **options})
    if offered is not None:
        serving.offer(3, offered)
    return serving


def same(a: Snapshot, b: Snapshot) -> bool:
    pairs = zip(a.tensors, b.tensors, strict=True)
    return a.meta == b.meta and a.entries == b.entries and all(torch.equal(x, y) for x, y in pairs)


def test_a_joiner_gets_the_whole(endpoint: Callable[[], Endpoint]) -> None:
    giving, joining = endpoint(), endpoint()
    state, have = snapshot(1), snapshot(2)
    donor(giving, state)
    run = fetch(joining, [giving], have)
    got = run.run()
    assert same(got, state)
    assert got.digest == state.digest
    assert run.received_bytes == sum(tensor.nbytes for tensor in state.tensors)


def test_tensors_that_agree_are_not_sent(endpoint: Callable[[], Endpoint]) -> None:
    giving, joining = endpoint(), endpoint()
    state, have = snapshot(1, changed=[2, 3]), snapshot(1)
    donor(giving, state)
    run = fetch(joining, [giving], have)
    got = run.run()
    assert run.received_bytes == 7 * 2 + 8
    for tensor in have.tensors:
        tensor.zero_()  # what was received is apart from the live tensors
    assert same(got, state)


def test_a_donor_waits_for_its_own_boundary(endpoint: Callable[[], Endpoint]) -> None:
    giving, joining = endpoint(), endpoint()
    serving = donor(giving)
    state = snapshot(1)
    asked = threading.Event()
    original = serving._settled

    def settled(generation: int) -> bool:
        asked.set()
        return original(generation)

    serving._settled = settled  # type: ignore[method-assign]
    serving.offer(2, snapshot(9))  # another generation's
    result: list[Snapshot] = []
    thread = threading.Thread(target=lambda: result.append(fetch(joining, [giving], snapshot(2)).run()))
    thread.start()
    assert asked.wait(5)
    assert not result
    serving.offer(3, state)
    thread.join(5)
    assert same(result[0], state)


def test_a_generation_that_is_over_is_refused(endpoint: Callable[[], Endpoint]) -> None:
    giving, other, joining = endpoint(), endpoint(), endpoint()
    serving = donor(giving, snapshot(1))
    serving.withdraw(3)
    donor(other).close()
    with pytest.raises(NoDonor, match=r"generation 3 is over; .*the worker ends") as caught:
        fetch(joining, [giving, other], snapshot(2)).run()
    assert giving.address in str(caught.value)


def test_when_a_donor_dies_the_next_one_goes_on_from_there(endpoint: Callable[[], Endpoint]) -> None:
    dying, giving, joining = endpoint(), endpoint(), endpoint()
    state = snapshot(1)
    sent: list[str] = []

    def die(point: str) -> None:
        sent.append(point)
        if len(sent) == 4:  # the large tensor has left, the small ones have not
            dying.close()

    sent_again: list[str] = []
    donor(dying, state, probe=die)
    donor(giving, state, probe=sent_again.append)
    run = fetch(joining, [dying, giving], snapshot(2))
    assert same(run.run(), state)
    assert sent == ["donor_sending"] * 4  # the empty tensor agrees
    assert len(sent_again) == 3  # the large one had arrived whole
    assert run.received_bytes == sum(tensor.nbytes for tensor in state.tensors)


def test_a_silent_donor_is_left(endpoint: Callable[[], Endpoint]) -> None:
    silent, giving, joining = endpoint(), endpoint(), endpoint()
    released = threading.Event()
    silent.on("state", lambda connection, message: released.wait(20) and None)
    state = snapshot(1)
    donor(giving, state)
    assert same(fetch(joining, [silent, giving], snapshot(2), stall_s=0.1).run(), state)
    released.set()


def test_nobody_left_says_what_each_did(endpoint: Callable[[], Endpoint]) -> None:
    gone, joining = endpoint(), endpoint()
    gone.close()
    with pytest.raises(NoDonor, match="no donor gave the state of generation 3") as caught:
        fetch(joining, [gone], snapshot(2)).run()
    assert gone.address in str(caught.value)
    with pytest.raises(NoDonor):
        fetch(joining, [], snapshot(2)).run()


@pytest.mark.parametrize("point", ["waiting", "receiving", "before"])
def test_a_cancel_ends_it_at_once(endpoint: Callable[[], Endpoint], point: str) -> None:
    giving, joining = endpoint(), endpoint()
    held = threading.Event()
    arrived = threading.Event()

    def hold(_: str) -> None:
        arrived.set()
        held.wait(20)

    donor(giving, snapshot(1) if point == "receiving" else None, probe=hold)
    run = fetch(joining, [giving], snapshot(2), stall_s=30.0)
    if point == "before":
        run.cancel()
    outcome: list[Exception] = []

    def attempt() -> None:
        try:
            run.run()
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    if point == "receiving":
        assert arrived.wait(5)
    run.cancel()
    thread.join(5)
    held.set()
    assert [type(error) for error in outcome] == [Cancelled]


# ---- donors that lie ----


def lying(endpoint: Endpoint, change: Callable[[dict[str, Any]], None]) -> None:
    """A donor whose description, or bytes, are changed before they leave."""
    state = snapshot(1)

    def serve(connection: Connection, _: Any) -> None:
        entries, digests = state.entries, state.digests
        rows = [[e.path, e.dtype, list(e.shape), d] for e, d in zip(entries, digests, strict=True)]
        told: dict[str, Any] = {"rows": rows, "meta": state.meta, "data": None, "digest": state.digest}
        change(told)
        packed = told["rows"] if isinstance(told["rows"], bytes) else pack(told["rows"])
        sizes = told.get("sizes", (len(told["meta"]), len(packed)))
        connection.send({"digest": told["digest"], "meta": sizes[0], "rows": sizes[1]}, 5)
        connection.send_bytes(told["meta"] + packed, 5)
        connection.receive(5)
        for number, tensor in enumerate(state.tensors):
            data = bytearray(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
            if number == told["data"]:
                data[-1] ^= 1
            connection.send_bytes(data, 5)
        connection.send({"digest": told["digest"]}, 5)

    endpoint.on("state", serve)


def huge(told: dict[str, Any]) -> None:
    told["rows"][0][2] = [1 << 40]


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another bit": (lambda t: t.update(data=4), "model/4 arrived with another digest"),
    "a tensor beyond bounds": (huge, "a snapshot of .* bytes, at most"),
    "a description beyond bounds": (lambda t: t.update(sizes=(1 << 40, 1)), "bytes of description"),
    "negative sizes": (lambda t: t.update(sizes=(-1, 1)), "bytes of description"),
    "another plain part": (lambda t: t.update(meta=b"x" * len(t["meta"])), "is not that of its parts"),
    "a negative shape": (lambda t: t["rows"][0].__setitem__(2, [-1]), "not a shape"),
    "no such dtype": (lambda t: t["rows"][0].__setitem__(1, "load"), "no dtype 'load'"),
    "no digest": (lambda t: t["rows"][0].__setitem__(3, b"1"), "not a digest"),
    "no rows": (lambda t: t.update(rows=b"\xc0"), "not a tensor's description"),
    "no MessagePack": (lambda t: t.update(rows=b"\xc1"), "not MessagePack"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_donor_that_lies_is_replaced(endpoint: Callable[[], Endpoint], lie: str) -> None:
    liar, giving, joining = endpoint(), endpoint(), endpoint()
    change, words = LIES[lie]
    lying(liar, change)
    with pytest.raises(NoDonor, match=words):
        fetch(joining, [liar], snapshot(2)).run()
    donor(giving, snapshot(1))
    assert same(fetch(joining, [liar, giving], snapshot(2)).run(), snapshot(1))


def test_tensors_that_cannot_be_part_of_it_are_not_received(endpoint: Callable[[], Endpoint]) -> None:
    giving, joining = endpoint(), endpoint()
    donor(giving, snapshot(1))

    def accept(entries: Sequence[Entry]) -> None:
        raise ValueError(f"{entries[0].path} is another here")

    run = fetch(joining, [giving], snapshot(2), accept=accept)
    with pytest.raises(NoDonor, match="model/0 is another here"):
        run.run()
    assert run.received_bytes == 0


@pytest.mark.parametrize("request_", [{}, {"generation": "3"}, {"generation": True}])
def test_a_donor_hangs_up_on_nonsense(endpoint: Callable[[], Endpoint], request_: dict[str, Any]) -> None:
    giving, joining = endpoint(), endpoint()
    donor(giving, snapshot(1))
    connection = joining.request(giving.address, "state", request_, 5)
    with connection, pytest.raises(PeerError, match="closed"):
        connection.receive(5)


def test_a_donor_hangs_up_on_a_wish_of_another_length(endpoint: Callable[[], Endpoint]) -> None:
    giving, joining = endpoint(), endpoint()
    state = snapshot(1)
    donor(giving, state)
    with joining.request(giving.address, "state", {"generation": 3}, 5) as connection:
        head = connection.receive(5)
        connection.receive_into(memoryview(bytearray(head["meta"] + head["rows"])), 5)
        connection.send({"want": b"\1"}, 5)
        with pytest.raises(PeerError, match="closed"):
            connection.receive(5)
