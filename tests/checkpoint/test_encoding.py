"""What may be part of the state comes back as it was; what may not is named."""

import contextlib
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from godmw.checkpoint.encoding import Encoder, decode, pack, unpack
from godmw.errors import UsageError


def there_and_back(value: Any, sort: bool = False) -> Any:
    encoder = Encoder()
    data = pack(encoder.encode(value, "x", sort))
    return decode(unpack(data), [tensor for _, tensor in encoder.tensors])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**63),
        2**64 - 1,
        2**200,
        -(2**64),
        0.1,
        float("inf"),
        "key",
        b"\x00\xff",
        [],
        (1, (2,), [3.5]),
        {"a": {"b": [1]}, 3: None, "": ()},
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cpu"),
        np.float32(1.5),
        np.int64(-7),
        np.bool_(True),
        Counter({5: 2, 1: 1}),
        OrderedDict([("z", 1), ("a", 2)]),
        defaultdict(int, {"n": 4}),
        defaultdict(None, {}),
    ],
)
def test_values_come_back(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_and_negative_zero_come_back() -> None:
    assert str(there_and_back([float("nan"), -0.0])) == "[nan, -0.0]"


def test_tensors_go_beside_and_once() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    encoder = Encoder()
    value = {"a": tensor, "again": [tensor], "turned": tensor.t(), "copy": tensor.clone()}
    node = encoder.encode(value, "m", False)
    assert [path for path, _ in encoder.tensors] == ["m/a", "m/turned", "m/copy"]
    back = decode(node, [t for _, t in encoder.tensors])
    assert torch.equal(back["again"][0], tensor)
    assert torch.equal(back["turned"], tensor.t())


def test_arrays_come_back_as_arrays() -> None:
    back = there_and_back({"a": np.array([[1, 2], [3, 4]], dtype=np.int16), "s": np.array(2.5)})
    assert back["a"].dtype == np.int16
    assert back["a"].tolist() == [[1, 2], [3, 4]]
    assert back["s"].shape == ()


def test_sorted_dicts_do_not_show_their_making() -> None:
    one, two = {"b": 1, "a": 2, 10: 3, 9: 4}, {9: 4, 10: 3, "a": 2, "b": 1}
    assert pack(Encoder().encode(one, "x", True)) == pack(Encoder().encode(two, "x", True))
    assert pack(Encoder().encode(one, "x", False)) != pack(Encoder().encode(two, "x", False))
    assert list(there_and_back(one, sort=True)) == [9, 10, "a", "b"]


class Odd(dict):  # type: ignore[type-arg]
    """A dict of the user's own."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"fn": print}, "x/fn is a builtin_function_or_method"),
        ([1, {2, 3}], "x/1 is a set"),
        ({"d": Odd()}, "x/d is a Odd"),
        ({(1, 2): 3}, r"x has the key \(1, 2\)"),
        ({True: 3}, "x has the key True"),
        ({"n": np.array(["a"])}, "x/n is a ndarray"),
        (defaultdict(lambda: 0), "x is a function"),
        (torch.zeros(2, 2).to_sparse(), r"x is a torch\.sparse_coo tensor"),
        (torch.zeros(2, device="meta"), "x is a meta tensor"),
    ],
)
def test_the_rest_is_named(value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        there_and_back(value)


def test_what_contains_itself_is_named() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="nested deeper"):
        there_and_back(loop)


@pytest.mark.parametrize(
    "node",
    [
        ["?", 1],
        [],
        ["T", 0],
        ["T", -1, True],
        ["T", "0", True],
        ["d", [[1]]],
        ["f", "eval", []],
        ["y", "load"],
        ["y", 3],
        ["n", "O", b""],
        ["n", "<f4", b""],
        ["l"],
        [["l"], []],
        ["i", "ten"],
        {"a": 1},
    ],
)
def test_what_cannot_have_been_written_is_refused(node: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(node, [])


def test_depth_is_bounded_when_reading() -> None:
    node: Any = 1
    for _ in range(100):
        node = ["l", [node]]
    with pytest.raises(ValueError, match="too deep"):
        decode(node, [])


@given(st.binary(max_size=60))
def test_bytes_of_strangers_raise_value_error_or_are_plain(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(unpack(data), [])


keys = st.text() | st.integers(-(2**63), 2**63 - 1)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
    max_leaves=20,
)


@given(plain)
def test_any_plain_value_comes_back(value: Any) -> None:
    assert there_and_back(value) == value
