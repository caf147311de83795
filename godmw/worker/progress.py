"""The engine's own part of the state: where the job stands and what it has recorded.

Registered beside the user's objects, so it reaches a joiner the same way: `job.state`, the seed, counters,
the story, `job.once` results, and the layout that members have agreed on (which buffers change, how large a
step's sums are, the order of gradients). Plain data with `state_dict`; it decides nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from godmw.worker.story import Story

PASSING = ("operations", "records")  # about one snapshot: no part of the state that members compare


@dataclasses.dataclass
class Progress:
    """Everything is as of the last boundary. `loops`, `steps`, `epochs` and `samples` count over the job."""

    seed: int = -1
    operations: int = 0  # committed before the boundary of a snapshot
    records: list[str] = dataclasses.field(default_factory=list)  # of those, what the ledger may not hold
    loops: int = 0
    steps: int = 0
    epochs: int = 0
    samples: int = 0
    loss_first: float | None = None
    loss_last: float | None = None
    sums_words: int = 0  # int64 words kept for each shard's step.sum
    buffers: list[int] = dataclasses.field(default_factory=list)  # the buffers that were seen to change
    order: list[int] = dataclasses.field(default_factory=list)  # of gradients; empty: the reducer's own
    onces: dict[str, str] = dataclasses.field(default_factory=dict)  # name -> result, base64
    script: dict[str, Any] = dataclasses.field(default_factory=dict)  # job.state
    story: Story = dataclasses.field(default_factory=Story)

    def state_dict(self) -> dict[str, Any]:
        """Values that a snapshot can hold; the story as its entries."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**plain, "story": self.story.entries}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take everything but the story, which `Engine.apply` has taken: the script is reading it.

        `script` is filled in place: the user holds it as `job.state`.
        """
        for name, value in state.items():
            if name == "script":
                self.script.clear()
                self.script.update(value)
            elif name not in ("story", *PASSING):
                setattr(self, name, value)
