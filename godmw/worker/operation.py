"""One collective operation of a worker that has company: from the boundary to the commit, through any
Abort.

An ``Attempt`` is the operation in one generation: the main thread launches buckets into it, the
generation's communication thread reduces them, asks to be whole, exchanges *ready* and commits.
Whatever a generation's end interrupts, ``finish`` notices, and the engine tries again with the same
contribution.  Which of all this is allowed is the participant's to say, under the control's one lock;
nothing is decided here.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from godmw.collectives.links import Links
from godmw.collectives.ring import Ring
from godmw.collectives.transport import Abandoned, LinkError
from godmw.errors import InternalError, JobFailed
from godmw.worker import faults
from godmw.worker.interface import Contribution, Kind

if TYPE_CHECKING:
    from godmw.worker.control import Control

AT: dict[Kind, str] = {
    "step": "a step of a loop",
    "reduce": "job.allreduce or between two loops",
    "gather": "job.evaluate or job.once",
}
WAIT_S = 0.2  # main thread: how often a wait looks at signals, besides being woken


class Attempt:
    """The operation in one generation.  ``outcome``: None under way, True committed, False to be tried
    again.
    """

    def __init__(self, generation: int, rank: int, members: Sequence[str], links: Links | None) -> None:
        self.generation, self.rank, self.members, self.links = generation, rank, members, links
        self.launched: queue.SimpleQueue[list[Tensor]] = queue.SimpleQueue()
        self.count = 0
        self.results: list[list[Tensor]] = []
        self.whole = False
        self.outcome: bool | None = None
        self.error: BaseException | None = None


class SharedOperation:
    """See ``interface.Operation``.  Main thread, but for ``_reduce`` which runs on the communication
    thread.
    """

    def __init__(
        self,
        control: Control,
        number: int,
        shards: int,
        contribution: Contribution,
        step: int,
        *,
        kind: Kind,
        identity: bytes,
    ) -> None:
        self.number, self.shards = number, shards
        self.results: list[list[Tensor]] = []
        self._control, self._contribution, self._step = control, contribution, step
        self._kind, self._word = kind, int.from_bytes(identity, "little", signed=True)
        self._attempt = control.new_attempt()
        self._begin_reducing()

    @property
    def generation(self) -> int:
        return self._attempt.generation

    @property
    def rank(self) -> int:
        return self._attempt.rank

    @property
    def world_size(self) -> int:
        return len(self._attempt.members)

    def worker(self, rank: int) -> str:
        return self._attempt.members[rank]

    def todo(self) -> tuple[int, ...]:
        with self._control.changed:
            return self._control.participant.todo()

    def begin(self, shards: Sequence[int]) -> bool:
        self._control.serve_snapshots(self.number)
        self._control.progressed()
        with self._control.changed:
            return self._control.participant.begin(shards)

    def launch(self, bucket: int) -> None:
        attempt = self._attempt
        if bucket != attempt.count:
            raise InternalError(f"bucket {bucket} was launched, {attempt.count} is next")
        parts = self._contribution.parts(bucket)
        attempt.count += 1
        attempt.launched.put(parts)

    def finish(self) -> bool:
        """Wait for the commit, for a Plan, or for a reason to try again."""
        attempt, control = self._attempt, self._control
        if attempt.links is None:
            self._alone(attempt)
        while True:
            control.serve_snapshots(self.number)
            with control.changed:
                control.check()
                if attempt.error is not None:
                    raise attempt.error
                if control.participant.position > self.number:
                    self.results = attempt.results
                    break
                stopped = control.participant.stopped
                if not stopped and (
                    attempt.outcome is False or control.participant.generation != attempt.generation
                ):
                    self._attempt = control.new_attempt()
                    self._begin_reducing()
                    return False
                control.wait(WAIT_S)
        faults.reach("committed", self._step)
        return True

    # ------------------------------------------------------------------ reducing

    def _begin_reducing(self) -> None:
        attempt = self._attempt
        if attempt.links is not None:
            attempt.links.submit(lambda ring: self._reduce(attempt, ring))

    def _reduce(self, attempt: Attempt, ring: Ring) -> None:
        """The communication thread's part, from the first bucket to the commit."""
        try:
            self._greet(attempt, ring)
            for bucket in range(self._contribution.buckets):
                parts = self._next_parts(attempt)
                assert attempt.links is not None
                out = attempt.links.results([[]] * bucket + [parts])[bucket]
                faults.reach("between_buckets" if bucket else "first_send", self._step)
                ring.allreduce(parts, out)
                attempt.results.append(out)
            faults.reach("results_in", self._step)
            word = self._whole(attempt)
            if word is None:
                return
            lowest = ring.ready(word)
            faults.reach("ready_received", self._step)
            self._control.commit(attempt, self.number, lowest)
        except (Abandoned, LinkError):
            raise
        except BaseException as error:  # it belongs to the main thread's script
            attempt.error = error
            self._control.notify()

    def _greet(self, attempt: Attempt, ring: Ring) -> None:
        """JobFailed when a neighbour is at another operation; while the main thread computes."""
        stranger = ring.stranger(self._word)
        if stranger is not None:
            own, other = attempt.members[attempt.rank], attempt.members[stranger]
            raise JobFailed(
                f"the workers do not stand at the same operation: {own} is at {AT[self._kind]} "
                f"(step {self._step}), {other} at another one",
                hint="every worker must run the same script with the same arguments in the same order",
            )

    def _next_parts(self, attempt: Attempt) -> list[Tensor]:
        while True:
            try:
                return attempt.launched.get(timeout=WAIT_S)
            except queue.Empty:
                if attempt.links is None or attempt.links.abandoned:
                    raise Abandoned from None

    def _whole(self, attempt: Attempt) -> int | None:
        """Judge the sums and ask to be whole; None: another attempt, or this generation is over."""
        if not self._contribution.accept(attempt.results):
            attempt.outcome = False
            self._control.notify()
            return None
        word = self._control.whole(attempt, self.number)
        if word is not None:
            faults.reach("ready_sent", self._step)
        return word

    def _alone(self, attempt: Attempt) -> None:
        """A generation of one: the contribution is the sum, once it is complete and nobody said stop."""
        with self._control.changed:
            participant = self._control.participant
            over = participant.stopped or participant.generation != attempt.generation or participant.todo()
        if over or attempt.results:
            return
        attempt.results = [attempt.launched.get_nowait() for _ in range(attempt.count)]
        word = self._whole(attempt)
        if word is not None:
            self._control.commit(attempt, self.number, word)
