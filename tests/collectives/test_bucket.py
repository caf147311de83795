"""The layout: every parameter once, aligned, under the cap, small at both ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godmw.collectives.bucket import ALIGN_BYTES, BucketLayout, Item, lay_out

FP32, FP64 = (4, "float32@cpu"), (8, "float64@cpu")


def items(*numels: int) -> dict[int, Item]:
    return {i: Item(numel, *FP32) for i, numel in enumerate(numels)}


def indices(layout: BucketLayout) -> list[list[int]]:
    return [[piece.index for piece in bucket.pieces] for bucket in layout.buckets]


def test_buckets_follow_the_reverse_order_with_small_ends() -> None:
    # ten parameters of 100 bytes; ends of at least 100, a cap of 300
    layout = lay_out(items(*[25] * 10), bucket_bytes=300, edge_bytes=100)
    assert indices(layout) == [[9], [8, 7, 6], [5, 4, 3], [2, 1], [0]]


def test_an_observed_order_is_kept() -> None:
    layout = lay_out(items(25, 25, 25), [1, 2, 0], bucket_bytes=100, edge_bytes=100)
    assert indices(layout) == [[1], [2], [0]]
    assert layout.bucket_of() == {1: 0, 2: 1, 0: 2}
    assert layout.order == (1, 2, 0)


def test_little_is_one_bucket() -> None:
    assert indices(lay_out(items(10, 20, 30))) == [[2, 1, 0]]


def test_a_middle_smaller_than_an_end_joins_the_tail() -> None:
    layout = lay_out(items(25, 5, 25), bucket_bytes=300, edge_bytes=100)
    assert indices(layout) == [[2], [1, 0]]


def test_a_parameter_over_the_cap_is_alone() -> None:
    layout = lay_out(items(1, 1000, 1, 1), bucket_bytes=100, edge_bytes=4)
    assert [1] in indices(layout)


def test_places_are_aligned_and_gaps_are_padding() -> None:
    layout = lay_out(items(3, 17), bucket_bytes=1 << 20)
    (bucket,) = layout.buckets
    assert [(p.index, p.start, p.numel) for p in bucket.pieces] == [(1, 0, 17), (0, 32, 3)]
    assert [(part.start, part.stop) for part in bucket.parts] == [(0, 48)]
    assert layout.lengths == {"float32@cpu": 48}


def test_each_dtype_has_a_part_of_its_own() -> None:
    mixed = {0: Item(4, *FP32), 1: Item(4, *FP64), 2: Item(4, *FP32)}
    (bucket,) = lay_out(mixed).buckets
    assert [part.kind for part in bucket.parts] == ["float32@cpu", "float64@cpu"]
    assert [(p.index, p.part, p.start) for p in bucket.pieces] == [(2, 0, 0), (1, 1, 0), (0, 0, 16)]


def test_frozen_parameters_leave_holes_in_the_numbering() -> None:
    some = {1: Item(4, *FP32), 4: Item(4, *FP32)}
    assert indices(lay_out(some)) == [[4, 1]]
    assert lay_out({}).buckets == ()


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 2]])
def test_an_order_is_a_permutation(order: list[int]) -> None:
    with pytest.raises(ValueError, match="permutation"):
        lay_out(items(1, 2, 3), order)


def test_sizes_are_sizes() -> None:
    with pytest.raises(ValueError, match="not sizes"):
        lay_out(items(1), bucket_bytes=0)


@given(
    st.lists(st.tuples(st.integers(0, 600), st.sampled_from([FP32, FP64])), max_size=40),
    st.integers(1, 4000),
    st.integers(0, 1000),
    st.randoms(use_true_random=False),
)
def test_every_parameter_has_one_place(sizes, cap, edge, random) -> None:  # type: ignore[no-untyped-def]
    things = {i: Item(numel, *kind) for i, (numel, kind) in enumerate(sizes)}
    order = random.sample(sorted(things), len(things))
    layout = lay_out(things, order, bucket_bytes=cap, edge_bytes=edge)
    assert [index for bucket in indices(layout) for index in bucket] == order
    end = {"float32@cpu": 0, "float64@cpu": 0}
    for bucket in layout.buckets:
        assert bucket.pieces
        heavy = [piece for piece in bucket.pieces if piece.numel]
        assert len(heavy) <= 1 or sum(things[p.index].nbytes for p in bucket.pieces) <= cap
        for number, part in enumerate(bucket.parts):
            assert part.start == end[part.kind]
            position = 0
            for piece in (p for p in bucket.pieces if p.part == number):
                item = things[piece.index]
                assert item.kind == part.kind
                assert piece.numel == item.numel
                assert piece.start * item.itemsize % ALIGN_BYTES == 0
                assert 0 <= piece.start - position < ALIGN_BYTES // item.itemsize
                position = piece.start + piece.numel
            assert position <= part.stop - part.start
            end[part.kind] = part.stop
    assert {kind: length for kind, length in end.items() if kind in layout.lengths} == layout.lengths
