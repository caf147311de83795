"""The ledger: which member computed which samples of which committed operation, on disk.

`ledger/ledger.jsonl` holds one line a loop (its `LoopSpec`) and one line a committed operation (its
table, run lengths of holders and sizes, the shards' sample hashes as base64 of little-endian uint64).
The writer takes every record as often as members send it and writes it once; two different records of one
operation are two histories and an error.  Of the newest operations it remembers digests, of older ones the
file is asked.  A torn last line is cut off on reopening.  Whoever has called `flush` may tell members that
what they sent is safe.  The proof over all this is `godmw.data.audit`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from godmw.data.indices import LoopSpec
from godmw.data.table import FILLED, HASH, HOLDER, SAMPLES, Words, from_bytes
from godmw.errors import InternalError
from godmw.lines import BrokenLine, LineFile, encode, raw_lines, read_lines

FILE_NAME = "ledger.jsonl"
STEP = "step"
WINDOW = 4096  # complete operations whose digests are at hand
_OPERATION = b'{"operation":'
_KIND = b',"kind":'


def _runs(values: npt.NDArray[np.int64]) -> list[list[int]]:
    """[value, how often in a row], in order."""
    return [[value, len(list(run))] for value, run in groupby(values.tolist())]


def _unroll(runs: Any) -> npt.NDArray[np.int64]:
    pairs = np.array(runs, dtype=np.int64).reshape(-1, 2)
    return np.repeat(pairs[:, 0], pairs[:, 1])


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One committed operation; `step` is the job-wide index, -1 for what is no step.

    Per shard: `ranks` (in `generation`) of the holders, `samples` computed, `hashes` of their indices.
    """

    operation: int
    generation: int
    kind: str
    loop: int
    epoch: int
    step: int
    ranks: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]

    @classmethod
    def of_table(
        cls, operation: int, generation: int, kind: str, loop: int, epoch: int, step: int, table: Words
    ) -> Entry:
        rows = table[1:]
        filled = rows[:, FILLED] != 0
        ranks = np.where(filled, rows[:, HOLDER] - 1, -1)
        hashes = np.ascontiguousarray(rows[:, HASH]).view(np.uint64)
        return cls(operation, generation, kind, loop, epoch, step, ranks, rows[:, SAMPLES], hashes)

    def line(self) -> bytes:
        record = {
            "operation": self.operation,
            "generation": self.generation,
            "kind": self.kind,
            "loop": self.loop,
            "epoch": self.epoch,
            "step": self.step,
            "ranks": _runs(self.ranks),
            "samples": _runs(self.samples),
            "hashes": base64.b64encode(self.hashes.astype("<u8").tobytes()).decode("ascii"),
        }
        return encode(record)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Entry:
        """The entry of a line.  Raises KeyError, TypeError or ValueError when it is none."""
        numbers = {name: int(record[name]) for name in ("operation", "generation", "loop", "epoch", "step")}
        hashes = np.frombuffer(base64.b64decode(record["hashes"], validate=True), dtype="<u8").astype(
            np.uint64
        )
        entry = cls(
            kind=str(record["kind"]),
            ranks=_unroll(record["ranks"]),
            samples=_unroll(record["samples"]),
            hashes=hashes,
            **numbers,
        )
        if not len(entry.ranks) == len(entry.samples) == len(entry.hashes):
            raise ValueError("ranks, samples and hashes of different numbers of shards")
        return entry

    def same(self, other: Entry) -> bool:
        """Whether both tell the same: the generation is the teller's and may differ."""
        return content(self.line()) == content(other.line())


def content(line: bytes) -> bytes:
    """A digest of an operation's line without the generation, which is the teller's and may differ."""
    return hashlib.blake2b(line[line.index(_KIND) :].rstrip(b"\n"), digest_size=8).digest()


