"""The wire against everything that is not a message: every bound, every length, and bytes at random.

Messages are drawn from the specs themselves, so a new kind is covered on the day it enters the table.
"""

import math
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godmw.ids import is_id
from godmw.protocol import fields as f
from godmw.protocol import messages as m
from godmw.protocol import wire

CODES = {"malformed", "version", "kind", "bounds", "size"}
KINDS = [pytest.param(row, id=row.cls.__name__) for row in m.MESSAGES]
IDS = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,9}\Z") | st.just("")


def values(spec: f.Spec) -> st.SearchStrategy[Any]:
    """What a field may hold, its edges included."""
    match spec:
        case f.Int():
            return st.integers(spec.low, spec.high) | st.sampled_from([spec.low, spec.high])
        case f.Float():
            return st.floats()
        case f.Bool():
            return st.booleans()
        case f.Id():
            return IDS
        case f.Str():
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=min(spec.limit // 4, 20))
        case f.Bytes():
            return st.binary(max_size=min(spec.limit, 40))
        case f.Seq():
            return st.lists(values(spec.item), max_size=3).map(tuple)
        case f.Struct():
            return built(spec.cls)
    raise AssertionError(f"no strategy for {spec}")


def built(cls: type) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: values(spec) for name, spec in f.specs(cls).items()})


def least(spec: f.Spec) -> Any:
    match spec:
        case f.Int():
            return max(spec.low, 0)
        case f.Float():
            return 0.5
        case f.Struct():
            return plainest(spec.cls)
        case _:
            return spec.cls()


def plainest(cls: type) -> Any:
    return cls(**{name: least(spec) for name, spec in f.specs(cls).items()})


def header(cls: type) -> m.Header:
    return wire.header_of(
        plainest(cls), job="j", term=1, generation=1, sender="w0", incarnation=0, sequence=1
    )


def frame_of(cls: type, **changed: Any) -> bytes:
    """A frame whose fields hold what no message may."""
    message, head = plainest(cls), header(cls)
    head_values = [getattr(head, name) for name in f.specs(m.Header)]
    return msgpack.packb(
        [
            *head_values,
            *(changed.get(name, spec.plain(getattr(message, name))) for name, spec in f.specs(cls).items()),
        ]
    )


def code_of(data: bytes) -> str:
    with pytest.raises(wire.WireError) as caught:
        wire.decode(data)
    assert caught.value.code in CODES
    assert len(caught.value.reason) < 300
    return caught.value.code


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("row", KINDS)
def test_every_message_survives_the_wire(row: m.Row, data: st.DataObject) -> None:
    message = data.draw(built(row.cls))
    numbers = {
        key: data.draw(st.integers(0, f.U63)) for key in ("term", "generation", "incarnation", "sequence")
    }
    head = wire.header_of(message, job=data.draw(IDS), sender=data.draw(IDS), **numbers)
    got_head, got = wire.decode(wire.encode(head, message))
    assert got_head == head
    assert repr(got) == repr(message)  # NaN is not equal to itself
    assert type(got) is row.cls


WRONG: dict[type, list[Any]] = {
    f.Int: [-(2**63), 2**63, True, 1.0, "1", b"1", None, [], {}, [[]]],
    f.Float: [1, True, "1", None, [], {}],
    f.Bool: [0, 1, "true", None, []],
    f.Str: [1, b"x", None, [], True],
    f.Id: ["../up", ".hidden", "-x", "a b", "a/b", "x" * 65, "ä", 1, None],
    f.Bytes: ["x", 1, None, [], True],
    f.Seq: [1, "x", None, {}, b""],
    f.Struct: [1, "x", None, [], {}],
}


