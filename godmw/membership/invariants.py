"""What must always hold, whoever dies: one history, each shard once, equal states, nothing said before it
is journalled.

Watchers that are told what happened, by the simulator or by a test, and raise ``Violation`` the moment it
contradicts what happened before; each call costs what the event touched, ``check`` goes over everything.
They count workers that live, died or were evicted alike: what anybody committed is history.  They know no
machine and no message but the few that a master must journal first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from godmw.membership import records as rec
from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked

Parts = tuple[tuple[str, tuple[int, ...]], ...]  # (member, its shards), in rank order


class Violation(AssertionError):
    """A promise is broken; the text says which, by whom and what stood against it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """What one operation was: the sum of whose shards, in which generation, and the state it made."""

    operation: int
    generation: int
    parts: Parts
    state: str


class History:
    """One history over everybody that ever lived.  ``shards_of(operation)`` is S, known apart from the
    machines.
    """

    def __init__(self, shards_of: Callable[[int], int]) -> None:
        self._shards_of = shards_of
        self.commits: list[Commit] = []
        self.position: dict[str, int] = {}  # process -> committed operations, once it has state
        self._given: dict[
            tuple[int, int], tuple[str, str]
        ] = {}  # (operation, generation) -> (state, first giver)

    def received(self, worker: str, position: int, state: str) -> None:
        """`worker` took over the state of the boundary before `position` from a donor."""
        known = position <= len(self.commits)
        expected = self.commits[position - 1].state if known and position else None
        if not known or expected not in (None, state):
            raise Violation(f"{worker} received state {state} for {position}, history has {expected}")
        self.position[worker] = position

    def contributed(self, worker: str, operation: int, generation: int, state: str) -> None:
        """`worker` put its shards of `operation` into the sum of `generation`, computed with `state`."""
        first, giver = self._given.setdefault((operation, generation), (state, worker))
        if state != first:
            raise Violation(
                f"{worker} contributes to operation {operation} of generation {generation} "
                f"with state {state}, {giver} with {first}"
            )
        if 0 < operation <= len(self.commits) and self.commits[operation - 1].state != state:
            raise Violation(
                f"{worker} contributes to operation {operation} with a state that is not history's"
            )

    def committed(self, worker: str, operation: int, generation: int, parts: Parts, state: str) -> None:
        """`worker` holds `operation` for committed, as the sum of `parts`, and has `state` after it."""
        expected = self.position.setdefault(worker, operation)
        if operation != expected:
            raise Violation(f"{worker} commits operation {operation}, its next one is {expected}")
        self.position[worker] = operation + 1
        commit = Commit(operation, generation, parts, state)
        if operation < len(self.commits):
            if commit != self.commits[operation]:
                raise Violation(
                    f"two histories: {worker} has {commit}, others have {self.commits[operation]}"
                )
            return
        if operation > len(self.commits):
            raise Violation(f"{worker} commits operation {operation}, history ends at {len(self.commits)}")
        if self.commits and generation < self.commits[-1].generation:
            raise Violation(
                f"operation {operation} is of generation {generation}, older than the one before it"
            )
        self._check_shards(commit)
        self.commits.append(commit)

    def _check_shards(self, commit: Commit) -> None:
        summed = sorted(shard for _, shards in commit.parts for shard in shards)
        wanted = list(range(self._shards_of(commit.operation)))
        if summed != wanted:
            raise Violation(
                f"operation {commit.operation} of generation {commit.generation} is the sum of shards "
                f"{summed}, not of {wanted}: {commit.parts}"
            )

    def abandon(self, generation: int, alive: Callable[[str], bool]) -> None:
        """The master says that all members of `generation` have died and were not heard: what they alone had
        committed in it is not history.  Raises Violation when one of them lives.
        """
        kept = [commit for commit in self.commits if commit.generation < generation]
        for worker, position in self.position.items():
            if position > len(kept):
                if alive(worker):
                    raise Violation(
                        f"{worker} lives and stands at {position}, in abandoned generation {generation}"
                    )
                self.position[worker] = len(kept)
        self.commits = kept
        self._given = {key: given for key, given in self._given.items() if key[1] < generation}

    def check(self) -> None:
        """Everything again, from the beginning."""
        generation = 0
        for number, commit in enumerate(self.commits):
            if commit.operation != number or commit.generation < generation:
                raise Violation(f"history is out of order at {number}: {commit}")
            generation = commit.generation
            self._check_shards(commit)
        for worker, position in self.position.items():
            if position > len(self.commits):
                raise Violation(f"{worker} stands at {position}, history ends at {len(self.commits)}")


class Said:
    """What a master, over all its terms, may say: nothing before it is journalled, no number twice."""

    def __init__(self) -> None:
        self.top = 0
        self.term = 0
        self._aborts: set[int] = set()
        self._plans: dict[int, rec.PlanMade] = {}
        self._formed: set[int] = set()
        self._ended = False

    def journalled(self, record: rec.JournalRecord) -> None:
        """A record is durable."""
        match record:
            case rec.TermBegan(term=term):
                if term <= self.term:
                    raise Violation(f"term {term} after term {self.term}")
                self.term = term
            case rec.AbortMade(number=number):
                self._number(number)
                self._aborts.add(number)
            case rec.PlanMade(number=number):
                self._number(number)
                self._plans[number] = record
            case rec.GenerationWas(number=number):
                if number not in self._plans:
                    raise Violation(f"generation {number} has formed without a plan")
                self._formed.add(number)
            case rec.FinishMade():
                self._ended = True

    def _number(self, number: int) -> None:
        if number <= self.top:
            raise Violation(f"number {number} was given again, or late: {self.top} was given before")
        self.top = number

    def sent(self, message: Checked) -> None:
        """The master says this to somebody."""
        match message:
            case msg.Abort(number=number) if number not in self._aborts:
                raise Violation(f"Abort {number} was sent and not journalled")
            case msg.Plan(number=number):
                self._check_plan(number, message)
            case msg.GenerationFormed(number=number) if number not in self._formed:
                raise Violation(f"GenerationFormed {number} was sent and not journalled")
            case msg.Finish(outcome=outcome) if outcome != "finished" and not self._ended:
                raise Violation(f"Finish ({outcome}) was sent and not journalled")

    def _check_plan(self, number: int, message: msg.Plan) -> None:
        record = self._plans.get(number)
        if record is None:
            raise Violation(f"Plan {number} was sent and not journalled")
        members = tuple((m.worker, m.incarnation, m.address) for m in message.members)
        if (members, message.planned, message.start) != (record.members, record.planned, record.start):
            raise Violation(f"Plan {number} was sent otherwise than journalled: {message} / {record}")

    def written(self, operation: int, expected: int) -> None:
        """The ledger gets `operation`; its next one is `expected`."""
        if operation != expected:
            raise Violation(f"the ledger gets operation {operation}, its next one is {expected}")


def check_wait(worker: str, waited_s: float, silence_s: float, limit_s: float) -> None:
    """Nobody waits unnamed: a wait longer than `limit_s` and, for as long, no word about it to anybody."""
    if min(waited_s, silence_s) > limit_s:
        raise Violation(
            f"{worker} has waited for {waited_s:.1f} s, and nobody has been told why for {silence_s:.1f} s"
        )
