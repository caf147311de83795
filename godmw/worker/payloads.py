"""One small piece of bytes a shard, carried by a sum of whole numbers.

Every member fills the rows of its own shards and leaves the others zero, so the sum holds every row. The
rows have a fixed number of words; a piece that does not fit is announced by its length alone, and the
operation is attempted again with longer rows. Pure numpy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]


def to_rows(pieces: dict[int, bytes], shards: int, words: int) -> Words:
    """int64 [shards, 1 + words]: each row a length in bytes plus one (0: nothing is there), then data."""
    rows = np.zeros((shards, 1 + words), dtype=np.int64)
    for shard, piece in pieces.items():
        rows[shard, 0] = len(piece) + 1
        if len(piece) <= 8 * words:
            padded = piece + bytes(-len(piece) % 8)
            rows[shard, 1 : 1 + len(padded) // 8] = np.frombuffer(padded, dtype="<i8")
    return rows


def words_needed(rows: Words) -> int:
    """How many words a row must have for the largest piece in summed rows; at least as many as it has."""
    words = rows.shape[1] - 1
    longest = max(int(rows[:, 0].max(initial=0)) - 1, 0)
    return words if longest <= 8 * words else 1 << (-(-longest // 8) - 1).bit_length()


def from_rows(rows: Words) -> dict[int, bytes]:
    """Shard -> its piece, in shard order, from summed rows that are long enough."""
    found = {}
    for shard in np.flatnonzero(rows[:, 0]):
        length = int(rows[shard, 0]) - 1
        found[int(shard)] = rows[shard, 1:].astype("<i8").tobytes()[:length]
    return found
