"""The compiled kernels, as functions with types; importing this module raises ImportError without them.

It is the only importer of `godmw._native`. Each function is the C++ function itself, so a call costs what
the binding costs and no more.
"""

from collections.abc import Callable, Sequence
from typing import Any

from godmw import _native as compiled

_native: Any = compiled

Pack = Callable[[Any, Sequence[int], Sequence[Any], float, bool], None]
Unpack = Callable[[Any, Sequence[int], Sequence[Any], float], None]

pack: Pack = _native.pack
unpack: Unpack = _native.unpack
isa: Callable[[], str] = _native.isa
limit_isa: Callable[[str], None] = _native.limit_isa
