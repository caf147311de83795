"""Everything workers say to each other: hellos, contributions, ready words, closed ends, and states for
joiners.

Addresses of plans lead to processes, as real endpoints do: nobody is reached whose address is not known.
What arrives before its receiver has entered the generation waits at the door.  A dead process closes its
ends, a frozen one says nothing, a cut pair notices after `LINK_DEADLINE_S`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from godmw.membership import events as ev
from godmw.simulate.links import Contribution, Links, Round

if TYPE_CHECKING:
    from godmw.simulate.engine import Kept
    from godmw.simulate.worker import SimWorker
    from godmw.simulate.world import World

LINK_DEADLINE_S = 1.0  # how long a link that nothing passes is tried


class Fabric:
    """The endpoints of all workers, by address."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at: dict[str, SimWorker] = {}
        self._door: dict[tuple[str, int], list[Callable[[Links], None]]] = {}  # (process, generation)

    def open(self, worker: SimWorker) -> None:
        """`worker` listens at its address."""
        self._at[worker.participant.identity.address] = worker

    def find(self, address: str) -> SimWorker | None:
        """Who listens there, alive."""
        worker = self._at.get(address)
        return worker if worker is not None and worker.alive else None

    # ------------------------------------------------------------------ one generation

    def form(
        self, worker: SimWorker, generation: int, rank: int, members: tuple[tuple[str, str], ...]
    ) -> None:
        """`worker` enters `generation`: it says hello to every other member."""
        links = worker.links = Links(generation, rank, tuple(address for _, address in members))
        for do in self._door.pop((worker.name, generation), []):
            do(links)
        self._tell_others(worker, links, lambda theirs: theirs.hello.add(rank))
        self._formed(worker, links)
        worker.later(LINK_DEADLINE_S, lambda: self._retry(worker, links))

    def _retry(self, worker: SimWorker, links: Links) -> None:
        """Somebody is missing: a dead or unreachable address is reported, one that has not come yet is
        waited for.
        """
        if links is not worker.links or links.abandoned:
            return
        waits_for = links.missing_hellos() if not links.formed else worker.engine.waits_for()
        for rank in waits_for:
            peer = self.find(links.members[rank])
            if peer is None or self._is_cut(worker, peer):
                worker.feed(ev.LinksBroken(links.generation, self._id(links, rank), "rendezvous"))
        worker.later(LINK_DEADLINE_S, lambda: self._retry(worker, links))

    def _is_cut(self, worker: SimWorker, peer: SimWorker) -> bool:
        network = self._world.network
        return network.is_cut(worker.name, peer.name) or network.is_cut(peer.name, worker.name)

    def _formed(self, worker: SimWorker, links: Links) -> None:
        if not links.formed and not links.missing_hellos() and links is worker.links:
            links.formed = True
            worker.later(0.0, lambda: worker.feed(ev.LinksFormed(links.generation)))

    def abandon(self, worker: SimWorker, generation: int) -> None:
        """`worker` gives its links up; the other ends find them closed."""
        links = worker.links
        if links is not None and links.generation == generation and not links.abandoned:
            links.abandoned = True
            self.close(worker, links)

    def close(self, worker: SimWorker, links: Links) -> None:
        """The other members of `links` see the ends of `worker` closed, after all it has sent."""
        rank = links.rank
        self._tell_others(worker, links, lambda theirs: theirs.closed.add(rank))

    def give(self, worker: SimWorker, links: Links, at: Round, contribution: Contribution) -> None:
        rank = links.rank
        links.gave.setdefault(at, {})[rank] = contribution
        self._tell_others(
            worker, links, lambda theirs: theirs.gave.setdefault(at, {}).update({rank: contribution})
        )

    def say_ready(self, worker: SimWorker, links: Links, at: Round, lowest: int) -> None:
        rank = links.rank
        links.ready.setdefault(at, {})[rank] = lowest
        self._tell_others(
            worker, links, lambda theirs: theirs.ready.setdefault(at, {}).update({rank: lowest})
        )

    def _tell_others(self, worker: SimWorker, links: Links, do: Callable[[Links], None]) -> None:
        for rank, address in enumerate(links.members):
            peer = self._at.get(address)
            if rank != links.rank and peer is not None:
                self._send(worker, peer, links.generation, do)

    def _send(
        self, worker: SimWorker, peer: SimWorker, generation: int, do: Callable[[Links], None]
    ) -> None:
        def deliver() -> None:
            theirs = peer.links
            if theirs is None or theirs.generation < generation:
                self._door.setdefault((peer.name, generation), []).append(do)
            elif theirs.generation == generation and not theirs.abandoned:
                do(theirs)
                self._formed(peer, theirs)
                peer.engine.advance()

        self._world.network.send(worker.name, peer.name, "data", lambda: peer.run(deliver))

    def _id(self, links: Links, rank: int) -> str:
        peer = self._at.get(links.members[rank])
        return peer.label if peer is not None else ""

    def report_broken(self, worker: SimWorker, links: Links, waits_for: list[int], stage: str) -> None:
        """Tell the participant, once a peer, that it waits for somebody whose end is closed."""
        for rank in links.broken(waits_for):
            links.reported.add(rank)
            worker.feed(ev.LinksBroken(links.generation, self._id(links, rank), stage))

    # ------------------------------------------------------------------ states

    def ask_state(
        self,
        joiner: SimWorker,
        address: str,
        generation: int,
        done: Callable[[Kept | None], None],
    ) -> None:
        """Ask the donor at `address` for what it keeps for `generation`; `done` gets (position, state), or
        None when it is not there.  No answer comes from one that is frozen or cut off.
        """
        donor = self._at.get(address)
        if donor is None or not donor.alive:
            joiner.later(0.001, lambda: done(None))
            return

        def answer(kept: Kept | None) -> None:
            network = self._world.network
            network.send(donor.name, joiner.name, "state", lambda: joiner.run(lambda: done(kept)))

        def asked() -> None:
            if not donor.alive:
                self._world.network.send(
                    donor.name, joiner.name, "state", lambda: joiner.run(lambda: done(None))
                )
            donor.run(lambda: donor.engine.asked(generation, answer))

        self._world.network.send(joiner.name, donor.name, "state", asked)
