"""How the members of a generation find each other: keys pushed from endpoint to endpoint.

Every member pushes what the others need to reach it, stamped with the generation and the number of its
attempt. An attempt has a deadline; whoever gives up starts the next one, and whoever hears of a newer
attempt joins it, so all meet in one. What arrives early is kept until the plan does; what is older than
the attempt or the generation is ignored, and so is what names another sender or receiver than the plan.
Knows no torch and no master.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from godmw.collectives.endpoint import Endpoint
from godmw.collectives.frames import PeerError

log = logging.getLogger(__name__)

KIND = "rendezvous"
HERE = "here"
MAX_GENERATIONS = 8  # kept ahead of their plans
MAX_RANK = 4096
MAX_KEYS = 256  # of one member in one attempt
MAX_VALUE_BYTES = 64 << 10
POLL_S = 0.05  # how often a wait looks whether it was cancelled

Member = tuple[str, str]  # worker id, address of its endpoint
Claim = tuple[int, str]  # the rank and the worker id that a message says it comes from


class Cancelled(Exception):
    """The generation is not wanted any more."""


class Superseded(Exception):
    """Another member has begun a newer attempt."""


class Missing(Exception):
    """The attempt's deadline passed; `ranks` have not been heard in it."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(f"not heard: ranks {ranks}")
        self.ranks = ranks


class _Post:
    """What one member has pushed in its newest attempt at a generation."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.keys: dict[str, bytes] = {}


class Rendezvous:
    """What this process has heard from members of generations; one for its life, made with its endpoint."""

    def __init__(self, endpoint: Endpoint, worker: str) -> None:
        self.endpoint, self.worker = endpoint, worker
        self.changed = threading.Condition()
        self._posts: dict[int, dict[Claim, _Post]] = {}
        self._floor = 0
        endpoint.hear(KIND, self._hear)

    def meet(self, generation: int, rank: int, members: Sequence[Member]) -> "Meeting":
        """Begins to form `generation`; what was kept of older ones is dropped."""
        with self.changed:
            self._floor = max(self._floor, generation)
            for old in [number for number in self._posts if number < generation]:
                del self._posts[old]
        return Meeting(self, generation, rank, members)

    def heard(self, generation: int) -> dict[Claim, _Post]:
        """What has come for a generation; to be read under `changed`."""
        return self._posts.get(generation, {})

    def _hear(self, message: Any) -> None:
        generation, attempt, rank = (message.get(name) for name in ("generation", "attempt", "rank"))
        worker, to, key, value = (message.get(name) for name in ("worker", "to", "key", "value"))
        numbers = all(type(number) is int for number in (generation, attempt, rank))
        texts = all(type(text) is str for text in (worker, to, key))
        if not (numbers and texts and type(value) is bytes):
            raise PeerError("a rendezvous message with a field missing or of the wrong type")
        if not (0 <= rank < MAX_RANK and attempt >= 1 and len(value) <= MAX_VALUE_BYTES):
            raise PeerError("a rendezvous message out of bounds")
        if to != self.worker:
            log.warning("a rendezvous message for %r from %r reached %r: ignored", to, worker, self.worker)
            return
        with self.changed:
            if generation >= self._floor:
                self._keep(generation, attempt, (rank, worker), key, value)
                self.changed.notify_all()

    def _keep(self, generation: int, attempt: int, claim: Claim, key: str, value: bytes) -> None:
        posts = self._posts.setdefault(generation, {})
        post = posts.get(claim)
        if post is None and len(posts) >= MAX_RANK:
            return
        if post is None or attempt > post.attempt:
            post = posts[claim] = _Post(attempt)
        if attempt == post.attempt and len(post.keys) < MAX_KEYS:
            post.keys[key] = value
        while len(self._posts) > MAX_GENERATIONS:
            del self._posts[max(self._posts)]


class Meeting:
    """The attempts of one member at one generation; used by its forming thread."""

    def __init__(self, hub: Rendezvous, generation: int, rank: int, members: Sequence[Member]) -> None:
        if not 0 <= rank < len(members) or members[rank][0] != hub.worker:
            raise ValueError(f"{hub.worker!r} is not member {rank} of generation {generation}: {members}")
        self.generation, self.rank, self.members = generation, rank, list(members)
        self.attempt = 0
        self._hub = hub
        self._mine: dict[str, bytes] = {}

    def begin(self) -> int:
        """The next attempt: the one after our last, or the newest heard of. Says to all that we are here."""
        with self._hub.changed:
            self.attempt = max(self.attempt + 1, self._newest())
        self._mine = {}
        for rank in self.absent():
            if self.attempt > 1:  # the kept connection may lead nowhere
                self._hub.endpoint.forget(self.members[rank][1])
        self.push(HERE, b"")
        return self.attempt

    def push(self, key: str, value: bytes) -> None:
        """A key of this attempt, to every other member."""
        with self._hub.changed:
            self._mine[key] = value
        message = {
            "generation": self.generation,
            "attempt": self.attempt,
            "rank": self.rank,
            "worker": self._hub.worker,
            "key": key,
            "value": value,
        }
        for rank, (worker, address) in enumerate(self.members):
            if rank != self.rank:
                try:
                    self._hub.endpoint.post(address, KIND, {**message, "to": worker})
                except PeerError as error:
                    log.warning("generation %d: %s cannot be told: %s", self.generation, worker, error)

    def gather(self, ends_s: float, cancelled: Callable[[], bool]) -> None:
        """Waits until every member is heard in this attempt. Raises Cancelled, Superseded, Missing."""
        self._wait_for(lambda: not self._absent() or None, ends_s, cancelled)

    def value(self, key: str, ends_s: float, cancelled: Callable[[], bool]) -> bytes:
        """Waits for a key of this attempt, whoever pushes it. Raises as `gather`."""
        return self._wait_for(lambda: self._find(key), ends_s, cancelled)

    def has(self, key: str) -> bool:
        with self._hub.changed:
            return self._find(key) is not None

    def absent(self) -> list[int]:
        """The ranks that have not been heard in this attempt or a newer one."""
        with self._hub.changed:
            return self._absent()

    # ---- under the hub's lock ----

    def _wait_for(self, look: Callable[[], Any], ends_s: float, cancelled: Callable[[], bool]) -> Any:
        with self._hub.changed:
            while True:
                if cancelled():
                    raise Cancelled
                if self._newest() > self.attempt:
                    raise Superseded
                if (found := look()) is not None:
                    return found
                left_s = ends_s - time.monotonic()
                if left_s <= 0:
                    raise Missing(self._absent())
                self._hub.changed.wait(min(left_s, POLL_S))

    def _posts(self) -> dict[int, _Post]:
        """Posts by the members of the plan, by rank; one that claims another rank than the plan is not."""
        heard = self._hub.heard(self.generation)
        found = [(rank, heard.get((rank, worker))) for rank, (worker, _) in enumerate(self.members)]
        return {rank: post for rank, post in found if post is not None and rank != self.rank}

    def _newest(self) -> int:
        return max((post.attempt for post in self._posts().values()), default=0)

    def _absent(self) -> list[int]:
        posts = self._posts()
        everyone = set(range(len(self.members))) - {self.rank}
        return sorted(everyone - {rank for rank, post in posts.items() if post.attempt >= self.attempt})

    def _find(self, key: str) -> bytes | None:
        if key in self._mine:
            return self._mine[key]
        for post in self._posts().values():
            if post.attempt == self.attempt and key in post.keys:
                return post.keys[key]
        return None
