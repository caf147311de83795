"""The proof that every sample of every epoch went into exactly one committed step (DESIGN promise P2).

The ledger says which loops there were and, for each committed step, the sizes and index hashes of its
shards. Which samples those must be is worked out again from the loop alone, shard by shard; what agrees
is counted per (epoch, index), and the counts are compared with one.  An epoch whose last steps have not
come yet is open: what it lacks is not missing.  Reads the disk and nothing else; knows no master, no
member, no torch.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from godmw.data.indices import Indices, LoopSpec, shard_hashes
from godmw.data.ledger import STEP, Entry, Ledger, read

MAX_SAMPLES_SHOWN = 8
MAX_OFFENCES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Offence:
    """One thing that is wrong; -1 and () where nothing applies.  `samples`: the first few dataset
    indices.
    """

    what: str
    loop: int = -1
    epoch: int = -1
    step: int = -1
    shard: int = -1
    samples: tuple[int, ...] = ()

    def __str__(self) -> str:
        place = [
            f"{name} {value}"
            for name in ("loop", "epoch", "step", "shard")
            if (value := getattr(self, name)) >= 0
        ]
        shown = f": samples {', '.join(map(str, self.samples))}" if self.samples else ""
        return " ".join([*place, self.what]) + shown

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(slots=True)
class AuditReport:
    """`samples` counts (epoch, index) pairs over the whole job; `epochs` are the finished ones."""

    epochs: int = 0
    steps: int = 0
    samples: int = 0
    missing: int = 0
    repeated: int = 0
    open_epochs: int = 0
    first_bad: list[Offence] = dataclasses.field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.missing or self.repeated or self.first_bad)

    def blame(self, offence: Offence) -> None:
        if len(self.first_bad) < MAX_OFFENCES:
            self.first_bad.append(offence)


def audit(directory: Path) -> AuditReport:
    """Audit the ledger in `directory` (a run directory's `ledger`)."""
    return examine(read(directory))


def examine(ledger: Ledger) -> AuditReport:
    report = AuditReport()
    for fault in ledger.faults:
        report.blame(Offence(fault))
    by_loop = _steps_by_loop(ledger, report)
    starts = sorted(spec.first_step for spec in ledger.loops.values())
    for number, spec in sorted(ledger.loops.items()):
        later = [start for start in starts if start > spec.first_step]
        _examine_loop(spec, by_loop.get(number, {}), later[0] - spec.first_step if later else 0, report)
    return report


def _steps_by_loop(ledger: Ledger, report: AuditReport) -> dict[int, dict[int, list[Entry]]]:
    """loop -> step in loop -> its records: one, if all is well."""
    seen: dict[int, Entry] = {}
    steps: dict[int, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in ledger.entries:
        known = seen.setdefault(entry.operation, entry)
        if known is not entry:
            if known.same(entry):
                continue
            report.blame(
                Offence(f"operation {entry.operation} is recorded in two ways", entry.loop, step=entry.step)
            )
        if entry.kind != STEP:
            continue
        spec = ledger.loops.get(entry.loop)
        if spec is None:
            report.blame(Offence("belongs to a loop that is not described", entry.loop, step=entry.step))
            continue
        step_in_loop = entry.step - spec.first_step
        if not 0 <= step_in_loop < spec.total_steps or spec.epoch_of(step_in_loop) != entry.epoch:
            report.blame(Offence("is no step of its loop", entry.loop, entry.epoch, entry.step))
            continue
        steps[entry.loop][step_in_loop].append(entry)
    return steps


def _examine_loop(spec: LoopSpec, steps: dict[int, list[Entry]], due: int, report: AuditReport) -> None:
    """`due`: how many steps the loop had when the next one began (0: there is none)."""
    reached = max(due, max(steps, default=-1) + 1)
    report.steps += len(steps)
    per_epoch = spec.steps_per_epoch
    for epoch in range(-(-reached // per_epoch)):
        end = min(reached, (epoch + 1) * per_epoch)
        finished = end == (epoch + 1) * per_epoch
        report.epochs += finished
        report.open_epochs += not finished
        _examine_epoch(spec, epoch, range(epoch * per_epoch, end), finished, steps, report)


def _examine_epoch(
    spec: LoopSpec,
    epoch: int,
    numbers: range,
    finished: bool,
    steps: dict[int, list[Entry]],
    report: AuditReport,
) -> None:
    """Count every index of one epoch."""
    counts = np.zeros(spec.length, dtype=np.uint16)
    # a finished epoch owes every sample there is; an open one, or one that drops its rest, those of its
    # steps
    due = np.full(spec.length, finished and not spec.drop_last)
    for step_in_loop in numbers:
        indices = spec.step_indices(step_in_loop)
        due[indices] = True
        entries = steps.get(step_in_loop, [])
        step = spec.first_step + step_in_loop
        if not entries:
            report.blame(Offence("has no record", spec.loop, epoch, step, samples=_first(indices)))
        for entry in entries:
            for low, high in _proven(spec, step_in_loop, indices, entry, report):
                counts[indices[low:high]] += 1
        if len(entries) > 1:
            what = f"was committed {len(entries)} times"
            report.blame(Offence(what, spec.loop, epoch, step, samples=_first(indices)))
    missing = np.flatnonzero(due & (counts == 0))
    report.samples += int(np.count_nonzero(counts))
    report.missing += len(missing)
    report.repeated += int((counts[counts > 1] - 1).sum())


def _proven(
    spec: LoopSpec, step_in_loop: int, indices: Indices, entry: Entry, report: AuditReport
) -> list[tuple[int, int]]:
    """The shards of a record that hold the samples they should."""
    bounds = spec.shard_bounds(step_in_loop)
    if len(entry.samples) != len(bounds):
        what = f"has {len(entry.samples)} shards, not {len(bounds)}"
        report.blame(Offence(what, spec.loop, entry.epoch, entry.step, samples=_first(indices)))
        return []
    expected = shard_hashes(indices, bounds)
    sizes = np.array([high - low for low, high in bounds], dtype=np.int64)
    good = (entry.hashes == expected) & (entry.samples == sizes) & (entry.ranks >= 0)
    for shard in np.flatnonzero(~good):
        low, high = bounds[shard]
        what = f"was not computed with its samples by rank {entry.ranks[shard]}"
        place = (spec.loop, entry.epoch, entry.step, int(shard))
        report.blame(Offence(what, *place, samples=_first(indices[low:high])))
    return [bounds[shard] for shard in np.flatnonzero(good)]


def _first(indices: Indices) -> tuple[int, ...]:
    return tuple(int(index) for index in indices[:MAX_SAMPLES_SHOWN])
