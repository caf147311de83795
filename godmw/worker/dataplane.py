"""What a worker has towards its peers: its endpoint, the links of its generations, snapshots kept and
fetched.

Performs what the participant wants done on the data plane; every call returns at once and may come
from any thread under the control's lock.  Blocking work (forming, fetching) has threads of its own
that report through ``tell``.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from godmw.checkpoint.snapshot import Snapshot
from godmw.checkpoint.transfer import Cancelled, Donor, Fetch, NoDonor
from godmw.collectives.endpoint import Endpoint
from godmw.collectives.forming import form
from godmw.collectives.frames import PeerError, resolve
from godmw.collectives.links import Links
from godmw.collectives.rendezvous import Rendezvous
from godmw.membership import events as ev
from godmw.worker import faults
from godmw.worker.interface import Engine
from godmw.worker.surroundings import Surroundings

log = logging.getLogger(__name__)

AGAIN_S = 0.2  # between two rounds of asking all donors
UNREACHED_AGAIN_S = 0.7  # the same, while none of them can be reached
PROBE_S = 0.5  # for a connection to an address that may not answer
PROBED = 4  # of the missing, in one attempt

Address = tuple[str, str]  # (worker, host:port)


def answers(address: str) -> bool:
    """Does anybody listen there?  A process that is stopped or busy does."""
    try:
        family, where = resolve(address)
    except PeerError:
        return False
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        return probe.connect_ex(where) == 0


class DataPlane:
    """``tell`` takes an event to the participant; ``step`` says the job's step, for the fault points."""

    def __init__(
        self, surroundings: Surroundings, tell: Callable[[Any], None], step: Callable[[], int]
    ) -> None:
        self._tell, self._step = tell, step
        self._backend = surroundings.backend
        self._endpoint = Endpoint(surroundings.own_address(), surroundings.join.token).start()
        self._rendezvous = Rendezvous(self._endpoint, surroundings.worker)
        self._donor = Donor(self._endpoint, probe=self._reach)
        self._links: dict[int, Links] = {}
        self._newest = 0
        self._fetch: tuple[int, Fetch] | None = None
        self.fetched: tuple[int, Snapshot] | None = None  # (generation, state)
        self._forming_waits_for = ""

    @property
    def waits_for(self) -> str:
        """The member that the newest generation's links wait for at this moment."""
        newest = self._links.get(self._newest)
        return self._forming_waits_for or (newest.waits_for if newest is not None else "")

    @property
    def address(self) -> str:
        """``host:port`` for the plans."""
        return self._endpoint.address

    def name(self, worker: str) -> None:
        """The master has named this worker, if nobody had: so its peers call it."""
        self._rendezvous.worker = worker

    def _reach(self, point: str) -> None:
        faults.reach(point, self._step())

    # ------------------------------------------------------------------ links

    def form(self, generation: int, rank: int, members: Sequence[Address]) -> None:
        """Begin to make the links of a generation; LinksFormed or LinksBroken tells how it went."""
        self._forming_waits_for = ""

        def forming(cancelled: Callable[[], bool]) -> Any:
            return form(
                generation,
                rank,
                list(members),
                self._rendezvous,
                cancelled=cancelled,
                report=lambda missing: self._missing(generation, dict(members), missing),
                kind=self._backend,
                probe=self._reach,
            )

        self._newest = generation
        self._links[generation] = Links(
            generation=generation,
            rank=rank,
            members=list(members),
            form=forming,
            on_formed=self._formed,
            on_broken=lambda number, peer, stage: self._tell(ev.LinksBroken(number, peer, stage)),
            waiting=self._waiting,
            probe=self._reach,
        ).start()

    def links(self, generation: int) -> Links | None:
        """The links to reduce over; None in a generation of one, which needs none."""
        links = self._links.get(generation)
        return links if links is not None and len(links.members) > 1 else None

    def abandon(self, generation: int) -> None:
        links = self._links.pop(generation, None)
        if links is not None:
            links.abandon()

    def _formed(self, generation: int) -> None:
        self._forming_waits_for = ""
        self._tell(ev.LinksFormed(generation))

    def _missing(self, generation: int, addresses: dict[str, str], workers: list[str]) -> None:
        """Who has not come is waited for; that nobody answers at an address is for the master to judge."""
        self._forming_waits_for = workers[0] if workers else ""
        log.warning("still forming: waiting for %s", ", ".join(workers))
        for worker in workers[:PROBED]:
            if not answers(addresses[worker]):
                self._tell(ev.LinksBroken(generation, worker, "rendezvous"))

    def _waiting(self, peer: str, stage: str, seconds: float) -> None:
        log.warning("waiting for %s for %.0f s (%s)", peer, seconds, stage)

    # ------------------------------------------------------------------ state

    def offer(self, generations: set[int], snapshot: Snapshot) -> None:
        """Serve ``snapshot`` to the joiners of these generations."""
        for generation in generations:
            self._donor.offer(generation, snapshot)

    def withdraw(self, below: int) -> None:
        """Joiners of ``below`` and of older generations have what they need, or never will."""
        self._donor.withdraw(below)
        if self._fetch is not None and self._fetch[0] <= below:
            self._fetch[1].cancel()
            self._fetch = self.fetched = None

    def fetch(
        self, generation: int, donors: Sequence[Address], engine: Engine, done: Callable[[], None]
    ) -> None:
        """Fetch the state of ``generation``; it is in ``fetched`` when ``done`` is called."""
        registry = engine.registry
        fetch = Fetch(
            self._endpoint,
            [address for _, address in donors],
            generation,
            registry.live(),
            limit_bytes=registry.budget_bytes(),
            accept=registry.accept,
            probe=self._reach,
        )
        self._fetch, self.fetched = (generation, fetch), None

        def run() -> None:
            while True:
                try:
                    snapshot = fetch.run()
                    break
                except (
                    NoDonor
                ) as error:  # the master knows who lives: it takes the plan back, or a donor comes
                    log.warning("%s", error)
                    reached = any(answers(address) for _, address in donors)
                    if not reached:
                        self._tell(ev.LinksBroken(generation, donors[0][0], "state"))
                    time.sleep(AGAIN_S if reached else UNREACHED_AGAIN_S)
                except Cancelled:
                    return
            if self._fetch is not None and self._fetch[1] is fetch:
                self.fetched = (generation, snapshot)
                done()

        threading.Thread(target=run, name=f"godmw-fetch-{generation}", daemon=True).start()

    def take_fetched(self) -> tuple[int, Snapshot] | None:
        fetched, self.fetched = self.fetched, None
        return fetched
