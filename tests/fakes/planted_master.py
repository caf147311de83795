"""Readings of the law that break it, planted in the coordinator: each is the sentence read otherwise.

One function a reading, patching the function where the sentence lives.  Which story each spoils, and how, is
the table of ``tests/membership/test_planted_bugs.py``.
"""

import dataclasses
from typing import Any

import pytest

from godmw.membership import change, ending, hearing, rounds, selfportrait
from godmw.membership import records as rec
from godmw.membership.jobstate import Hearing, JobState, Round
from godmw.membership.participant import Participant
from godmw.protocol import messages as msg

Patch = pytest.MonkeyPatch
Survivors = dict[Any, msg.Stopped]


def move(patch: Patch) -> None:
    """A plan may give an assigned but unbegun shard of a live member to another."""
    make = rounds._make_unplanned

    def forgets(job: JobState, current: Round, survivors: Survivors, joiners: list[Any]) -> None:
        only_begun = {key: dataclasses.replace(answer, assigned=()) for key, answer in survivors.items()}
        make(job, current, only_begun, joiners)

    patch.setattr(rounds, "_make_unplanned", forgets)


def previous_formed(patch: Patch) -> None:
    """An answer of the generation in force is enough, whatever was announced after it."""

    def may_decide(job: JobState, current: Round, stateful: Survivors) -> str:
        return "" if set(stateful) & set(job.member_keys(job.chain()[0])) else "nobody"

    patch.setattr(rounds, "_may_decide", may_decide)


def abort_to_current(patch: Patch) -> None:
    """Abort goes to the generation in force only, not to pending joiners."""
    begin = rounds.begin_round

    def begin_round(job: JobState, reason: str) -> None:
        pending, job.pending = job.pending, None
        begin(job, reason)
        job.pending = pending

    patch.setattr(rounds, "begin_round", begin_round)


def survivors_all(patch: Patch) -> None:
    """A joiner without state counts as a survivor that is not whole."""
    make = rounds._make_unplanned

    def all_count(job: JobState, current: Round, survivors: Survivors, joiners: list[Any]) -> None:
        if any(answer.generation == 0 for answer in current.answers.values()):
            survivors = {key: dataclasses.replace(answer, whole=False) for key, answer in survivors.items()}
        make(job, current, survivors, joiners)

    patch.setattr(rounds, "_make_unplanned", all_count)


def drainers_go(patch: Patch) -> None:
    """An unplanned plan leaves out a member that is draining, though it answered."""
    make = rounds._make_unplanned

    def without(job: JobState, current: Round, survivors: Survivors, joiners: list[Any]) -> None:
        stay = {key: answer for key, answer in survivors.items() if not job.roster.workers[key].draining}
        make(job, current, stay or survivors, joiners)

    patch.setattr(rounds, "_make_unplanned", without)


def lag_counts(patch: Patch) -> None:
    """A drained worker that has not heard of the commit takes part in the verdict."""
    member_keys = JobState.member_keys
    decide = rounds.decide

    def everybody(job: JobState) -> bool:
        current = job.round
        keys = list(current.answers) if current is not None else []

        def wide(plan: rec.PlanMade) -> list[Any]:
            return sorted({*member_keys(job, plan), *keys})

        job.member_keys = wide  # type: ignore[method-assign]
        try:
            return decide(job)
        finally:
            del job.member_keys

    patch.setattr(rounds, "decide", everybody)


def overlap(patch: Patch) -> None:
    """A planned change is announced while another is pending: over the members of that one."""
    plan_change = change.plan_change

    def another(job: JobState) -> None:
        first, current = job.pending, job.current
        if first is None or not first.told or job.round or job.hearing or job.finish:
            plan_change(job)
            return
        job.pending, job.current = None, first.plan.number
        plan_change(job)
        job.current, job.pending = current, job.pending or first

    patch.setattr(change, "plan_change", another)


def joiner_not_first(patch: Patch) -> None:
    """A planned change goes to members and joiners at once."""
    announce = change.announce

    def at_once(job: JobState, plan: rec.PlanMade) -> None:
        announce(job, plan)
        if job.pending is not None:
            job.pending.holds = set(job.pending.joiners)
            change._tell_members(job)

    patch.setattr(change, "announce", at_once)


# ---------------------------------------------------------------- a restarted master


