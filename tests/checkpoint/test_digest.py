"""The fast digest: every bit, every length and every order counts."""

import hashlib
import random

import numpy as np
import pytest

from godmw.checkpoint.digest import BLOCK_WORDS, SHORT_BYTES, _keys, digest, join


def slow(data: bytes) -> bytes:
    """The definition, in Python's integers."""
    if len(data) < SHORT_BYTES:
        return hashlib.blake2b(data, digest_size=16).digest()
    added, odd = [[int(k) for k in keys] for keys in _keys()]
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) // 8 * 8, 8)]
    closing = hashlib.blake2b(len(data).to_bytes(8, "little"), digest_size=16)
    for begin in range(0, len(words), BLOCK_WORDS):
        products = dots = 0
        for word, plus, times in zip(words[begin : begin + BLOCK_WORDS], added, odd, strict=False):
            mixed = (word + plus) % 2**64
            products += (mixed >> 32) * (mixed & 0xFFFFFFFF)
            dots += word * times
        closing.update((products % 2**64).to_bytes(8, "little") + (dots % 2**64).to_bytes(8, "little"))
    closing.update(data[len(data) // 8 * 8 :])
    return closing.digest()


@pytest.mark.parametrize("size", [0, 1, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 3, 65536, 131085])
def test_it_is_its_definition(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert digest(data) == slow(data)
    assert len(digest(data)) == 16


def test_it_never_changes() -> None:
    data = np.arange(10_000, dtype="<u4").tobytes()
    assert digest(data).hex() == "69512c0c4292a1b952d490059b91720c"
    assert digest(b"godmw").hex() == "7903459eb904df3c81fd9b726bf49eaf"


def test_keys_are_fixed_and_odd() -> None:
    added, odd = _keys()
    assert len(added) == len(odd) == BLOCK_WORDS
    assert bool((odd & np.uint64(1)).all())
    assert int(added[0]) == int.from_bytes(hashlib.blake2b(bytes(8)).digest()[:8], "little")


def test_every_bit_counts() -> None:
    rng = random.Random(1)
    data = bytearray(rng.randbytes(200_000))
    known = {digest(data)}
    for _ in range(200):
        position, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[position] ^= bit
        known.add(digest(data))
        data[position] ^= bit
    assert len(known) == 201


def test_two_signs_lengths_and_orders_count() -> None:
    zeros = np.zeros(50_000, dtype="<f4")
    signs = zeros.copy()
    signs[[11, 33]] = -0.0  # the top bits of two words
    swapped = np.arange(50_000, dtype="<f4")
    other = swapped.copy()
    other[[100, 30_000]] = other[[30_000, 100]]
    digests = {digest(a.tobytes()) for a in (zeros, signs, zeros[:-2], zeros[:-1], swapped, other)}
    assert len(digests) == 6


def test_joining_keeps_the_borders() -> None:
    assert join([b"ab", b"c"]) != join([b"a", b"bc"])
    assert join([b"a", b"b"]) != join([b"b", b"a"])
    assert join([]) == hashlib.blake2b(digest_size=16).digest()
