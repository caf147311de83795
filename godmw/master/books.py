"""What the master writes for people and for the audit: events, metrics and the ledger.

Lines go to the system at once, so the master's own death loses none; what was committed is synced in
batches, and `sync_if_due` says up to which operation all is on disk. An operation's metrics line is
written and synced before its ledger line, so the ledger never knows a step that the metrics lack. It
decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from godmw.client.rundir import RunDir
from godmw.clock import Clock
from godmw.data import table
from godmw.data.ledger import LedgerWriter
from godmw.monitor.events import EventLog
from godmw.monitor.metrics import COLUMNS, MetricsWriter
from godmw.protocol.messages import Committed, LoopOpened

BATCH_S = 0.1
SYNC_SHARE = 10  # at most a tenth of the time is spent waiting for a slow disk


class Books:
    """The written side of one run directory, owned by its master from ``open`` to ``close``."""

    def __init__(self, path: Path, clock: Clock, began_s: float) -> None:
        self._files = RunDir(path)
        self._clock = clock
        self._began_s = began_s
        self._offset_s = clock.wall_s() - began_s - clock.now_s()
        self._waiting_since_s: float | None = None
        self._batch_s = BATCH_S

    def open(self) -> None:
        """Open the files, repairing what a killed writer left behind."""
        self._ledger = LedgerWriter(self._files.ledger)
        self._metrics = MetricsWriter(self._files.metrics)
        self._events = EventLog(self._files.events)
        self._sync()
        self.step = self._metrics.last_step + 1  # steps that were committed so far

    def log(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Append one event, stamped; returns it."""
        stamps = {"t": self._clock.wall_s(), "since_s": self._clock.now_s() + self._offset_s}
        event: dict[str, Any] = {name: round(value, 6) for name, value in stamps.items()}
        event |= {"kind": kind, **fields}
        self._events.write(kind, t=event["t"], since_s=event["since_s"], **fields)
        return event

    def loop(self, record: LoopOpened) -> None:
        """Describe a loop in the ledger."""
        self._ledger.loop(record.spec)
        self._mark()

    def committed(self, record: Committed, redone_shards: Sequence[int]) -> None:
        """Note one committed operation, in operation order; a step also gets its line of the metrics."""
        if record.step >= 0:
            self._metrics.step(self._line(record, redone_shards))
        self._ledger.committed(
            record.operation,
            record.generation,
            record.kind,
            record.loop,
            record.epoch,
            record.step,
            record.table,
        )
        self._mark()

    def due_in_s(self) -> float | None:
        """Until the next sync; None when everything is on disk."""
        if self._waiting_since_s is None:
            return None
        return self._waiting_since_s + self._batch_s - self._clock.now_s()

    def sync_if_due(self) -> int | None:
        """Sync when a batch is due; then every operation below the returned number is on disk."""
        due_s = self.due_in_s()
        if due_s is None or due_s > 0:
            return None
        began_s = self._clock.now_s()
        self._sync()
        self._batch_s = max(BATCH_S, SYNC_SHARE * (self._clock.now_s() - began_s))
        return self.below

    def close(self) -> None:
        """Sync and close."""
        self._sync()
        for file in (self._ledger, self._metrics, self._events):
            file.close()

    def _line(self, record: Committed, redone_shards: Sequence[int]) -> dict[str, Any]:
        told, words = _told(record.metrics), table.from_bytes(record.table)
        t, epoch = told.get("t"), told.get("epoch")  # the job's epoch; the record's counts its loop's
        when_s = float(t) if isinstance(t, (int, float)) else self._clock.wall_s()
        return {
            **{name: told[name] for name in COLUMNS if name in told},
            "t": when_s,
            "since_s": round(when_s - self._began_s, 6),
            "step": record.step,
            "epoch": epoch if isinstance(epoch, int) else record.epoch,
            "generation": record.generation,
            "world_size": int(words[0, table.MEMBERS]),
            "redone_samples": sum(int(words[shard + 1, table.SAMPLES]) for shard in redone_shards),
        }

    def _mark(self) -> None:
        if self._waiting_since_s is None:
            self._waiting_since_s = self._clock.now_s()

    def _sync(self) -> None:
        self._metrics.flush()
        self._ledger.flush()
        self._waiting_since_s = None
        self.below = self._ledger.below


def _told(metrics: str) -> dict[str, Any]:
    """What the member said of the step; said badly it costs a line its columns, not the job."""
    try:
        told = json.loads(metrics)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
