"""What the script has done so far, in order: the loops it ran and the results of operations between them.

The story is part of the state. A joiner's script runs from its top and reads the story instead of acting:
finished loops yield nothing, operations outside loops return what was recorded, finished passes of
`job.epochs` are skipped with their body. Where the story ends, the script stands where the others stand.
Entries are JSON objects. Pure: no tensors, no members.
"""

from __future__ import annotations

from typing import Any

from godmw.errors import JobFailed

Entry = dict[str, Any]


class Story:
    """Entries of `kind` loop, passes, or an operation's name; `cursor` is how far this script has read."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries: list[Entry] = [] if entries is None else entries
        self.cursor = len(self.entries) if entries is None else 0

    @property
    def replaying(self) -> bool:
        """Whether the script is still behind the others."""
        return self.cursor < len(self.entries)

    def follow(self, kind: str, what: str) -> Entry | None:
        """The entry that a script which does `what` of `kind` now should read, None where the story ends.

        Reads past it. JobFailed when the others did something else here.
        """
        if not self.replaying:
            return None
        entry = self.entries[self.cursor]
        if (entry["kind"], entry["what"]) != (kind, what):
            raise _otherwise(kind, what, entry)
        self.cursor += 1
        return entry

    def require_end(self, kind: str, what: str) -> None:
        """JobFailed when a script that is about to do something new is behind the story."""
        if self.replaying:
            raise _otherwise(kind, what, self.entries[self.cursor])

    def add(self, kind: str, what: str, **more: Any) -> Entry:
        """Write the next entry; the script must stand at the story's end."""
        if self.replaying:
            raise AssertionError("the script is behind the story")
        entry: Entry = {"kind": kind, "what": what, **more}
        self.entries.append(entry)
        self.cursor = len(self.entries)
        return entry

    def close_pass(self, entry: Entry) -> None:
        """A pass of `entry` (of kind passes) is finished: what happened in it will be skipped as a whole."""
        place = next(n for n, known in enumerate(self.entries) if known is entry)
        del self.entries[place + 1 :]
        entry["finished"] += 1
        self.cursor = len(self.entries)


def _otherwise(kind: str, what: str, entry: Entry) -> JobFailed:
    return JobFailed(
        f"this worker's script does {kind} {what} where the others did {entry['kind']} {entry['what']}",
        hint="every worker must run the same script with the same arguments in the same order",
    )
