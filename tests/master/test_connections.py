"""Descriptors are used again; a closed connection is told by the peer that was heard on it."""

from godmw.master.connections import Connections


def test_a_peer_is_found_by_its_descriptor() -> None:
    table = Connections()
    table.accepted(7)
    assert table.heard(7, b"a")
    assert table.knows(b"a")
    assert table.closed(7) == b"a"
    assert not table.knows(b"a")
    assert len(table) == 0


def test_a_connection_that_never_spoke_is_nobody() -> None:
    table = Connections()
    table.accepted(7)
    assert table.closed(7) is None


def test_a_descriptor_that_is_used_again_belongs_to_the_next_peer() -> None:
    table = Connections()
    table.accepted(7)
    table.heard(7, b"a")
    assert table.closed(7) == b"a"
    table.accepted(7)
    assert table.heard(7, b"b")
    assert table.closed(7) == b"b"


def test_a_message_whose_connection_is_closed_already_is_no_peer() -> None:
    table = Connections()
    table.accepted(7)
    table.closed(7)
    assert not table.heard(7, b"a")
    assert not table.knows(b"a")
