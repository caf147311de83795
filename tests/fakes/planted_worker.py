"""Readings of the law that break it, planted in the participant, and in the simulated main thread for what
that decides: when a snapshot is taken.

One function a reading, patching the function where the sentence lives.  Which story each spoils, and how, is
the table of ``tests/membership/test_planted_bugs.py``.
"""

from collections.abc import Callable
from typing import Any

import pytest

from godmw.membership import actions as act
from godmw.membership import participant
from godmw.membership.inhand import InHand
from godmw.membership.participant import Participant
from godmw.protocol import messages as msg
from godmw.simulate.engine import Engine
from tests.fakes import planted_master

Patch = pytest.MonkeyPatch


def late_ready(patch: Patch) -> None:
    """After an answered Abort the communication thread may still become whole and send its ready word."""
    on_abort = Participant._on_abort

    def whole(self: Participant, operation: int, generation: int) -> int | None:
        if generation != self.generation or operation != self.hand.position or self.hand.todo():
            return None
        self.hand.whole = True
        return max([*self.held, self.generation])

    def keeps_links(self: Participant, *args: Any) -> list[Any]:
        return [action for action in on_abort(self, *args) if not isinstance(action, act.Abandon)]

    patch.setattr(Participant, "whole", whole)
    patch.setattr(Participant, "_on_abort", keeps_links)
    patch.setitem(participant._HANDLERS, msg.Abort, keeps_links)


def obedient_move(patch: Patch) -> None:
    """A plan moves shards that a live member has not begun, and that member obeys: harmless by itself."""
    planted_master.move(patch)

    def give(self: InHand, shards: Any) -> None:
        self._given = None if shards is None else self.begun | frozenset(shards)
        self.whole = False

    patch.setattr(InHand, "give", give)


def begin_after_answer(patch: Patch) -> None:
    """A worker goes on beginning shards after its answer, which then is no longer true."""
    obedient_move(patch)

    def begin(self: Participant, shards: Any) -> bool:
        return self.hand.begin(shards, False)

    patch.setattr(Participant, "begin", begin)


def no_fence(patch: Patch) -> None:
    """A worker that has registered with a term still obeys the one before."""

    def received(self: Participant, header: msg.Header, message: Any, now_s: float) -> list[Any]:
        handler = participant._HANDLERS.get(type(message))
        return [] if handler is None else handler(self, header, message, now_s)

    patch.setattr(Participant, "_received", received)


def keep_last(patch: Patch) -> None:
    """A newer announced plan replaces the one a worker holds.  Only changes that overlap show it."""
    planted_master.overlap(patch)
    hold = Participant._hold

    def replaces(self: Participant, plan: msg.Plan) -> list[Any]:
        self.held.clear()
        return hold(self, plan)

    patch.setattr(Participant, "_hold", replaces)


def leave_at_boundary(patch: Patch) -> None:
    """A drained worker leaves at its boundary, without waiting until the new generation has formed."""
    boundary = Participant.boundary

    def leaves(self: Participant, enterable: bool) -> list[Any]:
        actions = boundary(self, enterable)
        return [*actions, _exit()] if actions and self.drained_by else actions

    patch.setattr(Participant, "boundary", leaves)


def leave_on_receipt(patch: Patch) -> None:
    """A drained worker leaves when it receives the plan that drains it."""
    hold = Participant._hold

    def leaves(self: Participant, plan: msg.Plan) -> list[Any]:
        actions = hold(self, plan)
        return [*actions, _exit()] if plan.planned and self._rank_in(plan) < 0 else actions

    patch.setattr(Participant, "_hold", leaves)


def _exit() -> act.Exit:
    return act.Exit(0, "drained at once", "")


def no_snapshot_at_the_end(patch: Patch) -> None:
    """No snapshot is taken once the donor's loop is over."""
    serve: Callable[[Engine], None] = Engine._serve

    def while_it_runs(self: Engine) -> None:
        if self.position < self.worker.world.script.operations:
            serve(self)

    patch.setattr(Engine, "_serve", while_it_runs)


def snapshot_on_request(patch: Patch) -> None:
    """The first member alone takes the snapshot, when it is asked, and only if it has not begun the step."""
    enter, asked = Participant._enter, Engine.asked

    def keeps_none(self: Participant, plan: msg.Plan) -> list[Any]:
        actions = enter(self, plan)  # the first generation has its leader's state in any case
        return [a for a in actions if not (plan.planned and isinstance(a, act.KeepSnapshot))]

    def takes_it(self: Engine, generation: int, answer: Any) -> None:
        if generation not in self._keeps and self.participant.rank == 0 and not self.participant.hand.begun:
            self.keep(generation)
        asked(self, generation, answer)

    patch.setattr(Participant, "_enter", keeps_none)
    patch.setattr(Engine, "asked", takes_it)
