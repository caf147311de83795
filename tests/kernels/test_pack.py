"""Pack and unpack: the compiled kernels against the numpy reference, bit for bit, and their errors.

Exactness: every element has the same 32 bits, except that where both are NaN the payload is free. Sizes,
values and weights come from fixed seeds; the special values are in every run. No torch here.
"""

import itertools
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from godmw.kernels import dispatch, reference

try:
    from godmw.kernels import native as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

needs_native = pytest.mark.skipif(compiled is None, reason="installed without compiled kernels")
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 1.0, -1.0]
SIZES = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 4099]
WEIGHTS = [0.0, 1.0, -1.0, 1 / 3, 32.0, 1e-30, 1e30, 0.1]


@pytest.fixture(params=["reference", pytest.param("native", marks=needs_native)])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return reference if request.param == "reference" else compiled


@pytest.fixture(params=dispatch.INSTRUCTION_SETS)
def limited(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The compiled kernels, held to one instruction set at most."""
    before = compiled.isa()
    compiled.limit_isa(request.param)
    yield compiled
    compiled.limit_isa(before)


def values(rng: np.random.Generator, size: int) -> np.ndarray:
    """Numbers of every magnitude, with special values sprinkled in."""
    array = rng.standard_normal(size) * 10.0 ** rng.integers(-38, 38, size)
    special = rng.random(size) < 0.1
    array[special] = rng.choice(SPECIAL, special.sum())
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def layout(rng: np.random.Generator, sizes: list[int]) -> tuple[list[int], int]:
    """Offsets in a random order of pieces with random gaps, and the length of the flat buffer."""
    offsets, end = [0] * len(sizes), 0
    for i in rng.permutation(len(sizes)):
        offsets[i] = end + int(rng.integers(0, 4))
        end = offsets[i] + sizes[i]
    return offsets, end + int(rng.integers(0, 4))


def assert_same_bits(ours: np.ndarray, oracle: np.ndarray) -> None:
    both_nan = np.isnan(ours) & np.isnan(oracle)
    different = (ours.view(np.uint32) != oracle.view(np.uint32)) & ~both_nan
    assert not different.any(), (ours[different][:3], oracle[different][:3])


@needs_native
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("accumulate", [False, True])
def test_pack_equals_the_reference(limited: ModuleType, seed: int, accumulate: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.permutation(SIZES)]
    tensors = [values(rng, size) for size in sizes]
    offsets, length = layout(rng, sizes)
    oracle = values(rng, length)
    ours = oracle.copy()
    weight = WEIGHTS[seed]
    reference.pack(oracle, offsets, tensors, weight, accumulate)
    limited.pack(ours, offsets, tensors, weight, accumulate)
    assert_same_bits(ours, oracle)


@needs_native
@pytest.mark.parametrize("seed", range(8))
def test_unpack_equals_the_reference(limited: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    sizes = [int(size) for size in rng.permutation(SIZES)]
    offsets, length = layout(rng, sizes)
    flat = values(rng, length)
    before = flat.copy()
    ours, oracle = ([np.full(size, 7, np.float32) for size in sizes] for _ in range(2))
    divisor = [1.0, 3.0, 32.0, -7.0, 1e-30, 1e30, 0.1, 4001.0][seed]
    reference.unpack(flat, offsets, oracle, divisor)
    limited.unpack(flat, offsets, ours, divisor)
    for mine, theirs in zip(ours, oracle, strict=True):
        assert_same_bits(mine, theirs)
    assert_same_bits(flat, before)


def test_values_worked_out_by_hand(kernels: ModuleType) -> None:
    flat = np.array([10, 20, 30, 40, 50], np.float32)
    kernels.pack(flat, [3, 0], [np.array([[1.0], [2.0]], np.float32), np.array(4.0, np.float32)], 0.5, False)
    assert flat.tolist() == [2, 20, 30, 0.5, 1]
    kernels.pack(flat, [1], [np.array([1, 2], np.float32)], -3.0, True)
    assert flat.tolist() == [2, 17, 24, 0.5, 1]
    out = [np.zeros((1, 2), np.float32), np.zeros(1, np.float32)]
    kernels.unpack(flat, [1, 4], out, 4.0)
    assert [part.tolist() for part in out] == [[[4.25, 6.0]], [0.25]]


def test_the_product_is_rounded_before_it_is_added(kernels: ModuleType) -> None:
    """(1 + 2**-23)**2 - (1 + 2**-22) is 2**-46 when fused and 0 when the product is rounded first."""
    just_above_one = np.float32(1 + 2.0**-23)
    flat = np.full(40, -(1 + 2.0**-22), np.float32)
    kernels.pack(flat, [0], [np.full(40, just_above_one)], float(just_above_one), True)
    assert flat.tolist() == [0.0] * 40


def test_the_division_is_a_division(kernels: ModuleType) -> None:
    """Multiplying by a rounded reciprocal gives another last bit for some of these."""
    wrong = [
        n for n in range(1, 200) if np.float32(n) * (np.float32(1) / np.float32(49)) != np.float32(n / 49)
    ]
    assert wrong, "the example must tell the two apart"
    flat = np.array(wrong, np.float32)
    out = np.zeros_like(flat)
    kernels.unpack(flat, [0], [out], 49.0)
    assert out.tolist() == [float(np.float32(n / 49)) for n in wrong]


def test_the_weight_is_rounded_to_float32(kernels: ModuleType) -> None:
    flat = np.zeros(1, np.float32)
    kernels.pack(flat, [0], [np.array([3.0], np.float32)], 0.1, False)
    assert flat[0] == np.float32(3) * np.float32(0.1)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def read_only() -> np.ndarray:
    array = f32(4)
    array.flags.writeable = False
    return array


SHARED = f32(10)
MISUSES: dict[str, tuple[Callable[[], tuple[Any, Any, Any]], str]] = {
    "dtype": (lambda: (f32(4), [0, 2], [f32(2), np.ones(2)]), "tensor 1 is not float32"),
    "dtype of flat": (lambda: (np.ones(4), [0], [f32(2)]), "the flat buffer is not float32"),
    "byte order": (lambda: (f32(4), [0], [np.ones(2, ">f4")]), "tensor 0 is not"),
    "strides": (lambda: (f32(4), [0], [f32(8)[::2]]), "tensor 0 is not contiguous"),
    "transposed": (lambda: (f32(6), [0], [f32(2, 3).T]), "tensor 0 is not contiguous"),
    "too long": (lambda: (f32(4), [0, 2], [f32(2), f32(3)]), r"tensor 1 at \[2, 5\) does not fit"),
    "offset beyond": (lambda: (f32(4), [5], [f32(0)]), "tensor 0 .* does not fit"),
    "offset negative": (lambda: (f32(4), [-1], [f32(1)]), "tensor 0 has the negative offset -1"),
    "overlap": (lambda: (f32(9), [4, 0, 2], [f32(2), f32(2), f32(3)]), "tensor 2.* tensor 0 .*overlap"),
    "inside": (lambda: (f32(9), [0, 3], [f32(9), f32(1)]), "tensor 0.* tensor 1 .*overlap"),
    "counts": (lambda: (f32(4), [0], [f32(1), f32(1)]), "1 offsets for 2 tensors"),
    "aliased": (lambda: (SHARED, [0], [SHARED[5:7]]), "tensor 0 shares memory"),
    "no array": (lambda: (f32(4), [0], [[1.0]]), "tensor 0 is not an array .*list"),
    "none": (lambda: (f32(4), [0, 1], [f32(1), None]), "tensor 1 is not an array .*NoneType"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_refused_before_anything_is_written(kernels: ModuleType, name: str) -> None:
    make, message = MISUSES[name]
    flat, offsets, tensors = make()
    kept = [np.array(item, copy=True) for item in [flat, *(t for t in tensors if isinstance(t, np.ndarray))]]
    with pytest.raises(ValueError, match=message):
        kernels.pack(flat, offsets, tensors, 2.0, True)
    with pytest.raises(ValueError, match=message):
        kernels.unpack(flat, offsets, tensors, 2.0)
    now = [flat, *(t for t in tensors if isinstance(t, np.ndarray))]
    assert all((a == b).all() for a, b in zip(kept, now, strict=True))


def test_what_is_written_must_be_writable(kernels: ModuleType) -> None:
    with pytest.raises(ValueError, match="the flat buffer is not an array that can be written"):
        kernels.pack(read_only(), [0], [f32(2)], 1.0, False)
    with pytest.raises(ValueError, match="tensor 0 is not an array that can be written"):
        kernels.unpack(f32(4), [0], [read_only()], 1.0)
    flat = f32(4)
    kernels.pack(flat, [0], [read_only()], 2.0, False)
    assert flat.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("weight", [math.inf, -math.inf, math.nan, 1e39])
def test_weights_and_divisors_are_finite(kernels: ModuleType, weight: float) -> None:
    with pytest.raises(ValueError, match="weight is not finite"):
        kernels.pack(f32(1), [0], [f32(1)], weight, False)
    for divisor in (weight, 0.0, 1e-60):
        with pytest.raises(ValueError, match="divisor is zero or not finite"):
            kernels.unpack(f32(1), [0], [f32(1)], divisor)


def test_nothing_to_do_is_done(kernels: ModuleType) -> None:
    kernels.pack(f32(0), [], [], 1.0, False)
    kernels.unpack(f32(3), [3, 3, 0], [f32(0), f32(0), f32(0, 5)], 1.0)


def test_every_length_up_to_two_vectors_leaves_its_neighbours_alone(kernels: ModuleType) -> None:
    for size, offset in itertools.product(range(34), (0, 1, 5)):
        flat = np.full(64, -1, np.float32)
        kernels.pack(flat, [offset], [np.arange(size, dtype=np.float32)], 2.0, False)
        assert flat.tolist() == [-1.0] * offset + [2.0 * i for i in range(size)] + [-1.0] * (
            64 - offset - size
        )


@needs_native
def test_the_native_kernels_are_used_where_they_are_built() -> None:
    assert dispatch.native_status() == (True, None)
    assert dispatch.isa() in dispatch.INSTRUCTION_SETS
    with pytest.raises(ValueError, match="no instruction set is called mmx"):
        compiled.limit_isa("mmx")


@needs_native
@pytest.mark.parametrize("isa", dispatch.INSTRUCTION_SETS)
def test_the_environment_limits_the_instruction_set(isa: str) -> None:
    code = "from godmw.kernels import dispatch; print(dispatch.isa())"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GODMW_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
    )
    got = dispatch.INSTRUCTION_SETS.index(told.stdout.strip())
    assert got <= dispatch.INSTRUCTION_SETS.index(isa)
    assert isa != "portable" or got == 0


def test_without_native_the_reference_is_used_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "godmw.kernels.native", None)
    monkeypatch.delattr("godmw.kernels.native", raising=False)
    monkeypatch.setattr(dispatch, "_kernels", None)
    dispatch._native.cache_clear()
    try:
        assert dispatch.native_status() == (False, "installed without compiled kernels")
        assert dispatch.isa() == "reference"
        flat = f32(2)
        with caplog.at_level(logging.WARNING):
            dispatch.pack(flat, [0], [f32(2)], 3.0)
            dispatch.pack(flat, [0], [f32(2)], 3.0, True)
            out = f32(2)
            dispatch.unpack(flat, [0], [out], 4.0)
        assert flat.tolist() == [6, 6]
        assert out.tolist() == [1.5, 1.5]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    finally:
        dispatch._native.cache_clear()
