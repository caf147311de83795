"""Every kind of message as bytes, both ways: what one version says, every later one must still read.

`goldens.txt` holds one block a sample: its title, the message for a person, the bytes. `pytest --rewrite`
writes it anew; a diff in its bytes is a change of the protocol's version.
"""

import struct
import textwrap
from pathlib import Path

import pytest

from godmw.protocol import messages as m
from godmw.protocol import wire
from godmw.protocol.fields import Checked

FILE = Path(__file__).with_name("goldens.txt")
A = m.Member(worker="w0", incarnation=0, address="10.0.0.1:40001")
B = m.Member(worker="w1", incarnation=2, address="[fe80::1]:40002")
CHILD = m.Child(worker="w1", incarnation=2, pid=4711, process="S")
TOKEN = "s3cret_token-of-the-job"

SAMPLES: dict[str, Checked] = {
    "a new worker without an agent": m.Join(
        token=TOKEN, agent="", host="ant", pid=100, address="10.0.0.1:40001", generation=0, position=-1,
        abort=0, held=(), prepared=False, ended=False,
    ),
    "a member tells a restarted master its past": m.Join(
        token=TOKEN, agent="a0", host="ant", pid=100, address="10.0.0.1:40001", generation=3, position=70000,
        abort=2, held=(4, 9), prepared=True, ended=True,
    ),
    "a joiner stands at its first operation": m.Prepared(
        settings=b"\x00" * 32, model=bytes(range(32)), data=b"\xff" * 32, shards=64, seed=-1,
        detail="batch 256",
    ),
    "a beat": m.Heartbeat(
        position=12, progress=99, phase="compute", where="train.py:17", waits_for="w1", idle_s=0.25,
        limit_s=0.0, applied=11,
    ),
    "a link broke": m.LinkBroken(peer="w1", stage="reduce-scatter 2"),
    "the answer to an Abort": m.Stopped(
        abort=5, generation=3, position=12, whole=False, shards=8, begun=(0, 1), assigned=(0, 1, 2, 3),
        held=(), ended=False, standing=True, enterable=False,
    ),
    "a plan is held": m.PlanHeld(number=4),
    "links stand": m.Formed(number=4),
    "a committed step": m.Committed(
        operation=12, generation=3, kind="step", loop=0, epoch=1, step=12,
        table=struct.pack("<4q", 1, 32, -5, 0), metrics='{"loss": 0.5}', wall_s=1.75e9,
    ),
    "a loop": m.LoopOpened(loop=0, spec='{"length": 4001}'),
    "the script has ended": m.Finished(
        position=40, confirmed=False, digest=b"\x07" * 16, summary='{"loss_last": 0.1}',
    ),
    "goodbye": m.Leave(reason="drained"),
    "last words": m.Failed(kind="exception", code=1, traceback="ValueError: naïve\n", step=-1),
    "welcome": m.Welcome(
        worker="w0", incarnation=0, run_dir="/data/run", seed=7, lease_s=2.0, beat_s=0.25, orphan_s=600.0,
    ),
    "no": m.Refused(code=77, reason="another model", hint="use the same script"),
    "stop at once": m.Abort(number=5, reason="w1 is dead: its agent saw signal 9"),
    "a joiner is planned in": m.Plan(
        number=4, planned=True, members=(A, B), donors=(A,), start=-1, shards=0, added=(), reason="w1 joins",
    ),
    "survivors take over": m.Plan(
        number=6, planned=False, members=(A,), donors=(), start=12, shards=4,
        added=(m.Share(worker="w0", shards=(2, 3)),), reason="w1 is dead",
    ),
    "all have formed": m.GenerationFormed(number=4),
    "the ledger is durable": m.Recorded(below=13),
    "for a person": m.Notice(text="waiting for w1: in its data loader for 12 s"),
    "the end": m.Finish(outcome="finished", code=0, reason="every member has ended"),
    "an agent with a child": m.AgentHello(token=TOKEN, host="bee", pid=1, slots=2, children=(CHILD,)),
    "children": m.AgentBeat(children=(CHILD, m.Child(worker="w2", incarnation=0, pid=4712, process="T"))),
    "a child was killed": m.ChildExited(worker="w1", incarnation=2, code=0, signal=9, last_words=""),
    "welcome, agent": m.AgentWelcome(run_dir="/data/run", lease_s=10.0, beat_s=0.25, orphan_s=600.0),
    "start one": m.Launch(worker="w1", incarnation=3, slot=1, rank_hint=1, world_hint=2),
    "end one": m.Terminate(worker="w1", incarnation=2, signal=9),
    "how is it": m.Status(token=TOKEN),
    "two more": m.Scale(token=TOKEN, target=4),
    "let it go": m.Drain(token=TOKEN, worker="w1"),
    "throw it out": m.Evict(token=TOKEN, worker="w1"),
    "chaos": m.Kill(token=TOKEN, worker="w1", signal=19),
    "hold": m.Pause(token=TOKEN),
    "go on": m.Resume(token=TOKEN),
    "enough": m.Stop(token=TOKEN, reason="lunch"),
    "tell me all": m.Subscribe(token=TOKEN),
    "an answer": m.Reply(request=3, code=64, body='{"error": "no such worker"}'),
}  # fmt: skip


