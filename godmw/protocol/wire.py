"""Frames <-> messages: one message is one MessagePack array ``[header fields…, message fields…]``.

Decoding is driven by the table of messages: at every place only the type that stands in the table is taken,
lengths are compared with their bounds before anything is allocated, and nothing nests deeper than the table
does; maps, extension types and timestamps exist nowhere.  Whatever is wrong with a frame, the caller sees a
WireError with one of five codes and nothing else.  This module knows no socket and no key, and decides
nothing about a valid message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack

from godmw.protocol.fields import Checked, FieldError, Spec, read_fields, specs
from godmw.protocol.messages import BY_CLASS, BY_NUMBER, MESSAGES, VERSION, Direction, Header

MAX_FRAME_BYTES = max(row.limit_bytes for row in MESSAGES)
HEADER_FIELDS = len(specs(Header))
EVERYBODY = frozenset(Direction)

# type byte of a value -> what it begins: github.com/msgpack/msgpack/blob/master/spec.md
_TAGS: dict[type, frozenset[int]] = {
    int: frozenset([*range(0x80), *range(0xE0, 0x100), *range(0xCC, 0xD4)]),
    float: frozenset([0xCB]),
    bool: frozenset([0xC2, 0xC3]),
    str: frozenset([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB]),
    bytes: frozenset([0xC4, 0xC5, 0xC6]),
}


class WireError(Exception):
    """A frame that is no message.  `code`: ``malformed`` (not our MessagePack), ``version``, ``kind``
    (unknown, or not said in this direction), ``bounds`` (a field holds what it may not), ``size`` (longer
    than its kind allows).
    """

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.reason = reason
        self.code = code


class _Frame:
    """The `Source` that fields are read from: msgpack's unpacker, one checked value at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        limit = max(1, len(data))
        lengths = {"max_str_len": limit, "max_bin_len": limit, "max_ext_len": 0, "max_map_len": 0}
        self._unpacker: Any = msgpack.Unpacker(raw=False, max_buffer_size=limit, **lengths)
        self._unpacker.feed(data)

    def _tag(self, where: str) -> int:
        position: int = self._unpacker.tell()
        if position >= len(self._data):
            raise WireError(f"the frame ends before {where}", "malformed")
        return self._data[position]

    def scalar(self, cls: type, where: str) -> Any:
        tag = self._tag(where)
        if tag not in _TAGS[cls]:
            raise WireError(f"{where}: {cls.__name__} was expected, not type byte {tag:#x}", "bounds")
        try:
            return self._unpacker.unpack()
        except msgpack.OutOfData:
            raise WireError(f"the frame ends within {where}", "malformed") from None
        except ValueError as error:
            raise WireError(f"{where}: {error}", "malformed") from None

    def array(self, limit: int, where: str) -> int:
        tag = self._tag(where)
        if not 0x90 <= tag <= 0x9F and tag not in (0xDC, 0xDD):
            raise WireError(f"{where}: an array was expected, not a value with type byte {tag:#x}", "bounds")
        try:
            length: int = self._unpacker.read_array_header()
        except msgpack.OutOfData:
            raise WireError(f"the frame ends within {where}", "malformed") from None
        except ValueError as error:
            raise WireError(f"{where}: {error}", "malformed") from None
        if length > limit:
            raise WireError(f"{where}: {length} items, at most {limit}", "bounds")
        return length

    def end(self) -> None:
        left = len(self._data) - self._unpacker.tell()
        if left:
            raise WireError(f"{left} bytes behind the last field", "malformed")


def header_of(
    message: Checked, *, job: str, term: int, generation: int, sender: str, incarnation: int, sequence: int
) -> Header:
    """The header under which `message` travels; version and kind are the table's."""
    return Header(
        version=VERSION,
        kind=BY_CLASS[type(message)].number,
        job=job,
        term=term,
        generation=generation,
        sender=sender,
        incarnation=incarnation,
        sequence=sequence,
    )


def encode(header: Header, message: Checked) -> bytes:
    """One frame.  Raises WireError ``size`` when it is longer than its kind allows, ``kind`` when the
    header is of another kind than the message or of another version than this module.
    """
    row = BY_CLASS.get(type(message))
    if row is None or (header.version, header.kind) != (VERSION, row.number):
        name = type(message).__name__
        raise WireError(f"a header of version {header.version}, kind {header.kind} over a {name}", "kind")
    values = [*_plain(specs(Header), header), *_plain(specs(row.cls), message)]
    data: bytes = msgpack.packb(values, use_bin_type=True)
    if len(data) > row.limit_bytes:
        raise WireError(f"{row.cls.__name__} of {len(data)} bytes, at most {row.limit_bytes}", "size")
    return data


def _plain(table: dict[str, Spec], item: Checked) -> list[Any]:
    return [field.plain(getattr(item, name)) for name, field in table.items()]


def decode(data: bytes, directions: Iterable[Direction] = EVERYBODY) -> tuple[Header, Checked]:
    """The message in one frame, said in one of `directions`.  Raises WireError and nothing else, in time
    and memory proportional to the frame.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(data)} bytes, at most {MAX_FRAME_BYTES}", "size")
    frame = _Frame(data)
    try:
        return _decode(frame, len(data), directions)
    except FieldError as error:
        raise WireError(str(error), "bounds") from None


def _decode(frame: _Frame, size: int, directions: Iterable[Direction]) -> tuple[Header, Checked]:
    fields = frame.array(2**32, "the message")
    if fields < 2:
        raise WireError(f"{fields} fields are no message", "malformed")
    version: int = frame.scalar(int, "Header.version")
    if version != VERSION:
        raise WireError(f"version {version} of the protocol, this side speaks {VERSION}", "version")
    kind: int = frame.scalar(int, "Header.kind")
    row = BY_NUMBER.get(kind)
    if row is None:
        raise WireError(f"kind {kind} is unknown to version {VERSION}", "kind")
    name = row.cls.__name__
    if row.direction not in directions:
        raise WireError(f"{name} is said {row.direction.value}, not here", "kind")
    if size > row.limit_bytes:
        raise WireError(f"{name} of {size} bytes, at most {row.limit_bytes}", "size")
    expected = HEADER_FIELDS + len(specs(row.cls))
    if fields != expected:
        raise WireError(f"{name} with {fields} fields, not {expected}", "malformed")
    rest = {key: item.read(frame, f"Header.{key}") for key, item in list(specs(Header).items())[2:]}
    header = Header(version=version, kind=kind, **rest)
    message: Checked = read_fields(row.cls, frame)
    frame.end()
    return header, message
