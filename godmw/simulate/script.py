"""What the simulated training script does: its operations, how long they take, and what state they make.

Every worker runs the same script.  Numbers stand for tensors: a *state* is a digest of the whole history
that made it, so that two workers have equal states exactly when everything they summed was equal.
"""

from __future__ import annotations

import dataclasses
import hashlib

Parts = tuple[
    tuple[str, tuple[int, ...]], ...
]  # (member, its shards) in rank order: what one sum was made of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`steps` optimizer steps of `shards` shards; after every `evaluate_every`-th one an evaluation, which
    is an operation inside the script where no joiner can enter (0: none).  Times in seconds, drawn
    uniformly.
    """

    steps: int = 10
    shards: int = 8
    evaluate_every: int = 0
    last_boundary: bool = True  # a boundary is passed after the last operation, too
    compute_s: tuple[float, float] = (0.01, 0.04)  # one shard
    import_s: tuple[float, float] = (0.05, 0.3)  # process start to joining
    build_s: tuple[float, float] = (0.02, 0.2)  # joining to standing at the first operation
    transfer_s: tuple[float, float] = (0.01, 0.2)  # a state from donor to joiner

    @property
    def operations(self) -> int:
        """Everything collective that the script does."""
        return self.steps + (self.steps // self.evaluate_every if self.evaluate_every else 0)

    def step_of(self, operation: int) -> int:
        """The job's step that `operation` is, or -1 for an evaluation."""
        if not self.evaluate_every:
            return operation
        rounds, within = divmod(operation, self.evaluate_every + 1)
        return rounds * self.evaluate_every + within if within < self.evaluate_every else -1

    def enterable(self, operation: int) -> bool:
        """Can a joiner's script stand before `operation`?"""
        return operation >= self.operations or self.step_of(operation) >= 0

    def shards_of(self, operation: int) -> int:
        """S of `operation`; an evaluation has fewer."""
        return self.shards if self.step_of(operation) >= 0 else max(1, self.shards // 2)


def first_state(worker: str) -> str:
    """Freshly built models differ until the leader's state is everybody's."""
    return "built by " + worker


def next_state(state: str, operation: int, parts: Parts) -> str:
    """The state after `operation` was the sum of `parts`."""
    return hashlib.blake2b(repr((state, operation, parts)).encode(), digest_size=8).hexdigest()
