"""The random numbers of user code: what seeds them, and how a detour leaves them as they were.

Before each batch torch, numpy and random are seeded from (seed, loop, step, first shard of the batch), so
that a batch that is computed again on another worker draws what it drew on the first; after a step they are
seeded once more, equally on all workers. Generators that a script made for itself are its own affair.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from godmw.data.indices import mix

_WORD = 2**64 - 1


def word(*numbers: int) -> int:
    """Whole numbers of any sign mixed into one of 64 bits; the order matters."""
    mixed = 0
    for number in numbers:
        mixed = mix(mixed ^ (number & _WORD))
    return mixed


def seed_all(seed: int) -> None:
    """Seed the global generators of torch (all devices in use), numpy and random with a 64-bit word."""
    # torch.manual_seed formats a stack for every device library that is not yet in use: 100 times slower
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn or seeded inside, the generators go on from where they were."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    host, plain, array = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    there = [torch.cuda.get_rng_state(device) for device in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(host)
        random.setstate(plain)
        np.random.set_state(array)
        for device, state in zip(devices, there, strict=True):
            torch.cuda.set_rng_state(state, device)
