"""A loop of steps: opening it where the job stands, handing out steps, and leaving it.

For a script that was there from the start a loop begins at its first step. A joiner's script passes the
loops that are finished without a step, and enters the open one at the step where the others stand. Leaving a
loop, by its end, by `job.stop` or by `break`, finishes that loop only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from godmw.data.batches import Batch, fuse
from godmw.data.indices import LoopSpec, cut
from godmw.errors import GradientMisuse, UsageError
from godmw.worker import chance
from godmw.worker.buffers import takes_batch_statistics
from godmw.worker.engine import Engine
from godmw.worker.operations import agree_to_stop
from godmw.worker.steps import Step
from godmw.worker.story import Entry

if TYPE_CHECKING:
    from godmw.data.loader import Source

NON_FINITE = ("stop", "skip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The arguments of `job.steps` but for the data's own. UsageError for what is not built or cannot be."""

    epochs: int | None = None
    steps: int | None = None
    shards: int | None = None
    micro_batch: int | None = None
    reduction: str = "fast"
    codec: Any = None
    non_finite: str = "stop"

    def __post_init__(self) -> None:
        if self.reduction == "exact":
            raise UsageError(
                'reduction="exact" is not built yet', hint='leave it out: "fast" is the default'
            )
        if self.reduction != "fast":
            raise UsageError(f'reduction={self.reduction!r}: "fast" was expected')
        if self.codec not in (None, "none"):
            raise UsageError("codec= is not built yet", hint="leave it out: gradients travel as they are")
        if self.non_finite not in NON_FINITE:
            raise UsageError(f"non_finite={self.non_finite!r}: one of {', '.join(NON_FINITE)} was expected")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UsageError(f"micro_batch={self.micro_batch}: 1 or more was expected")


class StepLoop:
    """One `job.steps`: `spec` is settled when it opens; iterate it once."""

    spec: LoopSpec
    entry: Entry
    first_epoch: int
    micro_batch: int

    def __init__(self, engine: Engine, source: Source, options: LoopOptions) -> None:
        self.engine, self.source = engine, source
        self._options = options
        self.non_finite = options.non_finite
        self._draft = LoopSpec(
            length=source.length,
            batch_size=source.batch_size,
            epochs=options.epochs,
            steps=options.steps,
            shards=options.shards or 0,
            shuffle=source.shuffle,
            drop_last=source.drop_last,
            batch_statistics=takes_batch_statistics(engine.modules),
        )
        self._used = False
        self.what = json.dumps(
            {
                "batch_size": self._draft.batch_size,
                "samples": self._draft.length,
                "epochs": options.epochs,
                "steps": options.steps,
                "shards": self._draft.shards,
                "shuffle": self._draft.shuffle,
                "drop_last": self._draft.drop_last,
                "batch_statistics": self._draft.batch_statistics,
                "non_finite": options.non_finite,
                "data": source.fingerprint().hex()[:16],
            }
        )

    def __iter__(self) -> Iterator[Step]:
        if self._used:
            raise UsageError("this loop has been run", hint="call job.steps(…) again for another loop")
        self._used = True
        return self._run()

    def _run(self) -> Iterator[Step]:
        first = self._open()
        if first is None:
            return
        try:
            for number in range(first, self.spec.total_steps):
                self.engine.heed_pace(self.spec.first_step + number)
                step = Step(self, number)
                yield step
                step.require_committed()
                if step.stopping:
                    break
        except GeneratorExit:  # the script left by break, return or an exception
            self._close()
            raise
        self._close()

    def _open(self) -> int | None:
        """The step to begin with; None: the loop is finished already."""
        engine = self.engine
        engine.require_free("job.steps")
        if engine.loop is not None:
            raise GradientMisuse(
                "job.steps inside the body of another job.steps loop",
                hint="finish the outer loop first: a step of one loop cannot hold steps of another",
            )
        engine.stand(self.what, data=self.source.fingerprint(), shards=self._draft.shards)
        engine.stopped = None
        story = engine.progress.story
        entry = story.follow("loop", self.what)
        if entry is None:
            engine.arrive()
            engine.heed_pace()
            if story.entries and not engine.passes and agree_to_stop(engine):
                story.add("loop", self.what, done=True, stopped=True)
                return None
            entry = self._begin()
        elif entry["done"]:
            if entry["stopped"]:
                engine.stop()
            return None
        else:
            engine.arrive()
        self.entry = entry
        self.spec = LoopSpec.from_json(entry["spec"])
        self.first_epoch = entry["first_epoch"]
        self.micro_batch = self._options.micro_batch or self._share()
        engine.loop = self
        engine.control.loop_opened(self.spec.loop, entry["spec"])
        return int(entry["steps"])

    def _begin(self) -> Entry:
        progress = self.engine.progress
        spec = dataclasses.replace(
            self._draft, seed=progress.seed, loop=progress.loops, first_step=progress.steps
        )
        progress.loops += 1
        return progress.story.add(
            "loop",
            self.what,
            spec=spec.to_json(),
            first_epoch=progress.epochs,
            steps=0,
            done=False,
            stopped=False,
        )

    def _share(self) -> int:
        """The samples of the largest share at the world size of now: what a device must hold anyway."""
        spec, world_size = self.spec, max(1, self.engine.control.world_size)
        bounds = spec.shard_bounds(0) if spec.total_steps else [(0, 1)]
        shares = cut(len(bounds), min(world_size, len(bounds)))
        return max(bounds[high - 1][1] - bounds[low][0] for low, high in shares)

    def _close(self) -> None:
        engine = self.engine
        if engine.loop is not self:
            return
        if engine.guard.step is None:
            engine.pay()
        self.entry["done"] = True
        engine.loop = None
        if not engine.passes:
            engine.stop_asked = None

    # ---- for its steps ----

    def agreed(self, stop: int) -> bool:
        """Whether the members have agreed that this step is the loop's last."""
        if stop:
            self.engine.stop()
            self.entry["stopped"] = True
        return bool(stop)

    def expect(self, step: Step, todo: Sequence[Batch]) -> None:
        """Tell the source what is fetched now and, if the membership stays, in the next step."""
        if not self.source.prefetches:
            return
        coming = [batch.take(step.indices) for batch in todo]
        seeds = [self.fetch_seed(step.number)] * len(coming)
        number = step.number + 1
        if todo and number < self.spec.total_steps:
            bounds, indices = self.spec.shard_bounds(number), self.spec.step_indices(number)
            shards = sorted({shard for batch in todo for shard in batch.shards if shard < len(bounds)})
            after = fuse(shards, bounds, self.micro_batch, batch_statistics=self.spec.batch_statistics)
            coming += [batch.take(indices) for batch in after]
            seeds += [self.fetch_seed(number)] * len(after)
        self.source.expect(coming, seeds)

    def fetch_seed(self, number: int) -> int:
        """What seeds the dataset's own random numbers (augmentation) in a step."""
        return chance.word(self.engine.progress.seed, self.spec.loop, number)
