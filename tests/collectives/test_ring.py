"""The ring over every kind of transport: the sum, its bits, its bytes, and what it leaves alone."""

import pytest
import torch

from godmw.collectives import ring as ring_module
from godmw.collectives.packing import Packing, Results, shape_of
from godmw.collectives.ring import Ring
from godmw.collectives.schedule import bytes_sent
from tests.collectives.companions import KINDS, MemoryTransport, each, transports


def rings(made: list, **options) -> list[Ring]:
    return [Ring(transport, Results(transport.allocate), **options) for transport in made]


def contribution(rank: int, lengths: list[tuple[int, torch.dtype]]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randn(length, generator=generator).to(dtype)
        if dtype.is_floating_point
        else torch.randint(-1000, 1000, (length,), generator=generator).to(dtype)
        for length, dtype in lengths
    ]


SHAPES = [
    [(1, torch.float32)],
    [(1000, torch.float32), (18, torch.int64)],
    [(300_001, torch.float32), (7, torch.int64), (333, torch.float64)],
    [(5, torch.bfloat16), (70_000, torch.float16), (3, torch.int32)],
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_the_sum_has_the_same_bits_on_all_ranks(kind: str, world_size: int) -> None:
    with transports(kind, world_size) as made:
        all_rings = rings(made, segment_bytes=64 << 10)
        for shape in SHAPES:
            parts = [contribution(rank, shape) for rank in range(world_size)]
            kept = [[part.clone() for part in mine] for mine in parts]

            def run(rank: int, parts=parts) -> list[torch.Tensor]:
                out = all_rings[rank]._results.of([parts[rank]])[0]
                all_rings[rank].allreduce(parts[rank], out)
                return [tensor.clone() for tensor in out]

            outs = each(world_size, run)
            for rank in range(world_size):
                for part, (mine, before) in enumerate(zip(parts[rank], kept[rank], strict=True)):
                    assert torch.equal(mine, before), "a contribution is only read"
                    assert raw(outs[rank][part]) == raw(outs[0][part])
            for part, (_, dtype) in enumerate(shape):
                exact = sum(parts[rank][part].double() for rank in range(world_size))
                near = torch.finfo(dtype).eps * 64 if dtype.is_floating_point else 0.0
                assert torch.allclose(outs[0][part].double(), exact, rtol=near, atol=near)


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


def test_two_ranks_swap_and_go_round_to_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank order or ring order: a sum of two has the same bits, infinities and NaNs included."""
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 1e-45])
    parts = [torch.cat([special, torch.ones(3)]), torch.cat([special.flip(0), torch.full((3,), 2.0)])]
    sums = []
    for whole_bytes in (0, 1 << 20):
        monkeypatch.setattr(ring_module, "WHOLE_BYTES", whole_bytes)
        with transports("memory", 2) as made:
            both = rings(made)

            def run(rank: int, both=both) -> torch.Tensor:
                out = [torch.empty(8)]
                both[rank].allreduce([parts[rank]], out)
                return out[0]

            first, second = each(2, run)
            assert raw(first) == raw(second)
            sums.append(first)
    assert torch.equal(sums[0].nan_to_num(nan=7.0), sums[1].nan_to_num(nan=7.0))
    assert torch.equal(sums[0].isnan(), (parts[0] + parts[1]).isnan())


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
@pytest.mark.parametrize("length", [16, 1000, 100_003])
def test_the_bytes_on_the_wire_are_those_of_the_formula(world_size: int, length: int) -> None:
    """Two dtypes in one message: no byte and no message more than for one buffer of their size."""
    with transports("memory", world_size) as made:
        all_rings = rings(made, segment_bytes=16 << 10)
        parts = [torch.ones(length), torch.ones(18, dtype=torch.int64)]
        packed = Packing(shape_of(parts)).length
        assert packed <= length * 4 + 18 * 8 + 2 * 63

        def run(rank: int) -> int:
            all_rings[rank].allreduce(parts, all_rings[rank]._results.of([parts])[0])
            return made[rank].sent_bytes

        sent = each(world_size, run)
        assert sum(sent) == 2 * (world_size - 1) * packed
        if not (world_size == 2 and packed <= ring_module.WHOLE_BYTES):
            assert sent == [bytes_sent(rank, world_size, packed) for rank in range(world_size)]


@pytest.mark.parametrize("kind", KINDS)
def test_operations_follow_each_other_in_the_same_buffers(kind: str) -> None:
    with transports(kind, 3) as made:
        all_rings = rings(made, segment_bytes=4096)

        def run(rank: int) -> None:
            mine = all_rings[rank]
            part = [torch.empty(20_000), torch.empty(10, dtype=torch.int64)]
            out = mine._results.of([part])[0]
            for number in range(20):
                part[0].fill_(float(rank + number))
                part[1].fill_(rank * number)
                mine.allreduce(part, out)
                assert out[0].unique().tolist() == [3.0 * number + 3.0]
                assert out[1].unique().tolist() == [3 * number]
                assert mine.ready(100 * number + 10 - rank) == 100 * number + 8

        each(3, run)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_ready_is_the_smallest_word(world_size: int) -> None:
    with transports("memory", world_size) as made:
        all_rings = rings(made)
        for low in range(world_size):
            words = [2**62 - rank if rank != low else -5 for rank in range(world_size)]
            assert (
                each(world_size, lambda rank, w=words: all_rings[rank].ready(w[rank])) == [-5] * world_size
            )


def test_a_generation_of_one_copies() -> None:
    alone = Ring(None, Results(lambda length: torch.empty(length, dtype=torch.uint8)))
    part, out = torch.arange(5.0), torch.zeros(5)
    alone.allreduce([part], [out])
    assert out.tolist() == [0, 1, 2, 3, 4]
    assert alone.ready(17) == 17


def test_nothing_to_sum_sends_nothing() -> None:
    with transports("memory", 3) as made:
        all_rings = rings(made)
        parts = [torch.empty(0), torch.empty(0, dtype=torch.int64)]
        each(3, lambda rank: all_rings[rank].allreduce(parts, [part.clone() for part in parts]))
        each(3, lambda rank: all_rings[rank].allreduce([], []))
        assert [transport.sent_bytes for transport in made] == [0, 0, 0]


def test_the_probe_stands_behind_the_first_send() -> None:
    with transports("memory", 2) as made:
        seen: list[tuple[str, int]] = []
        both = [
            Ring(t, Results(t.allocate), probe=lambda point, t=t: seen.append((point, t.sent_bytes)))
            for t in made
        ]
        each(2, lambda rank: both[rank].allreduce([torch.ones(16)], [torch.empty(16)]))
        assert seen == [("first_send", 64), ("first_send", 64)]


def test_sends_and_receives_that_are_grouped_make_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a transport that cannot receive ahead has it: an exchange never waits for a later one."""
    monkeypatch.setattr(MemoryTransport, "receives_ahead", False)
    for world_size in (2, 3, 5):
        with transports("memory", world_size) as made:
            all_rings = rings(made, segment_bytes=4096)
            parts = [torch.full((200_000,), 2.0), torch.ones(7, dtype=torch.int64)]
            outs = [[torch.empty_like(part) for part in parts] for _ in range(world_size)]
            each(world_size, lambda rank: all_rings[rank].allreduce(parts, outs[rank]))  # noqa: B023
            for floats, words in outs:
                assert floats.unique().tolist() == [2.0 * world_size]
                assert words.unique().tolist() == [world_size]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("length", [100, 200_000])
def test_what_is_given_is_not_written(world_size: int, length: int) -> None:
    with transports("memory", world_size) as made:
        all_rings = rings(made, segment_bytes=4096)
        parts = [[torch.full((length,), 1.0 + rank), torch.ones(3)] for rank in range(world_size)]
        outs = [[torch.empty(length), torch.empty(3)] for _ in range(world_size)]
        each(world_size, lambda rank: all_rings[rank].allreduce(parts[rank], outs[rank]))
        for rank in range(world_size):
            assert parts[rank][0].unique().tolist() == [1.0 + rank]
            assert parts[rank][1].unique().tolist() == [1.0]
            assert outs[rank][0].unique().tolist() == [sum(range(1, world_size + 1))]
