"""One suite for every kind of transport: what a generation's links promise, whatever carries them."""

import time

import pytest
import torch

from godmw.collectives.transport import Abandoned, LinkError
from tests.collectives.companions import KINDS, aside, each, transports

pytestmark = pytest.mark.parametrize("kind", KINDS)


def numbers(rank: int, length: int) -> torch.Tensor:
    return (torch.arange(length, dtype=torch.int64) * 7 + rank * 31 & 255).to(torch.uint8)


@pytest.mark.parametrize("length", [1, 64, 4097, 3 << 20])
def test_an_exchange_moves_the_bytes_both_ways(kind: str, length: int) -> None:
    with transports(kind, 2) as both:

        def run(rank: int) -> torch.Tensor:
            target = both[rank].allocate(length)
            work = both[rank].exchange([(numbers(rank, length), 1 - rank)], [(target, 1 - rank)], "test")
            work.wait()
            return target

        for rank, got in enumerate(each(2, run)):
            assert torch.equal(got, numbers(1 - rank, length))


def test_exchanges_in_flight_meet_in_order(kind: str) -> None:
    with transports(kind, 3) as ranks:

        def run(rank: int) -> list[int]:
            left, right = (rank - 1) % 3, (rank + 1) % 3
            targets = [ranks[rank].allocate(1000) for _ in range(20)]
            works = [
                ranks[rank].exchange([(torch.full_like(target, number), right)], [(target, left)], "test")
                for number, target in enumerate(targets)
            ]
            for work in works:
                work.wait()
            return [int(target.unique()) for target in targets]

        assert each(3, run) == [list(range(20))] * 3


def test_an_exchange_may_send_or_receive_only_or_nothing(kind: str) -> None:
    with transports(kind, 2) as both:
        target = both[1].allocate(8)

        def run(rank: int) -> None:
            sends = [(numbers(0, 8), 1)] if rank == 0 else []
            both[rank].exchange(sends, [] if rank == 0 else [(target, 0)], "test").wait()
            both[rank].exchange([], [], "test").wait()

        each(2, run)
        assert torch.equal(target, numbers(0, 8))


def test_payload_is_counted(kind: str) -> None:
    with transports(kind, 2) as both:
        before = [transport.sent_bytes for transport in both]

        def run(rank: int) -> None:
            target = both[rank].allocate(100)
            both[rank].exchange([(numbers(rank, 100), 1 - rank)], [(target, 1 - rank)], "test").wait()

        each(2, run)
        assert [transport.sent_bytes for transport in both] == [count + 100 for count in before]


def test_abort_ends_a_wait_on_a_silent_peer(kind: str) -> None:
    with transports(kind, 2) as both:
        target = both[0].allocate(100)
        work = both[0].exchange([], [(target, 1)], "test")
        ended = aside(work.wait)
        time.sleep(0.05)
        assert ended.empty()
        began = time.monotonic()
        both[0].abort()
        assert isinstance(ended.get(timeout=5), Abandoned)
        assert time.monotonic() - began < 1
        with pytest.raises(Abandoned):
            both[0].exchange([], [(target, 1)], "test")


def test_abort_twice_and_close_are_not_collective(kind: str) -> None:
    with transports(kind, 3) as ranks:
        began = time.monotonic()
        ranks[1].abort()
        ranks[1].abort()
        ranks[1].close()
        ranks[1].close()
        assert time.monotonic() - began < 1


def test_a_peer_that_closes_breaks_the_wait_and_is_named(kind: str) -> None:
    with transports(kind, 2) as both:
        target = both[0].allocate(100)
        work = both[0].exchange([], [(target, 1)], "reduce_scatter")
        ended = aside(work.wait)
        both[1].abort()
        both[1].close()
        error = ended.get(timeout=5)
        assert isinstance(error, LinkError)
        assert (error.peer, error.stage) == (1, "reduce_scatter")


def test_a_deadline_names_the_peer(kind: str) -> None:
    with transports(kind, 2) as both:
        work = both[0].exchange([], [(both[0].allocate(1), 1)], "forming")
        with pytest.raises(LinkError) as caught:
            work.wait(0.05)
        assert (caught.value.peer, caught.value.stage) == (1, "forming")


def test_memory_is_aligned(kind: str) -> None:
    with transports(kind, 2) as both:
        assert all(both[0].allocate(length).data_ptr() % 64 == 0 for length in (1, 65, 1000))
        assert both[0].allocate(10).dtype == torch.uint8
