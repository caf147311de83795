"""Writes this folder's README.md from the table of messages: ``python -m godmw.protocol.readme``.

The table, the fields with their bounds and the one paragraph a message are read from the classes, so the
page cannot say anything else than the code; a test compares them.  This module knows no message by name.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from godmw.protocol.fields import Checked, Seq, Spec, Struct, specs
from godmw.protocol.messages import MESSAGES, VERSION, Header

PATH = Path(__file__).with_name("README.md")


def _introduction() -> str:
    return f"""\
# What godmw's processes say to each other

Version {VERSION}.  This page is written by `python -m godmw.protocol.readme` from `messages.py`; edit that.

A message is one frame on a ZeroMQ connection: one MessagePack array `[header…, fields…]`, fields in the
order below.  Nothing is optional, nothing is a map, nothing nests deeper than it says here.  A frame is
refused with one of five codes: `malformed` (cut, or not MessagePack), `version` (looked at first), `kind`
(unknown, or not said in this direction), `size` (longer than its kind allows), `bounds` (a field of another
type, or outside its bounds).  Numbers of kinds are append-only.

*id*: 1 to 64 letters of `A-Za-z0-9._-`, the first no `.` or `-`.  A *str* is counted in bytes of UTF-8.
"""


def render() -> str:
    """The page."""
    records: dict[type[Checked], None] = {}
    for row in MESSAGES:
        for spec in specs(row.cls).values():
            records.update(dict.fromkeys(_records(spec)))
    parts = [_introduction(), _table(), "## Header\n\n" + _describe(Header)]
    parts += ["## Records inside messages\n"]
    parts += [f"### {cls.__name__}\n\n{_describe(cls)}" for cls in records]
    direction = None
    for row in MESSAGES:
        if row.direction is not direction:
            direction = row.direction
            parts.append(f"## {direction.value}\n")
        parts.append(f"### {row.number} {row.cls.__name__}\n\n{_describe(row.cls)}")
    return "\n".join(parts)


def _records(spec: Spec) -> list[type[Checked]]:
    match spec:
        case Seq(item=item):
            return _records(item)
        case Struct(cls=cls):
            return [cls]
    return []


def _size(limit_bytes: int) -> str:
    kib = limit_bytes // 1024
    return f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"


def _table() -> str:
    lines = ["| number | kind | said by | may be answered by | at most |", "|---|---|---|---|---|"]
    for row in MESSAGES:
        replies = ", ".join(cls.__name__ for cls in row.replies) or "–"
        cells = (str(row.number), row.cls.__name__, row.direction.value, replies, _size(row.limit_bytes))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _describe(cls: type[Checked]) -> str:
    fields = ", ".join(f"`{name}` {spec.describe()}" for name, spec in specs(cls).items()) or "none"
    return f"{inspect.getdoc(cls)}\n\nFields: {fields}.\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
