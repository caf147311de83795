"""Forms the links of a generation, attempt after attempt, under one plan.

An attempt: make a transport, push its keys to the members' endpoints, wait until all are heard, then
exchange identities over the links themselves, so that nobody adds a stranger's bytes and nobody returns
before everybody has come. An attempt that fails or passes its deadline is thrown away whole, the missing
are reported by name, and the next begins. Only the caller gives a generation up (`cancelled`): the master
decides, never a timer here.
"""

import struct
import time
from collections.abc import Callable, Sequence

import torch

from godmw.collectives.process_group import open_group
from godmw.collectives.rendezvous import Cancelled, Meeting, Member, Missing, Rendezvous, Superseded
from godmw.collectives.schedule import dissemination
from godmw.collectives.transport import Abandoned, LinkError, Transport

ATTEMPT_S = 1.0
STAGE = "forming"
IDENTITY_BYTES = 128
_IDENTITY = struct.Struct(">8sQQII96s")
_GRACE_S = 0.05  # a late riser looks once at what has arrived before it calls anybody late

Report = Callable[[list[str]], None]


def identity(generation: int, attempt: int, sender: int, receiver: int, worker: str) -> bytes:
    """What `worker`, being rank `sender`, says of itself to rank `receiver` at the start of their link."""
    name = worker.encode()[:96]
    return _IDENTITY.pack(b"godmw-id", generation, attempt, sender, receiver, name)


def introduce(transport: Transport, meeting: Meeting, ends_s: float) -> None:
    """Identities to and from every peer that a ring and its ready word will use; a barrier of all members.

    Raises LinkError when a peer is gone, late, or somebody else.
    """
    rank, members = meeting.rank, meeting.members
    for to, source in dissemination(rank, len(members)):
        mine = identity(meeting.generation, meeting.attempt, rank, to, members[rank][0])
        expected = identity(meeting.generation, meeting.attempt, source, rank, members[source][0])
        outgoing, incoming = transport.allocate(IDENTITY_BYTES), transport.allocate(IDENTITY_BYTES)
        outgoing.copy_(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        work = transport.exchange([(outgoing, to)], [(incoming, source)], STAGE)
        work.wait(max(_GRACE_S, ends_s - time.monotonic()))
        seen = bytes(incoming.tolist())
        if seen != expected:
            raise LinkError(source, STAGE, f"identity {seen!r}, {expected!r} was expected")


def form(
    generation: int,
    rank: int,
    members: Sequence[Member],
    rendezvous: Rendezvous,
    *,
    cancelled: Callable[[], bool],
    report: Report = lambda missing: None,
    kind: str = "gloo",
    attempt_s: float = ATTEMPT_S,
    probe: Callable[[str], None] = lambda point: None,
) -> Transport:
    """The links of `generation` for `rank`, once all members have come. Raises Abandoned when cancelled.

    `report(worker ids)` at most once each `attempt_s`: who has not come, or came and did not answer.
    """
    meeting = rendezvous.meet(generation, rank, members)
    reported_s = time.monotonic()
    suspect: int | None = None
    while True:
        meeting.begin()
        ends_s = time.monotonic() + attempt_s
        transport: Transport | None = None
        try:
            transport = open_group(kind, meeting, rendezvous.endpoint.host, ends_s, cancelled)
            probe("forming")
            meeting.gather(ends_s, cancelled)
            probe("forming_met")
            introduce(transport, meeting, ends_s)
            probe("forming_linked")
            formed, transport = transport, None
            return formed
        except Cancelled:
            raise Abandoned from None
        except Superseded:
            missing = meeting.absent()
        except Missing as error:
            missing = error.ranks
        except LinkError as error:
            # a peer that gave up because of a third closes its links too: only the second time it is its own
            missing = [error.peer] if error.peer == suspect else []
            suspect = error.peer
        finally:
            if transport is not None:
                transport.abort()
                transport.close()
        if cancelled():
            raise Abandoned
        if missing and time.monotonic() - reported_s >= attempt_s:
            reported_s = time.monotonic()
            report([members[absent][0] for absent in missing])
