"""The story that a joiner reads, and the small pieces of bytes that travel in sums."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from godmw.errors import JobFailed, UsageError
from godmw.worker.chance import untouched, word
from godmw.worker.payloads import from_rows, to_rows, words_needed
from godmw.worker.progress import Progress
from godmw.worker.story import Story
from godmw.worker.values import decode, encode


def told() -> Story:
    story = Story()
    story.add("evaluate", "x", result="r")
    story.add("loop", "a", done=True)
    return story


def joiner(story: Story) -> Story:
    copy = Story([dict(entry) for entry in story.entries])
    copy.cursor = 0
    return copy


def test_a_joiner_reads_the_entries_in_order_and_then_writes_its_own() -> None:
    reader = joiner(told())
    assert reader.follow("evaluate", "x") == {"kind": "evaluate", "what": "x", "result": "r"}
    assert reader.follow("loop", "a") == {"kind": "loop", "what": "a", "done": True}
    assert reader.follow("loop", "b") is None
    assert reader.add("loop", "b")["kind"] == "loop"


def test_a_script_that_does_otherwise_is_told() -> None:
    with pytest.raises(JobFailed, match="does loop a where the others did evaluate x"):
        joiner(told()).follow("loop", "a")
    with pytest.raises(JobFailed, match="does once y where the others did evaluate x"):
        joiner(told()).require_end("once", "y")


def test_a_finished_pass_is_one_entry() -> None:
    story = told()
    entry = story.add("passes", "3", finished=0)
    story.add("loop", "a", done=True)
    story.add("evaluate", "x", result="s")
    story.close_pass(entry)
    assert [known["kind"] for known in story.entries] == ["evaluate", "loop", "passes"]
    assert entry["finished"] == 1
    assert not story.replaying


def test_progress_keeps_the_users_dict_and_its_own_story() -> None:
    mine, sent = Progress(), Progress(steps=7, story=told(), script={"best": 1})
    held = mine.script
    held["old"] = 2
    mine.load_state_dict(sent.state_dict())
    assert mine.steps == 7
    assert held is mine.script
    assert held == {"best": 1}
    assert mine.story.entries == []


@given(st.dictionaries(st.integers(0, 9), st.binary(max_size=70)), st.integers(0, 12))
def test_pieces_come_back_from_the_sum_of_disjoint_rows(pieces: dict[int, bytes], words: int) -> None:
    halves = [dict(list(pieces.items())[part::2]) for part in range(2)]
    rows = sum(to_rows(half, 10, words) for half in halves)
    needed = words_needed(rows)
    longest = max((len(piece) for piece in pieces.values()), default=0)
    assert (needed == words) == (longest <= 8 * words)
    assert 8 * needed >= longest
    rows = sum(to_rows(half, 10, needed) for half in halves)
    assert words_needed(rows) == needed
    assert from_rows(rows) == dict(sorted(pieces.items()))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_values_come_back_as_they_were(value: object) -> None:
    assert decode(encode(value, "it")) == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_come_back_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9 - 4).to(dtype)
    back = decode(encode({"t": [tensor.t() if len(shape) == 2 else tensor]}, "it"))["t"][0]
    assert back.dtype == dtype
    assert torch.equal(back, tensor.t() if len(shape) == 2 else tensor)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"x": {3}}, 2**70, torch.zeros(2).to_sparse(), 1j])
def test_what_is_no_value_is_refused_by_name(value: object) -> None:
    with pytest.raises(UsageError, match=r"job\.once"):
        encode(value, "job.once")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa7\x00tensor\xa3abc", b"\x93\x01"])
def test_other_bytes_are_no_value(data: bytes) -> None:
    with pytest.raises(ValueError, match="no value"):
        decode(data)


def test_words_depend_on_every_number_and_on_the_order() -> None:
    words = {
        word(1, 2, 3),
        word(1, 3, 2),
        word(1, 2, 4),
        word(1, 2),
        word(-1, 2, 3),
        word(2**64 + 5),
        word(6),
    }
    assert len(words) == 7
    assert all(0 <= each < 2**64 for each in words)


def test_untouched_puts_the_generators_back_after_an_exception() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    np.random.seed(1)
    with contextlib.suppress(KeyError), untouched():
        torch.rand(9)
        np.random.seed(5)
        raise KeyError
    assert torch.equal(torch.rand(2), expected)
    assert np.random.rand() == np.random.RandomState(1).rand()
