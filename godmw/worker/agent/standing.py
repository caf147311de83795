"""Where an agent stands with its master: the states, and the one table of edges between them."""

from __future__ import annotations

import enum

from godmw.errors import InternalError


class Link(enum.Enum):
    """Where the agent stands with the master."""

    NEW = "new"  # never registered
    HELLO = "hello"  # a connection stands, the answer to AgentHello is awaited
    REGISTERED = "registered"
    AWAY = "away"  # was registered; the connection is gone


class Cause(enum.Enum):
    """A change of ``Link``."""

    CONNECTED = "connected"
    LOST = "lost"
    WELCOME = "welcome"


EDGES: dict[Link, dict[Cause, Link]] = {
    Link.NEW: {Cause.CONNECTED: Link.HELLO, Cause.LOST: Link.NEW},
    Link.HELLO: {Cause.CONNECTED: Link.HELLO, Cause.LOST: Link.AWAY, Cause.WELCOME: Link.REGISTERED},
    Link.REGISTERED: {Cause.CONNECTED: Link.HELLO, Cause.LOST: Link.AWAY, Cause.WELCOME: Link.REGISTERED},
    Link.AWAY: {Cause.CONNECTED: Link.HELLO, Cause.LOST: Link.AWAY},
}


def moved(link: Link, cause: Cause) -> Link:
    """The state after `cause`.  Raises InternalError where the table has no edge."""
    after = EDGES[link].get(cause)
    if after is None:
        raise InternalError(f"agent: {cause.value} while {link.value} has no edge")
    return after
