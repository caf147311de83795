"""`job.epochs`: passes with a body of their own (evaluate, schedulers, saving), finished ones skipped whole.

A joiner runs only the body of the pass in which the others are, and in it only what they have not done.
Whether to go on after a pass is agreed by all, so that `job.stop` on one worker ends the passes for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from godmw.errors import GradientMisuse, UsageError
from godmw.worker.engine import Engine
from godmw.worker.operations import agree_to_stop

if TYPE_CHECKING:
    from godmw.worker.loops import StepLoop


class Epoch:
    """One pass: `index` from 0; `int(epoch)` is the same."""

    def __init__(self, index: int, steps: Callable[..., StepLoop]) -> None:
        self.index = index
        self._steps = steps

    def __int__(self) -> int:
        return self.index

    __index__ = __int__

    def steps(self, data: Any, **options: Any) -> StepLoop:
        """`job.steps` over one pass of `data`; `epochs=` cannot be given."""
        if "epochs" in options:
            raise UsageError("epoch.steps(epochs=…): it is one pass", hint="leave epochs= out")
        return self._steps(data, epochs=1, **options)


def epochs(engine: Engine, count: int, steps: Callable[..., StepLoop]) -> Iterator[Epoch]:
    """Passes 0 … count - 1 that are not finished, until one of them ended in `job.stop`."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise UsageError(f"job.epochs({count!r}): a whole number of passes was expected")
    return _passes(engine, count, steps)


def _passes(engine: Engine, count: int, steps: Callable[..., StepLoop]) -> Iterator[Epoch]:
    engine.require_free("job.epochs")
    if engine.loop is not None:
        raise GradientMisuse(
            "job.epochs inside a step loop", hint="put the step loop inside: epoch.steps(…)"
        )
    what = str(count)
    engine.stand(f"epochs {what}", data=b"", shards=0)
    engine.stopped = None
    story = engine.progress.story
    entry = story.follow("passes", what) or story.add("passes", what, finished=0, stopped=False)
    engine.passes += 1
    try:
        while entry["finished"] < count and not entry["stopped"]:
            index = entry["finished"]
            engine.pass_stopped = False
            yield Epoch(index, steps)
            engine.require_free("job.epochs")
            if engine.loop is not None:
                raise GradientMisuse(
                    f"pass {index} ended inside its step loop", hint="finish the step loop first"
                )
            last = index + 1 == count
            stopping = engine.pass_stopped or (not last and agree_to_stop(engine))
            story.close_pass(entry)
            entry["stopped"] = stopping
    finally:
        engine.passes -= 1
        engine.stop_asked = None