def wrong_values(spec: f.Spec) -> list[Any]:
    wrong = list(WRONG[type(spec)])
    match spec:
        case f.Int():
            wrong += [spec.low - 1, *([spec.high + 1] if spec.high < f.U63 else [])]
        case f.Str():
            wrong += ["x" * (spec.limit + 1), "é" * (spec.limit // 2 + 1)]
        case f.Bytes():
            wrong.append(b"x" * (spec.limit + 1))
        case f.Seq(item=item, limit=limit):
            wrong.append([item.plain(least(item))] * (limit + 1))
            wrong += [[value] for value in wrong_values(item)]
        case f.Struct(cls=cls):
            table = f.specs(cls)
            wrong.append([spec.plain(least(spec)) for spec in table.values()] + [0])
            for at, inner in enumerate(table.values()):
                for value in wrong_values(inner):
                    good = [spec.plain(least(spec)) for spec in table.values()]
                    wrong.append([*good[:at], value, *good[at + 1 :]])
    return wrong


@pytest.mark.parametrize("row", KINDS)
def test_each_field_out_of_its_bounds(row: m.Row) -> None:
    assert wire.decode(frame_of(row.cls))[1] == plainest(row.cls)
    for name, spec in f.specs(row.cls).items():
        for value in wrong_values(spec):
            data = frame_of(row.cls, **{name: value})
            assert code_of(data) == ("size" if len(data) > row.limit_bytes else "bounds"), (
                name,
                str(value)[:80],
            )


@pytest.mark.parametrize("row", KINDS)
def test_a_message_out_of_bounds_cannot_be_built(row: m.Row) -> None:
    good = {name: least(spec) for name, spec in f.specs(row.cls).items()}
    for name, spec in f.specs(row.cls).items():
        for value in WRONG[type(spec)]:
            with pytest.raises(f.FieldError, match=f"{row.cls.__name__}.{name}"):
                row.cls(**good | {name: value})


def test_text_that_utf8_cannot_say() -> None:
    with pytest.raises(f.FieldError, match="surrogate"):
        m.Notice(text="\ud800")
    data = frame_of(m.Notice, text="abc").replace(b"abc", b"\xed\xa0\x80")
    assert code_of(data) == "malformed"


def test_numbers_too_long_to_print() -> None:
    with pytest.raises(f.FieldError, match="a number of 33220 bits"):
        m.Recorded(below=10**10000)


@pytest.mark.parametrize("row", KINDS)
def test_over_the_limit_of_its_kind(row: m.Row) -> None:
    """A valid header and a body one byte too long is refused by its length, whatever it holds."""
    data = frame_of(row.cls)
    assert code_of(data.ljust(row.limit_bytes + 1, b"\x00")) == "size"
    assert code_of(data.ljust(row.limit_bytes, b"\x00")) == "malformed"
    assert code_of(bytes(wire.MAX_FRAME_BYTES + 1)) == "size"


def test_what_the_other_side_would_refuse_is_not_sent() -> None:
    everything = tuple(range(m.MAX_SHARDS))
    shares = tuple(m.Share(worker=f"w{n}", shards=everything) for n in range(12))
    plan = m.Plan(
        number=1, planned=False, members=(), donors=(), start=0, shards=0, added=shares, reason=""
    )  # fmt: skip
    with pytest.raises(wire.WireError, match=r"size: Plan of 23.* bytes, at most 2097152"):
        wire.encode(header(m.Plan), plan)
    with pytest.raises(wire.WireError, match="kind: a header"):
        wire.encode(header(m.Abort), m.Recorded(below=1))


def test_the_largest_of_its_kind_fits() -> None:
    everything = tuple(range(m.MAX_SHARDS))
    numbers = (f.U63,) * 64
    stopped = m.Stopped(
        abort=f.U63, generation=f.U63, position=f.U63, whole=True, shards=m.MAX_SHARDS, begun=everything,
        assigned=everything, held=numbers, ended=True, standing=True, enterable=True,
    )  # fmt: skip
    members = tuple(
        m.Member(worker=f"w{n:063}", incarnation=f.U63, address="a" * 256) for n in range(m.MAX_WORKERS)
    )
    per_member = m.MAX_SHARDS // m.MAX_WORKERS
    added = tuple(
        m.Share(worker=member.worker, shards=everything[n * per_member : (n + 1) * per_member])
        for n, member in enumerate(members)
    )
    plan = m.Plan(
        number=f.U63, planned=False, members=members, donors=members, start=f.U63, shards=m.MAX_SHARDS,
        added=added, reason="é" * 2048,
    )  # fmt: skip
    table = bytes(8 * 8 * (m.MAX_SHARDS + 1))
    committed = m.Committed(
        operation=f.U63, generation=f.U63, kind="k" * 64, loop=f.U63, epoch=f.U63, step=f.U63, table=table,
        metrics="m" * 16384, wall_s=math.inf,
    )  # fmt: skip
    reply = m.Reply(request=1, code=0, body="b" * (4 * 1024 * 1024))
    for message in (stopped, plan, committed, reply):
        head = header(type(message))
        assert wire.decode(wire.encode(head, message)) == (head, message)


def test_the_wrong_direction() -> None:
    data = wire.encode(header(m.Abort), m.Abort(number=1, reason=""))
    with pytest.raises(wire.WireError, match="kind: Abort is said master → worker, not here"):
        wire.decode(data, {m.Direction.WORKER_TO_MASTER, m.Direction.AGENT_TO_MASTER})
    assert wire.decode(data, {m.Direction.MASTER_TO_WORKER})[1] == m.Abort(number=1, reason="")


def test_kinds_nobody_knows() -> None:
    for kind in (0, 13, 65535, f.U63):
        assert code_of(msgpack.packb([m.VERSION, kind, "j", 1, 1, "w0", 0, 1])) == "kind"


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"\x91" * 2_000_000, id="nested arrays"),
        pytest.param(b"\x81\x00" * 1_000_000, id="nested maps"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="array of 4 billion"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map of 4 billion"),
        pytest.param(b"\xdd\x00\x7f\xff\xff" + b"\x90" * 8_000_000, id="8 million empty arrays"),
        pytest.param(frame_of(m.Committed, table=[[]] * 8_000_000), id="8 million empty arrays as a table"),
        pytest.param(b"\x9a\x01\x16\xdb\xff\xff\xff\xff", id="4 GiB of text as the job"),
        pytest.param(b"\x9a\x01\x16\xc6\xff\xff\xff\xff", id="4 GiB of bytes as the job"),
        pytest.param(b"\x9a\xd6\xff\x00\x00\x00\x00", id="a timestamp as the version"),
        pytest.param(b"\x9a\x01\xc7\x08\x05abcdefgh", id="an extension type as the kind"),
        pytest.param(b"\xc1", id="the byte that is never used"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_bombs(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        code_of(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(bomb) + 100_000


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    code_of(data)


@given(st.data())
def test_random_damage(data: st.DataObject) -> None:
    """Any frame with some bytes changed, doubled or left out is a message or a WireError."""
    row = data.draw(st.sampled_from(m.MESSAGES))
    frame = bytearray(wire.encode(header(row.cls), data.draw(built(row.cls))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        if not frame:
            return
    try:
        head, message = wire.decode(bytes(frame))
    except wire.WireError:
        return
    assert wire.decode(wire.encode(head, message))[1].__class__ is message.__class__


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=30,
))  # fmt: skip
def test_messagepack_that_is_not_ours(value: Any) -> None:
    for data in (
        msgpack.packb(value),
        msgpack.packb([m.VERSION, 23, "j", 1, 1, "", 0, 1, 1, True, value, value]),
    ):
        assert code_of(data) in CODES


@given(st.text(max_size=70))
def test_ids_are_file_names(text: str) -> None:
    if is_id(text):
        assert text
        assert len(text) <= 64
        assert not set(text) & set('/\\ \n\0:*?"<>|')
        assert text not in (".", "..")
