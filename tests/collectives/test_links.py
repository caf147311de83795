"""Links in one process: order of jobs, one report of a break, waits named, forming again, and the end."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest
import torch

from godmw.collectives.forming import form, identity, introduce
from godmw.collectives.links import Links
from godmw.collectives.ring import Ring
from godmw.collectives.transport import Abandoned, LinkError
from tests.collectives.companions import Company, aside, each, transports


@pytest.fixture
def company() -> Iterator[Company]:
    made = Company(3)
    yield made
    made.close()


class Side:
    """One member's links and what they reported."""

    def __init__(self, company: Company, rank: int, generation: int = 1, **options: Any) -> None:
        self.events: Queue[tuple[Any, ...]] = Queue()
        forming = options.pop("form", None) or (
            lambda cancelled: company.form(
                generation,
                rank,
                cancelled=cancelled,
                attempt_s=0.2,
                report=lambda missing: self.events.put(("missing", missing)),
            )
        )
        self.links = Links(
            generation=generation,
            rank=rank,
            members=company.members,
            form=forming,
            on_formed=lambda number: self.events.put(("formed", number)),
            on_broken=lambda *what: self.events.put(("broken", *what)),
            waiting=lambda *what: self.events.put(("waiting", *what)),
            **options,
        )

    def next(self) -> tuple[Any, ...]:
        return self.events.get(timeout=10)


@pytest.fixture
def sides(company: Company) -> Iterator[Callable[..., list[Side]]]:
    made: list[Side] = []

    def start(**options: Any) -> list[Side]:
        made[:] = [Side(company, rank, **options) for rank in range(3)]
        for side in made:
            side.links.start()
        assert [side.next() for side in made] == [("formed", 1)] * 3
        return made

    yield start
    for side in made:
        side.links.abandon()
    assert all(side.links.join(10) for side in made)


def test_jobs_run_in_order_on_one_thread(sides: Callable[..., list[Side]]) -> None:
    done: Queue[tuple[int, str, float]] = Queue()
    for rank, side in enumerate(sides()):
        for number in range(5):
            part = torch.full((10,), float(rank))
            out = side.links.results([[part]])[0]

            def job(ring: Ring, number=number, part=part, out=out) -> None:
                ring.allreduce([part], out)
                done.put((number, threading.current_thread().name, float(out[0][0])))

            side.links.submit(job)
    seen = [done.get(timeout=10) for _ in range(15)]
    assert [number for number, _, _ in sorted(seen)] == sorted(list(range(5)) * 3)
    assert {(name, total) for _, name, total in seen} == {("godmw-links-1", 3.0)}


def test_a_break_is_reported_once_and_nothing_runs_after_it(sides: Callable[..., list[Side]]) -> None:
    one, two, three = sides()
    ran: Queue[str] = Queue()
    out = two.links.results([[torch.ones(10)]])[0]
    two.links.submit(lambda ring: ring.allreduce([torch.ones(10)], out))
    two.links.submit(lambda ring: ran.put("after"))
    one.links.abandon()
    assert one.links.join(10)
    assert two.next() == ("broken", 1, "w0", "reduce_scatter")
    assert two.links.join(10)
    assert ran.empty()
    assert two.events.empty()
    assert three.events.empty()


def test_abandoning_reports_nothing_and_ends_the_thread(sides: Callable[..., list[Side]]) -> None:
    one = sides()[0]
    out = one.links.results([[torch.ones(10)]])[0]
    one.links.submit(lambda ring: ring.allreduce([torch.ones(10)], out))
    time.sleep(0.05)
    began = time.monotonic()
    one.links.abandon()
    one.links.abandon()
    assert time.monotonic() - began < 0.05
    assert one.links.join(10)
    assert one.events.empty()


def test_a_long_wait_is_named_again_and_again_and_breaks_nothing(sides: Callable[..., list[Side]]) -> None:
    made = sides(waiting_every_s=0.3)
    done: Queue[float] = Queue()

    def submit(side: Side) -> None:
        out = side.links.results([[torch.ones(100)]])[0]

        def job(ring: Ring) -> None:
            ring.allreduce([torch.ones(100)], out)
            done.put(float(out[0][0]))

        side.links.submit(job)

    submit(made[0])
    first, second = made[0].next(), made[0].next()
    assert first[:3] == second[:3] == ("waiting", "w2", "reduce_scatter")
    assert 0.3 <= first[3] < second[3]
    submit(made[1])
    submit(made[2])
    assert [done.get(timeout=10) for _ in range(3)] == [3.0] * 3


