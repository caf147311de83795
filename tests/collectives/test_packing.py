"""Parts in one buffer: aligned, whole, found again by the bytes they lie in."""

import torch

from godmw.collectives.packing import Packed, Packing, Results, shape_of


def allocate(length: int) -> torch.Tensor:
    return torch.full((length,), 255, dtype=torch.uint8)


PARTS = [
    torch.arange(100, dtype=torch.float32),
    torch.arange(7, dtype=torch.int64),
    torch.empty(0, dtype=torch.float32),
    torch.arange(33, dtype=torch.bfloat16),
]


def test_parts_lie_behind_each_other_on_64_byte_boundaries() -> None:
    packed = Packed(Packing(shape_of(PARTS)), allocate)
    assert packed.packing.offsets == [0, 448, 512, 512]
    assert packed.packing.length == 512 + 128
    for source, view in zip(PARTS, packed.parts, strict=True):
        view.copy_(source)
    assert packed.buffer[:400].view(torch.float32).tolist() == list(map(float, range(100)))
    assert packed.buffer[448:504].view(torch.int64).tolist() == list(range(7))
    gaps = [(400, 448), (504, 512), (512 + 66, 640)]
    assert all(not packed.buffer[low:high].any() for low, high in gaps), (
        "gaps are sent: they hold no old bytes"
    )


def test_every_element_is_in_exactly_one_range() -> None:
    packing = Packing(shape_of(PARTS))
    for step in (64, 192, 640):
        seen = [[0] * part.numel() for part in PARTS]
        for low in range(0, packing.length, step):
            for piece in packing.pieces(low, min(low + step, packing.length)):
                for index in range(piece.low, piece.high):
                    seen[piece.part][index] += 1
        assert all(set(counts) <= {1} for counts in seen)


def test_results_are_the_same_tensors_for_the_same_layout() -> None:
    results = Results(allocate)
    first = results.of([PARTS[:2], PARTS[3:]])
    again = results.of([[part.clone() for part in PARTS[:2]], PARTS[3:]])
    other = results.of([PARTS[:1], PARTS[3:]])
    assert all(a is b for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    assert other[0][0].data_ptr() != first[0][0].data_ptr()
    assert [tensor.dtype for tensor in first[0]] == [torch.float32, torch.int64]


def test_results_know_their_own_buffers_only() -> None:
    results = Results(allocate)
    bucket = results.of([PARTS])[0]
    packed = results.packed(bucket)
    assert packed is not None
    assert packed.parts[0].data_ptr() == bucket[0].data_ptr()
    assert results.packed([part.clone() for part in PARTS]) is None
    assert results.packed(bucket[:2]) is None
    assert results.packed([]) is None