def header(message: Checked) -> m.Header:
    said_by_master = m.BY_CLASS[type(message)].direction.value.startswith("master")
    return wire.header_of(
        message,
        job="job-1",
        term=2,
        generation=3,
        sender="" if said_by_master else "w0",
        incarnation=1,
        sequence=300,
    )


def render() -> str:
    blocks = []
    for story, message in SAMPLES.items():
        row = m.BY_CLASS[type(message)]
        data = wire.encode(header(message), message)
        shown = textwrap.indent("\n".join(textwrap.wrap(repr(message), 104, break_on_hyphens=False)), "    ")
        rows = "\n".join("  " + data[at : at + 32].hex(" ") for at in range(0, len(data), 32))
        blocks.append(f"{row.number} {row.cls.__name__}: {story}\n{shown}\n{rows}\n")
    return "\n".join(blocks)


def golden(story: str) -> bytes:
    for block in FILE.read_text(encoding="utf-8").split("\n\n"):
        title, *lines = block.splitlines()
        if title.partition(": ")[2] == story:
            return bytes.fromhex(" ".join(line for line in lines if not line.startswith("    ")))
    raise AssertionError(f"no golden for {story!r}: pytest --rewrite, and read the diff")


@pytest.fixture(scope="module", autouse=True)
def _written(rewrite: bool) -> None:
    if rewrite:
        FILE.write_text(render(), encoding="utf-8")


def test_every_kind_has_a_golden() -> None:
    assert {type(sample) for sample in SAMPLES.values()} == {row.cls for row in m.MESSAGES}
    assert FILE.read_text(encoding="utf-8") == render()


def test_numbers_are_for_ever() -> None:
    """Append-only: a number once given is never given to another kind."""
    assert {row.number: row.cls.__name__ for row in m.MESSAGES} == {
        1: "Join", 2: "Prepared", 3: "Heartbeat", 4: "LinkBroken", 5: "Stopped", 6: "PlanHeld", 7: "Formed",
        8: "Committed", 9: "LoopOpened", 10: "Finished", 11: "Leave", 12: "Failed",
        20: "Welcome", 21: "Refused", 22: "Abort", 23: "Plan", 24: "GenerationFormed", 25: "Recorded",
        26: "Notice", 27: "Finish", 40: "AgentHello", 41: "AgentBeat", 42: "ChildExited", 50: "AgentWelcome",
        51: "Launch", 52: "Terminate", 60: "Status", 61: "Scale", 62: "Drain", 63: "Evict", 64: "Kill",
        65: "Pause", 66: "Resume", 67: "Stop", 68: "Subscribe", 80: "Reply",
    }  # fmt: skip


def test_a_frame_written_by_hand() -> None:
    """MessagePack by the book: array of 10, small ints, a string of 5, uint16 300, a string of 4."""
    sent = m.Abort(number=5, reason="dead")
    by_hand = (
        b"\x9a"
        + b"\x01\x16"
        + b"\xa5job-1"
        + b"\x02\x03"
        + b"\xa0"
        + b"\x01"
        + b"\xcd\x01\x2c"
        + b"\x05\xa4dead"
    )
    assert wire.encode(header(sent), sent) == by_hand
    assert wire.decode(by_hand) == (header(sent), sent)


@pytest.mark.parametrize("story", SAMPLES)
class TestGolden:
    def test_both_ways(self, story: str) -> None:
        message = SAMPLES[story]
        assert wire.encode(header(message), message) == golden(story)
        assert wire.decode(golden(story)) == (header(message), message)

    def test_cut_at_each_length(self, story: str) -> None:
        data = golden(story)
        for length in range(len(data)):
            with pytest.raises(wire.WireError) as caught:
                wire.decode(data[:length])
            assert caught.value.code == "malformed", f"cut to {length}"

    def test_junk_behind(self, story: str) -> None:
        for junk in (b"\x00", b"\xc1", golden(story)):
            with pytest.raises(wire.WireError, match="behind the last field"):
                wire.decode(golden(story) + junk)

    def test_another_version(self, story: str) -> None:
        data = golden(story)
        version_at = 1 if data[0] != 0xDC else 3
        assert data[version_at] == m.VERSION
        with pytest.raises(wire.WireError) as caught:
            wire.decode(data[:version_at] + b"\x02" + data[version_at + 1 :])
        assert caught.value.code == "version"

    def test_another_number_of_fields(self, story: str) -> None:
        """One field more and one less; a frame of a later version of a kind is refused, not guessed at."""
        data = golden(story)
        short = data[0] != 0xDC
        count = data[0] & 0x0F if short else int.from_bytes(data[1:3], "big")
        for other in (count - 1, count + 1):
            frame = b"\xdc" + other.to_bytes(2, "big") + data[1 if short else 3 :]
            with pytest.raises(wire.WireError) as caught:
                wire.decode(frame + b"\x00" * (other > count))
            assert caught.value.code == "malformed"
