"""Which member computes which shards: pure functions of numbers, the same on every worker and on the
master.

``default_share`` holds for every operation that no Abort interrupted; ``spread`` gives what the dead
leave behind to the survivors, and only ever adds (DESIGN 4: a plan never takes a shard from a live
member).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def default_share(shards: int, world_size: int, rank: int) -> range:
    """The contiguous, balanced share of ``rank``: sizes differ by at most one.

    >>> [list(default_share(5, 2, rank)) for rank in (0, 1)]
    [[0, 1], [2, 3, 4]]
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")
    return range(rank * shards // world_size, (rank + 1) * shards // world_size)


def spread(
    shards: int, held: Mapping[str, frozenset[int]], members: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """The shards nobody holds, given one by one to the member with the fewest; ties go to the lower
    rank.

    ``held``: what each member keeps.  Raises ValueError when two hold one shard or one is outside
    ``range(shards)``.
    """
    owner: dict[int, str] = {}
    for member in members:
        for shard in held.get(member, frozenset()):
            if not 0 <= shard < shards:
                raise ValueError(f"{member} holds shard {shard} of {shards}")
            if shard in owner:
                raise ValueError(f"shard {shard} is held by {owner[shard]} and by {member}")
            owner[shard] = member
    load = {member: len(held.get(member, frozenset())) for member in members}
    added: dict[str, list[int]] = {member: [] for member in members}
    for shard in range(shards):
        if shard not in owner:
            least = min(members, key=lambda member: load[member])
            added[least].append(shard)
            load[least] += 1
    return {member: tuple(given) for member, given in added.items() if given}