def test_a_late_member_is_named_and_then_joined(company: Company) -> None:
    early = [Side(company, rank) for rank in (0, 2)]
    for side in early:
        side.links.start()
    try:
        assert early[0].next() == ("missing", ["w1"])
        assert early[0].next() == ("missing", ["w1"])
        late = Side(company, 1)
        late.links.start()
        early.append(late)
        for side in early:
            while (event := side.next()) != ("formed", 1):
                assert event[0] == "missing"
    finally:
        for side in early:
            side.links.abandon()
    assert all(side.links.join(10) for side in early)


def test_a_generation_given_up_while_forming_says_nothing(company: Company) -> None:
    side = Side(company, 0)
    side.links.start()
    time.sleep(0.1)
    side.links.abandon()
    assert side.links.join(10)
    assert side.events.empty() or side.next()[0] == "missing"


def test_links_that_never_started_can_be_abandoned(company: Company) -> None:
    side = Side(company, 0)
    side.links.abandon()
    assert side.events.empty()


def test_one_member_needs_no_links() -> None:
    events: Queue[Any] = Queue()
    links = Links(
        generation=3,
        rank=0,
        members=[("w0", "nowhere")],
        form=lambda cancelled: pytest.fail("nothing to form"),
        on_formed=events.put,
        on_broken=lambda *what: events.put(what),
    ).start()
    assert events.get(timeout=5) == 3
    out = links.results([[torch.ones(4)]])[0]
    links.submit(
        lambda ring: events.put((ring.allreduce([torch.ones(4)], out), out[0].tolist(), ring.ready(9)))
    )
    assert events.get(timeout=5) == (None, [1.0] * 4, 9)
    links.abandon()
    assert links.join(5)


def test_a_stranger_on_a_link_is_not_let_in(company: Company) -> None:
    meetings = [hub.meet(1, rank, company.members) for rank, hub in enumerate(company.hubs)]
    meetings[1].attempt = 2
    with transports("memory", 3) as made:
        ended = [
            aside(lambda r=r: introduce(made[r], meetings[r], time.monotonic() + 0.3)) for r in range(3)
        ]
        errors = [each.get(timeout=5) for each in ended]
    assert isinstance(errors[2], LinkError)
    assert (errors[2].peer, errors[2].stage) == (1, "forming")
    assert "identity" in errors[2].reason
    assert identity(1, 1, 0, 1, "w0") != identity(1, 1, 0, 1, "w00")
    assert len(identity(1, 1, 0, 1, "é" * 90)) == 128


def test_cancelled_forming_ends(company: Company) -> None:
    stop = threading.Event()
    ended = aside(lambda: form(1, 0, company.members, company.hubs[0], cancelled=stop.is_set))
    time.sleep(0.1)
    stop.set()
    assert isinstance(ended.get(timeout=5), Abandoned)


def test_all_form_at_once_whoever_has_how_many_neighbours() -> None:
    for world_size in (2, 5, 8):
        company = Company(world_size)
        try:
            made = each(world_size, lambda rank, c=company: c.form(1, rank))
            for transport in made:
                transport.abort()
                transport.close()
        finally:
            company.close()


END = """
import threading, torch
from tests.collectives.companions import Company
from godmw.collectives.links import Links
company, formed = Company(2), threading.Semaphore(0)
links = [
    Links(generation=1, rank=rank, members=company.members, on_formed=lambda _: formed.release(),
          form=lambda cancelled, rank=rank: company.form(1, rank, cancelled=cancelled),
          on_broken=lambda *what: None).start()
    for rank in (0, 1)
]
for _ in links:
    assert formed.acquire(timeout=20)
out = links[0].results([[torch.ones(9)]])[0]
links[0].submit(lambda ring: ring.allreduce([torch.ones(9)], out))  # hangs on the other, which is silent
"""


@pytest.mark.parametrize("last", ["", "links[0].abandon()", "[each.abandon() for each in links]"])
def test_a_process_ends_cleanly_in_the_middle_of_everything(last: str) -> None:
    ended = subprocess.run([sys.executable, "-c", END + last], capture_output=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
