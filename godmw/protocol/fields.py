"""What a field of a message may hold: its type, its bounds, and how it is checked, packed and read.

A message declares its fields as ``Annotated[type, Spec(...)]``; the spec is the only place that knows the
bounds. ``check`` runs when a message is built, so an invalid one cannot exist on either side.  ``plain``
turns a value into what MessagePack carries; ``read`` takes it from a frame again, and asks the frame for
exactly what is allowed there, so that nothing is allocated for a stranger's idea of a message.  Nothing
here knows a kind of message or a socket.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, get_args, get_type_hints

from godmw.ids import ID_LIMIT, is_id

U63 = 2**63 - 1


class FieldError(ValueError):
    """A field holds what its bounds forbid; the text names the field, the value's size or type, and the
    bound.
    """


class Source(Protocol):
    """A frame being read, from left to right."""

    def scalar(self, cls: type, where: str) -> Any:
        """The next value, which is a `cls` and no container, or an error naming `where`."""

    def array(self, limit: int, where: str) -> int:
        """The length of the array that begins here, at most `limit`."""


class Spec:
    """The contract of a field.  A scalar is carried as it is; `cls` is its exact type (a bool is not an
    int).
    """

    __slots__ = ()
    cls: type

    def check(self, value: Any, where: str) -> None:
        """Raise FieldError unless `value` is what the field may hold."""
        if type(value) is not self.cls:
            raise FieldError(f"{where}: {self.cls.__name__} was expected, not {type(value).__name__}")

    def plain(self, value: Any) -> Any:
        """What MessagePack carries for a checked value."""
        return value

    def read(self, source: Source, where: str) -> Any:
        """The value that stands next in `source`; its bounds are checked when the message is built of it."""
        return source.scalar(self.cls, where)

    def describe(self) -> str:
        """A few words for the table in the README."""
        return self.cls.__name__


@dataclasses.dataclass(frozen=True, slots=True)
class Int(Spec):
    """A whole number in ``[low, high]``."""

    low: int = 0
    high: int = U63
    cls = int

    def check(self, value: Any, where: str) -> None:
        Spec.check(self, value, where)
        if not self.low <= value <= self.high:
            shown = value if value.bit_length() <= 64 else f"a number of {value.bit_length()} bits"
            raise FieldError(f"{where}: {shown} is outside {self.low}..{self.high}")

    def describe(self) -> str:
        return f"int {self.low}..{'2^63-1' if self.high == U63 else self.high}"


@dataclasses.dataclass(frozen=True, slots=True)
class Float(Spec):
    """A double; infinities and NaN included, for a loss may be one."""

    cls = float


@dataclasses.dataclass(frozen=True, slots=True)
class Bool(Spec):
    """True or false, never a number."""

    cls = bool


@dataclasses.dataclass(frozen=True, slots=True)
class Str(Spec):
    """Text of at most ``limit`` bytes of UTF-8; a lone surrogate, which UTF-8 cannot say, is refused."""

    limit: int = 256
    cls = str

    def check(self, value: Any, where: str) -> None:
        Spec.check(self, value, where)
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise FieldError(f"{where}: a lone surrogate, which is not text") from None
        if size > self.limit:
            raise FieldError(f"{where}: {size} bytes of text, at most {self.limit}")

    def describe(self) -> str:
        return f"str ≤ {self.limit} B"


@dataclasses.dataclass(frozen=True, slots=True)
class Id(Spec):
    """The id of a job, worker, agent or admin (`godmw.ids`), or empty where there is none."""

    cls = str

    def check(self, value: Any, where: str) -> None:
        Spec.check(self, value, where)
        if value and not is_id(value):
            raise FieldError(f"{where}: 1 to {ID_LIMIT} of A-Za-z0-9._- were expected, no . or - first")

    def describe(self) -> str:
        return "id or empty"


@dataclasses.dataclass(frozen=True, slots=True)
class Bytes(Spec):
    """At most ``limit`` bytes."""

    limit: int
    cls = bytes

    def check(self, value: Any, where: str) -> None:
        Spec.check(self, value, where)
        if len(value) > self.limit:
            raise FieldError(f"{where}: {len(value)} bytes, at most {self.limit}")

    def describe(self) -> str:
        return f"bytes ≤ {self.limit}"


@dataclasses.dataclass(frozen=True, slots=True)
class Seq(Spec):
    """A tuple of at most ``limit`` items of one spec, carried as an array."""

    item: Spec
    limit: int
    cls = tuple

    def check(self, value: Any, where: str) -> None:
        Spec.check(self, value, where)
        if len(value) > self.limit:
            raise FieldError(f"{where}: {len(value)} items, at most {self.limit}")
        for index, item in enumerate(value):
            self.item.check(item, f"{where}[{index}]")

    def plain(self, value: Any) -> Any:
        return [self.item.plain(item) for item in value]

    def read(self, source: Source, where: str) -> Any:
        return tuple(self.item.read(source, where) for _ in range(source.array(self.limit, where)))

    def describe(self) -> str:
        return f"[{self.item.describe()}] ≤ {self.limit}"


@dataclasses.dataclass(frozen=True, slots=True)
class Struct(Spec):
    """A nested record: a `Checked` class, which has checked itself, carried as the array of its fields in
    order.
    """

    cls: type

    def plain(self, value: Any) -> Any:
        return [item.plain(getattr(value, name)) for name, item in specs(self.cls).items()]

    def read(self, source: Source, where: str) -> Any:
        table = specs(self.cls)
        length = source.array(len(table), where)
        if length != len(table):
            raise FieldError(f"{where}: {length} fields, {self.cls.__name__} has {len(table)}")
        return read_fields(self.cls, source)


_SPECS: dict[type, dict[str, Spec]] = {}


def specs(cls: type) -> dict[str, Spec]:
    """Field name -> spec, in wire order, of a message or nested record."""
    table = _SPECS.get(cls)
    if table is None:
        hints = get_type_hints(cls, include_extras=True)
        table = {field.name: get_args(hints[field.name])[1] for field in dataclasses.fields(cls)}
        _SPECS[cls] = table
    return table


def read_fields(cls: type, source: Source) -> Any:
    """A `cls` built of its fields, which stand next in `source`; building it checks every bound."""
    return cls(**{name: item.read(source, f"{cls.__name__}.{name}") for name, item in specs(cls).items()})


class Checked:
    """Base of messages and nested records: every field is checked against its spec when the object is
    built.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, item in specs(type(self)).items():
            item.check(getattr(self, name), f"{type(self).__name__}.{name}")