def unjournalled_abort(patch: Patch) -> None:
    """The number of an Abort is not journalled."""
    record = JobState.record

    def skips(self: JobState, item: rec.JournalRecord) -> None:
        if not isinstance(item, rec.AbortMade):
            record(self, item)

    patch.setattr(JobState, "record", skips)


def report_generation(patch: Patch) -> None:
    """A registration tells the generation in force, not the Abort answered; the journal's Aborts are not
    counted.
    """
    told = Participant._join
    restore = hearing.restore

    def join(self: Participant) -> msg.Join:
        return dataclasses.replace(told(self), abort=min(self.abort, self.generation))

    def forgets(job: JobState, records: Any) -> None:
        restore(job, records)
        job.last_abort = 0

    patch.setattr(Participant, "_join", join)
    patch.setattr(hearing, "restore", forgets)


def no_round(patch: Patch) -> None:
    """A restarted master decides on the registrations, with no Abort round: what each was at that moment."""
    join = Participant._join
    told: dict[Any, msg.Stopped] = {}

    def tells(self: Participant) -> msg.Join:
        told[self.worker, self.incarnation] = selfportrait.answer(
            0, self.generation, self.hand, tuple(sorted(self.held)), self.ended is not None
        )
        return join(self)

    def ask(job: JobState) -> None:
        number = job.number()
        job.record(rec.AbortMade(number))
        here = [w.key for w in job.roster.get(job.chain_keys()) if w.key in told and not w.gone]
        answers = {key: dataclasses.replace(told[key], abort=number) for key in here}
        job.round = Round(number, "the reports are answers", set(here), answers)

    patch.setattr(Participant, "_join", tells)
    patch.setattr(hearing, "_ask", ask)


def base_of_reports(patch: Patch) -> None:
    """A restarted master builds on the highest generation reported, whatever the journal says of who is out
    and what was announced.
    """
    rebase, settle = hearing._rebase, hearing.settle

    def everything(job: JobState, formed: int) -> None:
        rebase(job, formed)
        job.plans = dict(job.past)

    def by_reports(job: JobState) -> None:
        heard = job.hearing
        if heard is not None and heard.registered and job.now_s >= heard.until_s:
            highest = max(join.generation for join in heard.registered.values())
            job.current, job.plans, job.resend = highest, {highest: job.past[highest]}, None
        settle(job)

    patch.setattr(hearing, "_rebase", everything)
    patch.setattr(hearing, "_gone", lambda job, item: None)
    patch.setattr(hearing, "settle", by_reports)


def members_heard(patch: Patch) -> None:
    """A generation is adopted on the word of its members, whatever became of the joiners of a plan announced
    after it.
    """
    adoptable = hearing._adoptable

    def members(job: JobState, heard: Hearing) -> bool:
        plans = job.plans
        highest = max((join.generation for join in heard.registered.values()), default=0)
        job.plans = {number: plan for number, plan in plans.items() if number <= highest}
        try:
            return adoptable(job, heard)
        finally:
            job.plans = plans

    patch.setattr(hearing, "_adoptable", members)


def no_resend(patch: Patch) -> None:
    """A restarted master drops a journalled planned change and numbers a new one."""
    adopt = hearing._adopt

    def drops(job: JobState, heard: Hearing) -> None:
        job.resend = None
        adopt(job, heard)

    patch.setattr(hearing, "_adopt", drops)


# ---------------------------------------------------------------- the end


def finish_not_served(patch: Patch) -> None:
    """A master restarted on a job whose end is journalled is over at once."""
    settle = hearing.settle

    def over(job: JobState) -> None:
        if job.finish is not None:
            job.hearing = None
        settle(job)

    patch.setattr(hearing, "settle", over)


def finish_by_newest(patch: Patch) -> None:
    """The script of every member of the announced generation must have ended, the joiner's too."""
    try_finish = ending.try_finish

    def newest(job: JobState) -> bool:
        pending = job.pending
        keys = job.member_keys(pending.plan) if pending is not None else []
        return all(worker.ended for worker in job.roster.get(keys)) and try_finish(job)

    patch.setattr(ending, "try_finish", newest)


def finish_members_only(patch: Patch) -> None:
    """Finish is sent to the members alone."""
    tell = JobState.tell

    def members(self: JobState, worker: Any, message: Any) -> None:
        if not isinstance(message, msg.Finish) or worker.key in self.current_keys():
            tell(self, worker, message)

    patch.setattr(JobState, "tell", members)
