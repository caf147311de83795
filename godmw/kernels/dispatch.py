"""The kernels that the rest of the package calls: the compiled ones, or the reference where there are none.

The choice is made at the first use and said once in the log if it is the reference. `GODMW_ISA`
(portable, avx2 or avx512) is the highest instruction set the compiled kernels may use; every choice gives
the same bits, except for the payload of a NaN. Nothing here imports torch, or numpy before it is needed.
"""

import logging
import os
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

from godmw.errors import UsageError

INSTRUCTION_SETS = ("portable", "avx2", "avx512")

log = logging.getLogger(__name__)

_kernels: ModuleType | None = None


def pack(
    flat: Any,
    offsets: Sequence[int],
    tensors: Sequence[Any],
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write `weight * tensors[i]` to `flat[offsets[i] : offsets[i] + n_i]`, or add it there if `accumulate`.

    `flat` and the tensors are contiguous float32 in CPU memory, of any shape and any length, as torch
    tensors or numpy arrays. `weight` is rounded to float32; the product is rounded, and so is the sum: the
    bits are those of `flat += weight * tensor` in torch and numpy. Raises ValueError, before anything is
    written, for another dtype, device or layout, for a range outside `flat`, for two that overlap, for a
    tensor that lies in `flat`, and for a weight that is not finite.
    """
    (_kernels or _choose()).pack(flat, offsets, tensors, weight, accumulate)


def unpack(flat: Any, offsets: Sequence[int], tensors: Sequence[Any], divisor: float = 1.0) -> None:
    """Write `flat[offsets[i] : offsets[i] + n_i] / divisor` to `tensors[i]`: a true division, rounded once.

    The arrays and the errors are those of `pack`; a divisor that is zero or not finite in float32 is
    refused.
    """
    (_kernels or _choose()).unpack(flat, offsets, tensors, divisor)


def native_status() -> tuple[bool, str | None]:
    """Whether the compiled kernels are in use, and, if not, why."""
    native, reason = _native()
    return native is not None, reason


def isa() -> str:
    """The instruction set in use: one of INSTRUCTION_SETS, or "reference"."""
    native, _ = _native()
    return str(native.isa()) if native else "reference"


@cache
def _native() -> tuple[ModuleType | None, str | None]:
    limit = os.environ.get("GODMW_ISA")
    if limit and limit not in INSTRUCTION_SETS:
        raise UsageError(
            f"GODMW_ISA is {limit!r}, expected one of {', '.join(INSTRUCTION_SETS)}",
            hint="unset GODMW_ISA to use the best that this processor has",
        )
    try:
        from godmw.kernels import native
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) or "cannot import name" in str(error)
        return None, "installed without compiled kernels" if missing else f"cannot be loaded: {error}"
    if limit:
        native.limit_isa(limit)
    return native, None


def _choose() -> ModuleType:
    global _kernels
    native, reason = _native()
    if native is None:
        from godmw.kernels import reference

        log.warning("native kernels: %s; the slow reference kernels are used", reason)
        _kernels = reference
    else:
        _kernels = native
    return _kernels
