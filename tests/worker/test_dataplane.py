"""Whom a worker cannot reach it tells the master, by name; who only has not come yet is not accused."""

import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from godmw.config import JoinAddress
from godmw.membership import events as ev
from godmw.worker.dataplane import DataPlane, answers
from godmw.worker.surroundings import Surroundings

WITHIN_S = 10.0


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """Somebody listens and says nothing, as a process that is stopped."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_whether_somebody_listens(port: socket.socket) -> None:
    where = address(port)
    assert answers(where)
    port.close()
    assert not answers(where)
    assert not answers("no.such.host.invalid:1")


def test_the_unreachable_are_reported_and_the_late_are_not(port: socket.socket) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = address(closed)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    plane = DataPlane(surroundings(), told.put, lambda: 0)
    members = [("w0", plane.address), ("w1", address(port)), ("w2", nobody)]
    plane.form(5, 0, members)
    try:
        seen = [told.get(timeout=WITHIN_S) for _ in range(2)]
    finally:
        plane.abandon(5)
    assert seen == [ev.LinksBroken(5, "w2", "rendezvous")] * 2


def surroundings() -> Surroundings:
    return Surroundings(
        join=JoinAddress("127.0.0.1", 1, "t" * 43), worker="w0", incarnation=1, agent="", host="h",
        run_id="r", backend="gloo", patience_s=1.0,
    )  # fmt: skip
