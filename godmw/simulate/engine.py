"""What the main and the communication thread of a simulated worker do between two questions to the
participant.

The stages of a script, in virtual time: importing, building, waiting for a state, at a boundary, computing
one shard, reducing, ended.  Whether a shard may be begun, a worker be whole, an operation be committed or a
boundary be passed, the participant says; `advance` goes as far as it is let, and is called again after
everything that happens.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import godmw.membership.events as ev
from godmw.membership.invariants import Violation
from godmw.membership.participant import Participant
from godmw.protocol import messages as msg
from godmw.simulate.links import Contribution, Round
from godmw.simulate.script import Parts, first_state, next_state
from godmw.simulate.text import numbers

if TYPE_CHECKING:
    from godmw.simulate.worker import SimWorker

DONOR_PATIENCE_S = 2.0
Kept = tuple[int, str, tuple[msg.Committed | msg.LoopOpened, ...]]  # (position, state, unrecorded)


@dataclasses.dataclass(slots=True)
class Sum:
    """A result, private to the worker: the generation that made it and what it was made of."""

    operation: int
    generation: int
    parts: Parts


class Engine:
    """The script of one worker."""

    def __init__(self, worker: SimWorker) -> None:
        self.worker = worker
        self.stage = "importing"
        self.state = first_state(worker.name)
        self.position = -1  # committed operations that are in `state`
        self.done: set[int] = set()  # shards of the operation at `position` that are computed
        self.given: set[tuple[int, int]] = set()  # (generation, operation) contributed to
        self.sum: Sum | None = None
        self._computing = False
        self._asked: list[tuple[int, Callable[[Kept | None], None]]] = []
        self._keeps: dict[
            int, Kept | None
        ] = {}  # generation -> snapshot, None: to be taken by the main thread
        self._fetching = 0
        self._busy = False

    @property
    def participant(self) -> Participant:
        return self.worker.participant

    # ------------------------------------------------------------------ up to being a member

    def build(self) -> None:
        """The script runs to its first operation."""
        self._stage("building")
        self.worker.later(self.worker.world.random.uniform(*self.worker.world.script.build_s), self._built)

    def _built(self) -> None:
        self._stage("waiting")
        self.worker.perform(self.participant.prepare(self.worker.world.offer(self.worker)))
        self.advance()

    def fetch(self, generation: int, donors: tuple[tuple[str, str], ...]) -> None:
        """Ask one donor after the other until a state has come or the plan is overtaken."""
        self._fetching = generation
        self._ask(generation, donors, 0)

    def _ask(self, generation: int, donors: tuple[tuple[str, str], ...], at: int) -> None:
        worker = self.worker
        if self._fetching != generation or self.participant.abort > generation or not donors:
            return
        settled = False  # by an answer, or by going on to the next donor

        def next_donor() -> None:
            nonlocal settled
            if not settled:
                settled = True
                self._ask(generation, donors, at + 1)

        def done(kept: Kept | None) -> None:
            nonlocal settled
            if settled or self._fetching != generation:
                return
            if kept is None:
                worker.later(0.05, next_donor)
                return
            settled = True
            transfer_s = worker.world.random.uniform(*worker.world.script.transfer_s)
            worker.later(transfer_s, lambda: self._apply(generation, kept))

        worker.world.fabric.ask_state(worker, donors[at % len(donors)][1], generation, done)
        worker.later(DONOR_PATIENCE_S, next_donor)

    def _apply(self, generation: int, kept: Kept) -> None:
        if self._fetching != generation:
            return
        self._fetching = 0
        worker, (position, state, records) = self.worker, kept
        if self.participant.abort <= generation and self.participant.generation == 0:
            if not worker.world.script.enterable(position):
                raise Violation(f"{worker.name} takes the state before {position}, where none can stand")
            self.position, self.state = position, state
            worker.world.history.received(worker.name, position, state)
        worker.feed(ev.StateApplied(generation, position, records))

    # ------------------------------------------------------------------ donor

    def keep(self, generation: int) -> None:
        """The main thread takes a snapshot for `generation` as soon as it stands between two batches."""
        self._keeps[generation] = None

    def drop(self, generation: int) -> None:
        for number in [number for number in self._keeps if number <= generation]:
            del self._keeps[number]

    def asked(self, generation: int, answer: Callable[[Kept | None], None]) -> None:
        """A joiner asks: it is answered when the snapshot of that generation exists."""
        self._asked.append((generation, answer))
        self.advance()

    def _serve(self) -> None:
        if self.position != self.participant.position:
            return
        for generation, kept in self._keeps.items():
            if kept is None:
                self._keeps[generation] = (self.position, self.state, self.participant.unrecorded())
        waiting, self._asked = self._asked, []
        for generation, answer in waiting:
            kept = self._keeps.get(generation)
            if kept is not None:
                answer(kept)
            elif generation < max(
                self.participant.generation, self.participant.formed, self.participant.abort
            ):
                answer(None)
            else:
                self._asked.append((generation, answer))

    # ------------------------------------------------------------------ the loop

    def advance(self) -> None:
        """Go on as far as the participant lets the main thread."""
        if self._busy or not self.worker.alive or self.worker.frozen:
            return
        self._busy = True
        try:
            while self.worker.alive and self._one_more():
                pass
        finally:
            self._busy = False

    def _one_more(self) -> bool:
        """One thing; False when there is nothing to do but wait."""
        participant = self.participant
        if self._computing or self.stage in ("importing", "building"):
            return False
        if participant.generation == 0:
            if self.position < 0 and participant.position == 0:
                self.position = 0  # the first leader's own state
            return False
        if self.position < 0:
            self.position = participant.position
        if participant.position > self.position:
            self._take_sum()
            return True
        self._serve()
        if participant.hand.opened and participant.position == self.position:
            return self._operation()
        return self._boundary()

    def _take_sum(self) -> None:
        """The operation is history: its sum becomes state (this is where the optimizer steps)."""
        worker, world, done = self.worker, self.worker.world, self.sum
        assert done is not None
        assert done.operation == self.position
        self.state = next_state(self.state, done.operation, done.parts)
        self.position += 1
        self.done, self.sum = set(), None
        world.history.committed(worker.name, done.operation, done.generation, done.parts, self.state)
        world.note(worker.label, f"commits {done.operation} of generation {done.generation}")
        self._progress()
        table = json.dumps(done.parts).encode()
        step = world.script.step_of(done.operation)
        worker.perform(self.participant.record(msg.Committed(
            operation=done.operation, generation=done.generation, kind="step" if step >= 0 else "gather",
            loop=0, epoch=0, step=step, table=table, metrics="{}", wall_s=world.agenda.wall_s(),
        )))  # fmt: skip

    def _boundary(self) -> bool:
        worker, script = self.worker, self.worker.world.script
        participant = self.participant
        ended = self.position >= script.operations
        before = participant.generation
        enterable = script.enterable(self.position) and (not ended or script.last_boundary)
        actions = participant.boundary(enterable)
        worker.perform(actions)
        if actions:
            what = (
                f"switches to {participant.generation}" if participant.generation != before else "is drained"
            )
            worker.world.note(worker.label, f"{what} at the boundary before {self.position}")
            return True
        if ended:
            if participant.ended is None and not participant.drained_by:
                self._stage("ended")
                worker.world.note(worker.label, "ends its script")
                worker.perform(participant.step(ev.ScriptEnded("{}"), worker.world.agenda.now_s()))
                return True
            return False
        if not participant.may_open(worker.world.agenda.now_s()):
            self._stage("waiting")
            return False
        worker.perform(
            participant.step(
                ev.OperationOpened(self.position, script.shards_of(self.position)),
                worker.world.agenda.now_s(),
            )
        )
        return True

    def _operation(self) -> bool:
        participant, worker = self.participant, self.worker
        todo = participant.todo()
        if todo:
            if not participant.begin(todo[:1]):
                self._stage("waiting")
                return False
            worker.world.note(worker.label, f"begins shard {todo[0]} of {self.position}", detail=True)
            self._stage("compute")
            self._computing = True
            shard = todo[0]
            worker.later(worker.world.compute_s(worker), lambda: self._computed(shard))
            return False
        self._stage("waiting")
        return self._reduce()

    def _computed(self, shard: int) -> None:
        self._computing = False
        self.done.add(shard)
        self._progress()
        self.advance()

    # ------------------------------------------------------------------ the communication thread

    def waits_for(self) -> list[int]:
        """Ranks this worker's communication thread waits for."""
        links = self.worker.links
        if links is None or links.abandoned or not links.formed:
            return [] if links is None or links.abandoned else links.missing_hellos()
        at = (self.position, 0)
        if (links.generation, self.position) not in self.given:
            return []
        return links.missing(at, self.participant.hand.whole)

    def _reduce(self) -> bool:
        participant, worker, links = self.participant, self.worker, self.worker.links
        if links is None or links.generation != participant.generation or links.abandoned:
            return False
        fabric, at = worker.world.fabric, (self.position, 0)
        if not links.formed:
            fabric.report_broken(worker, links, links.missing_hellos(), "rendezvous")
            return False
        if (links.generation, self.position) not in self.given:
            if participant.stopped:
                return False
            self.given.add((links.generation, self.position))
            mine = tuple(sorted(self.done))
            worker.world.history.contributed(worker.name, self.position, links.generation, self.state)
            worker.world.note(
                worker.label, f"gives {numbers(mine)} to {self.position} of {links.generation}", detail=True
            )
            fabric.give(worker, links, at, Contribution(mine, self.state))
        if links.missing(at, mine_is_whole=False):
            fabric.report_broken(worker, links, links.missing(at, False), "reduce")
            return False
        if not participant.hand.whole:
            self._whole(at)
            return participant.hand.whole
        if links.missing(at, mine_is_whole=True):
            fabric.report_broken(worker, links, links.missing(at, True), "ready")
            return False
        lowest = min(links.ready[at].values())
        return participant.commit(self.position, links.generation, lowest)

    def _whole(self, at: Round) -> None:
        participant, worker, links = self.participant, self.worker, self.worker.links
        assert links is not None
        word = participant.whole(self.position, links.generation)
        if word is None:
            return
        gave = links.gave[at]
        names = worker.world.names(links.members)
        parts = tuple((names[rank], gave[rank].shards) for rank in range(links.world_size))
        self.sum = Sum(self.position, links.generation, parts)
        worker.world.note(
            worker.label, f"is whole for {self.position} of {links.generation}, holds {word}", detail=True
        )
        worker.world.fabric.say_ready(worker, links, at, word)

    # ------------------------------------------------------------------ what heartbeats tell

    def _stage(self, stage: str) -> None:
        if stage == self.stage:
            return
        self.stage = stage
        seen = self.participant.activity
        seen.phase = {"importing": "starting", "building": "starting"}.get(stage, stage)
        seen.where = f"train.py:{max(0, self.position)}"
        self._progress()

    def _progress(self) -> None:
        seen = self.participant.activity
        seen.progress += 1
        seen.since_s = self.worker.world.agenda.now_s()
