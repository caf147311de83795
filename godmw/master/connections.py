"""Which connection a routing id speaks on, so that a closed one can be told at once.

ZeroMQ's socket monitor names a closed connection by its descriptor, a message carries the descriptor it
came by, and descriptors are used again: this table keeps the three in step. It is told of every event in
the order in which it happened, before any message that came later is looked at. Pure.
"""

from __future__ import annotations


class Connections:
    """Open descriptors, and the peer heard on each."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._peers: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def knows(self, peer: bytes) -> bool:
        """Whether ``peer`` has been heard on a connection that stands."""
        return peer in self._descriptors

    def accepted(self, descriptor: int) -> None:
        """A connection was accepted."""
        self._open.add(descriptor)

    def closed(self, descriptor: int) -> bytes | None:
        """A connection is gone; returns the peer that was heard on it, if one was."""
        self._open.discard(descriptor)
        peer = self._peers.pop(descriptor, None)
        if peer is not None:
            del self._descriptors[peer]
        return peer

    def heard(self, descriptor: int, peer: bytes) -> bool:
        """A peer not known before spoke; False when its connection is closed already."""
        if descriptor not in self._open:
            return False
        self._peers[descriptor] = peer
        self._descriptors[peer] = descriptor
        return True
