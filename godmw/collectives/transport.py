"""What the links of one generation can do, whatever carries them.

A transport moves contiguous tensors between the ranks of one generation. Its one primitive is `exchange`:
sends and receives that are posted together and go on at once. On each link the messages of one lane meet
in the order in which they were posted on either side. It is made for one generation and never used by
another. It knows no schedule, no dtype's arithmetic and no membership.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

Parcel = tuple[Tensor, int]  # a contiguous tensor and the rank it goes to or comes from


class LinkError(Exception):
    """A link of the generation is broken. `peer` is a rank, `stage` what was being done with it."""

    def __init__(self, peer: int, stage: str, reason: str) -> None:
        super().__init__(f"link to rank {peer} broke in {stage}: {reason}")
        self.peer, self.stage, self.reason = peer, stage, reason


class Abandoned(Exception):
    """The generation was given up by this process: whoever still works for it stops."""


class Work(Protocol):
    """An exchange under way."""

    def wait(self, deadline_s: float | None = None) -> None:
        """Returns when everything of the exchange is received and everything sent may be overwritten.

        Raises LinkError when a peer's socket fails, Abandoned after `abort`. A deadline that passes raises
        LinkError too and ends the whole transport: nothing but the forming of a generation sets one.
        """


class Transport(Protocol):
    """The links of one rank in one generation."""

    kind: str
    rank: int
    world_size: int
    least_segment_bytes: int  # smaller messages than this are not worth cutting
    receives_ahead: bool  # a receive may be posted long before the send it is for, in an exchange of its own
    sent_bytes: int  # payload handed over by `exchange` so far, for accounting

    def begin(self) -> None:
        """Called by the communication thread before each operation, to order it after the caller's work."""

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel], stage: str) -> Work:
        """Posts all and returns; never waits for a peer. Sources and targets live until the wait is over."""

    def abort(self) -> None:
        """From any thread: every pending and later wait raises Abandoned soon. Bounded, never collective."""

    def close(self) -> None:
        """Frees sockets and threads; after `abort`, or when no exchange is pending. Never collective."""

    def allocate(self, length: int) -> Tensor:
        """`length` bytes (uint8, 1-D), 64-byte aligned, that this transport can send and receive."""