class LedgerWriter:
    """The one writer of a ledger.  Opening reads what is there, so that nothing is written twice."""

    def __init__(self, directory: Path) -> None:
        self._file = LineFile(directory / FILE_NAME)
        self._contents: dict[int, bytes] = {}  # operation -> digest, of the last `WINDOW` and of all above
        self._past: dict[int, bytes] = {}  # all that was in the file when an older one was asked for
        self._loops: dict[int, str] = {}
        self._below = 0
        for line, _ in raw_lines(self._file.path):
            if line.startswith(_OPERATION):
                self._remember(_number(line), content(line))
            else:
                record = json.loads(line)
                self._loops[record["loop"]] = _spec_text(record["spec"])

    @property
    def below(self) -> int:
        """Every operation below this one is in the ledger."""
        return self._below

    def _remember(self, operation: int, digest: bytes) -> None:
        self._contents[operation] = digest
        while self._below in self._contents:
            self._contents.pop(self._below - WINDOW, None)
            self._below += 1

    def _known(self, operation: int) -> bytes | None:
        """The digest of what was recorded.

        A member that was long without a master may say thousands again: the file is read once for all that
        come before the next `flush`.
        """
        if operation in self._contents or operation >= self._below:
            return self._contents.get(operation)
        if operation not in self._past:
            lines = (line for line, _ in raw_lines(self._file.path) if line.startswith(_OPERATION))
            self._past = {_number(line): content(line) for line in lines}
        return self._past.get(operation)

    def loop(self, spec_json: str) -> bool:
        """Describe a loop; every member may say it.  False: it was there already.

        Raises ValueError when `spec_json` is no `LoopSpec`, InternalError when it differs from what was
        said.
        """
        spec = LoopSpec.from_json(spec_json)
        text, known = spec.to_json(), self._loops.get(spec.loop)
        if known is not None:
            if known != text:
                raise InternalError(f"loop {spec.loop} was described as {known} and is now {text}")
            return False
        self._file.append({"loop": spec.loop, "spec": json.loads(text)})
        self._loops[spec.loop] = text
        return True

    def committed(
        self, operation: int, generation: int, kind: str, loop: int, epoch: int, step: int, table: bytes
    ) -> bool:
        """Record one committed operation, `table` as `table.to_bytes` made it.  False: it was there already.

        Raises ValueError for bytes that are no table, InternalError when another table was committed for it.
        """
        entry = Entry.of_table(operation, generation, kind, loop, epoch, step, from_bytes(table))
        line = entry.line()
        mine, known = content(line), self._known(operation)
        if known is not None:
            if known != mine:
                raise InternalError(
                    f"operation {operation} ({kind} {step}) was committed with two different tables",
                    hint="two histories: keep the run directory and report this",
                )
            return False
        self._file.write(line)
        self._remember(operation, mine)
        return True

    def flush(self) -> None:
        """All that was recorded outlives the machine."""
        self._past = {}
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def _number(line: bytes) -> int:
    """The operation that a line of one is about."""
    return int(line[len(_OPERATION) : line.index(b",")])


def _spec_text(spec: Any) -> str:
    return LoopSpec.from_json(json.dumps(spec)).to_json()


@dataclasses.dataclass(slots=True)
class Ledger:
    """A ledger as it was read: loops by number, operations in the order of the file, and what cannot be
    read.
    """

    loops: dict[int, LoopSpec]
    entries: list[Entry]
    faults: list[str]


def read(directory: Path) -> Ledger:
    """Everything a ledger holds; a torn last line is not there yet.  Never raises for what a file says."""
    ledger = Ledger({}, [], [])
    path = directory / FILE_NAME
    end = 0
    try:
        for record, end in read_lines(path):
            try:
                if "operation" in record:
                    ledger.entries.append(Entry.from_record(record))
                else:
                    spec = LoopSpec.from_json(json.dumps(record["spec"]))
                    if ledger.loops.setdefault(spec.loop, spec) != spec:
                        ledger.faults.append(f"loop {spec.loop} is described in two ways")
            except (KeyError, TypeError, ValueError) as error:
                ledger.faults.append(f"{path.name}: no record in the line that ends at byte {end}: {error}")
    except BrokenLine as error:
        ledger.faults.append(str(error))
    return ledger
