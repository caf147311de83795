"""The data plane of one generation in one worker: who has said hello, what was contributed, who is ready.

Stands for rendezvous, ring and ready word.  A worker is whole when the contributions of all members for an
operation are in; it may commit when all ready words are.  A link whose other end has closed is *broken*
from the moment this end still needs something of it.  Nothing here decides: the participant is asked before
anything counts.
"""

from __future__ import annotations

import dataclasses

Round = tuple[int, int]  # (operation, attempt)


@dataclasses.dataclass(frozen=True, slots=True)
class Contribution:
    """What one member put into an operation: its shards, and the state it computed them with."""

    shards: tuple[int, ...]
    state: str


class Links:
    """`rank` of `members` in `generation`; `hello`, `gave` and `ready` are filled as messages arrive."""

    def __init__(self, generation: int, rank: int, members: tuple[str, ...]) -> None:
        self.generation, self.rank, self.members = generation, rank, members
        self.hello: set[int] = {rank}
        self.formed = False
        self.abandoned = False
        self.gave: dict[Round, dict[int, Contribution]] = {}
        self.ready: dict[Round, dict[int, int]] = {}
        self.closed: set[int] = set()  # ranks whose end is closed
        self.reported: set[int] = set()  # ranks already reported as broken

    @property
    def world_size(self) -> int:
        return len(self.members)

    def missing_hellos(self) -> list[int]:
        """Ranks that have not arrived in this generation."""
        return [rank for rank in range(self.world_size) if rank not in self.hello]

    def missing(self, at: Round, mine_is_whole: bool) -> list[int]:
        """Ranks that this worker waits for in this round: contributions first, then ready words."""
        have = self.ready.get(at, {}) if mine_is_whole else self.gave.get(at, {})
        return [rank for rank in range(self.world_size) if rank not in have]

    def broken(self, waits_for: list[int]) -> list[int]:
        """Of those waited for, the ones whose end is closed and that were not reported yet."""
        return [rank for rank in waits_for if rank in self.closed and rank not in self.reported]
