"""One worker, no master: every operation commits at once.

`python train.py` with no address runs on this. With a run directory it keeps the ledger, the metrics, the
events and the summary that a master would keep, so that `godmw audit` and the other readers work; without
one it writes nothing. There is nobody to wait for and nobody to ask.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from godmw.data.ledger import LedgerWriter
from godmw.errors import UsageError
from godmw.ids import new_id
from godmw.monitor.events import EventLog
from godmw.monitor.metrics import MetricsWriter
from godmw.worker.interface import Contribution, Engine, Kind, Offer

FLUSH_S = 1.0  # how much of the ledger may be lost with the machine


class AloneOperation:
    """Its results are the contribution itself: nothing is copied."""

    rank = 0
    world_size = 1
    generation = 1

    def __init__(self, number: int, shards: int, contribution: Contribution) -> None:
        self.number, self.shards = number, shards
        self._contribution = contribution
        self._todo = set(range(shards))
        self._parts: dict[int, list[Tensor]] = {}
        self.results: list[list[Tensor]] = []

    def worker(self, rank: int) -> str:
        return "w0"

    def todo(self) -> tuple[int, ...]:
        return tuple(sorted(self._todo))

    def begin(self, shards: Sequence[int]) -> bool:
        self._todo.difference_update(shards)
        return True

    def launch(self, bucket: int) -> None:
        self._parts[bucket] = self._contribution.parts(bucket)

    def finish(self) -> bool:
        results = [self._parts[bucket] for bucket in range(self._contribution.buckets)]
        if not self._contribution.accept(results):
            return False
        self.results = results
        return True


class Records:
    """What one worker writes into its run directory."""

    def __init__(self, directory: Path, run_id: str) -> None:
        if (directory / "summary.json").exists() or (directory / "ledger").exists():
            raise UsageError(
                f"the run directory {directory} holds a run already",
                hint="give another one, or unset GODMW_RUN_DIR to write nothing",
            )
        (directory / "ledger").mkdir(parents=True)
        self._directory, self._run_id = directory, run_id
        self._ledger = LedgerWriter(directory / "ledger")
        self._metrics = MetricsWriter(directory / "metrics.jsonl")
        self._events = EventLog(directory / "events.jsonl")
        self._start_s = self._flushed_s = time.monotonic()
        self._losses: list[float] = []
        self._logged: dict[str, Any] = {}
        self.event("started", reason="one worker, no master")

    def since_s(self) -> float:
        return time.monotonic() - self._start_s

    def event(self, kind: str, **fields: Any) -> None:
        self._events.write(kind, t=time.time(), since_s=self.since_s(), worker="w0", **fields)

    def loop(self, spec: str) -> None:
        self._ledger.loop(spec)

    def committed(
        self,
        number: int,
        kind: Kind,
        loop: int,
        epoch: int,
        step: int,
        table: bytes,
        metrics: dict[str, Any],
    ) -> None:
        self._ledger.committed(number, 1, kind, loop, epoch, step, table)
        if kind == "step":
            self._metrics.step({"since_s": self.since_s(), "redone_samples": 0, **metrics})
            self._logged.update(metrics["logged"])
        if time.monotonic() - self._flushed_s > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        self._ledger.flush()
        self._metrics.flush()
        self._flushed_s = time.monotonic()

    def close(self, outcome: str, reason: str, summary: dict[str, Any]) -> None:
        """Everything is on disk, the summary last."""
        self.flush()
        self.event(outcome, reason=reason, step=summary.get("steps"))
        self._events.flush()
        whole = {
            "outcome": outcome,
            "reason": reason,
            **summary,
            "generations": 1,
            "workers_seen": 1,
            "wall_s": self.since_s(),
            "logged": self._logged,
            "recoveries": [],
            "joins": [],
        }
        partial = self._directory / "summary.json.part"
        partial.write_text(json.dumps(whole) + "\n", encoding="utf-8")
        os.replace(partial, self._directory / "summary.json")
        for writer in (self._ledger, self._metrics, self._events):
            writer.close()


class AloneControl:
    """`directory` None: nothing is written."""

    alone = True
    worker = "w0"
    incarnation = 0
    rank = 0
    world_size = 1
    generation = 1

    def __init__(self, directory: Path | None = None) -> None:
        self.run_id = new_id("job")
        self._records = Records(directory, self.run_id) if directory is not None else None
        self._next = 0

    def prepare(self, offer: Offer, engine: Engine) -> None:
        """Nobody else is there: this worker's state is the job's."""

    def open(
        self, kind: Kind, shards: int, contribution: Contribution, *, identity: bytes, enterable: bool
    ) -> AloneOperation:
        operation = AloneOperation(self._next, shards, contribution)
        self._next += 1
        return operation

    def committed(
        self,
        operation: Any,
        *,
        kind: Kind,
        loop: int,
        epoch: int,
        step: int,
        table: bytes,
        metrics: dict[str, Any],
    ) -> None:
        if self._records is not None:
            self._records.committed(operation.number, kind, loop, epoch, step, table, metrics)

    def loop_opened(self, loop: int, spec: str) -> None:
        if self._records is not None:
            self._records.loop(spec)

    def phase(self, name: str, step: int) -> None:
        """Nobody watches."""

    def busy(self, label: str, limit_s: float) -> AbstractContextManager[None]:
        return _nothing()

    def ended(self, summary: dict[str, Any], digest: bytes = b"") -> int:
        if self._records is not None:
            self._records.close("finished", "the script has ended", summary)
            self._records = None
        return 0

    def failed(self, kind: str, code: int, traceback: str, step: int) -> None:
        if self._records is not None:
            last = traceback.strip().splitlines()[-1:] or [kind]
            self._records.close("failed", f"{kind}: {last[0]}", {"steps": max(step, 0)})
            self._records = None


@contextmanager
def _nothing() -> Iterator[None]:
    yield
