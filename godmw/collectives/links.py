"""The data plane of one generation: its thread, its links, its buffers, given up as a whole.

A communication thread forms the links and then runs the jobs it is given, in order. When the generation
ends, for whatever reason, `abandon` marks it dead and returns at once; the process's undertaker closes
its sockets, which frees a thread that is blocked on a silent peer, and lets go of the buffers when that
thread has ended. Nothing of a generation is used by another, so what a dead one still reads or writes is
its own. Decides nothing: a broken link is reported once, to the caller.
"""

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from godmw.collectives.packing import Results, memory
from godmw.collectives.rendezvous import Member
from godmw.collectives.ring import SEGMENT_BYTES, Ring, nothing
from godmw.collectives.transport import Abandoned, LinkError, Transport

log = logging.getLogger(__name__)

WAITING_EVERY_S = 10.0
STUCK_S = 5.0  # a buried thread that lives longer is named in the log
EXIT_S = 2.0  # what the end of the process waits for its links at most

Job = Callable[[Ring], None]
Form = Callable[[Callable[[], bool]], Transport]  # given `cancelled`; raises Abandoned when it says so


class Links:
    """One generation as one member sees it; `members` is (worker id, endpoint address) by rank."""

    def __init__(
        self,
        *,
        generation: int,
        rank: int,
        members: Sequence[Member],
        form: Form,
        on_formed: Callable[[int], None],
        on_broken: Callable[[int, str, str], None],
        waiting: Callable[[str, str, float], None] = lambda peer, stage, seconds: None,
        waiting_every_s: float = WAITING_EVERY_S,
        segment_bytes: int = SEGMENT_BYTES,
        probe: Callable[[str], None] = nothing,
        allocate: Callable[[int], Tensor] = memory,
    ) -> None:
        self.generation, self.rank, self.members = generation, rank, list(members)
        self.abandoned = False
        self._form, self._on_formed, self._on_broken = form, on_formed, on_broken
        self._waiting, self._waiting_every_s = waiting, waiting_every_s
        self._segment_bytes, self._probe = segment_bytes, probe
        self._results = Results(allocate)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._ring: Ring | None = None
        self._told: tuple[Any, int] = (None, 0)
        self._thread = threading.Thread(target=self._run, name=f"godmw-links-{generation}", daemon=True)

    # ---- any thread ----

    def start(self) -> "Links":
        """Begins to form. `on_formed(generation)` and all else is called on the communication thread."""
        _undertaker.watch(self)
        self._thread.start()
        return self

    def submit(self, job: Job) -> None:
        """`job(ring)` on the communication thread, after those before it; never once abandoned or broken."""
        self._jobs.put(job)

    def results(self, like: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Result tensors for these buckets of parts, owned by the generation; the same ones each time."""
        with self._lock:
            return self._results.of(like)

    def abandon(self) -> None:
        """Ends the generation for this process. Returns at once; no job begins or completes afterwards.

        Also the way to end a generation whose work is done: what was sent before has left.
        """
        with self._lock:
            if self.abandoned:
                return
            self.abandoned = True
            if self._ring is not None:
                self._ring.abandoned = True
        self._jobs.put(None)
        _undertaker.bury(self)

    @property
    def waits_for(self) -> str:
        """The member whose bytes are waited for at this moment."""
        ring = self._ring
        waiting = ring.waiting if ring is not None else None
        return self.members[waiting[0]][0] if waiting is not None else ""

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end; for tests and for the end of the process."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the communication thread ----

    def _run(self) -> None:
        try:
            transport = None
            if len(self.members) > 1:
                transport = self._form(lambda: self.abandoned)
            with self._lock:
                self._transport = transport
                self._ring = Ring(transport, self._results, self._segment_bytes, self._probe)
                self._ring.abandoned = self.abandoned
            if not self.abandoned:
                self._on_formed(self.generation)
            while (job := self._jobs.get()) is not None and not self.abandoned:
                job(self._ring)
        except Abandoned:
            pass
        except LinkError as error:
            if not self.abandoned:
                self._on_broken(self.generation, self.members[error.peer][0], error.stage)

    # ---- the undertaker ----

    def _look(self, now_s: float) -> None:
        """Reports a wait that has lasted another `waiting_every_s`."""
        waiting = self._ring.waiting if self._ring is not None else None
        if waiting is None or self.abandoned:
            return
        peer, stage, since_s = waiting
        times = int((now_s - since_s) / self._waiting_every_s)
        told, before = self._told
        if times > (before if told is waiting else 0):
            self._told = (waiting, times)
            self._waiting(self.members[peer][0], stage, now_s - since_s)

    def _close(self) -> bool:
        """Closes what can be closed; True when the thread has ended and everything is let go."""
        with self._lock:
            transport = self._transport
        if transport is not None:
            transport.abort()
        if self._thread.ident is not None:
            self._thread.join(0.05)
        if self._thread.is_alive():
            return False
        with self._lock:
            transport, self._transport, self._ring = self._transport, None, None
            self._results = Results(memory)
        if transport is not None:
            transport.abort()
            transport.close()
        return True


class _Undertaker:
    """One thread for the process: ends abandoned generations, reports long waits of live ones.

    At exit it ends what is left: a thread that comes back from torch into a finalizing interpreter would be
    unwound through C++ and abort the process.
    """

    TICK_S = 0.25

    def __init__(self) -> None:
        self._alive: set[Links] = set()
        self._unburied: dict[Links, float] = {}  # and since when
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._exiting = False

    def watch(self, links: Links) -> None:
        with self._lock:
            self._alive.add(links)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="godmw-undertaker", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)

    def bury(self, links: Links) -> None:
        with self._lock:
            self._alive.discard(links)
            self._unburied[links] = time.monotonic()
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                alive, unburied = list(self._alive), list(self._unburied.items())
                if self._exiting and not unburied:
                    return
            for links, since_s in unburied:
                self._end(links, since_s)
            for links in alive:
                links._look(time.monotonic())
            alive.clear()
            unburied.clear()
            links = None  # type: ignore[assignment]  # nothing is kept while it waits
            with self._lock:
                tick_s = 0.02 if self._unburied else self.TICK_S
            self._wake.wait(tick_s)
            self._wake.clear()

    def _end(self, links: Links, since_s: float) -> None:
        if links._close():
            with self._lock:
                self._unburied.pop(links, None)
        elif time.monotonic() - since_s > STUCK_S:
            log.warning("the links of abandoned generation %d do not end", links.generation)
            with self._lock:
                self._unburied[links] = time.monotonic()

    def _at_exit(self) -> None:
        with self._lock:
            alive, thread, self._exiting = list(self._alive), self._thread, True
        for links in alive:
            links.abandon()
        self._wake.set()
        if thread is not None:
            thread.join(EXIT_S)


_undertaker = _Undertaker()
