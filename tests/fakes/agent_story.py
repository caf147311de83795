"""A conversation with an agent's decisions, with a clock in the test's hand, and what is said in it."""

from typing import Any

from godmw.protocol import messages as msg
from godmw.protocol.fields import Checked
from godmw.protocol.wire import header_of
from godmw.worker.agent import supervision as sup
from godmw.worker.agent.facts import (
    Action,
    Connected,
    Event,
    Heard,
    Send,
    Start,
    Started,
    Tick,
)


class Story:
    """One agent with two slots; ``at`` is the time, ``did`` what the last event led to."""

    def __init__(self, *, owns_master: bool = False, connect_s: float = 20.0) -> None:
        self.at = 100.0
        self.machine = sup.Supervision(
            token="secret", host="here", pid=7, slots=2, where="m:1", owns_master=owns_master, now_s=self.at,
            connect_s=connect_s,
        )  # fmt: skip
        self.did: list[Action] = []
        self.term = 1

    def tell(self, event: Event, *, after_s: float = 0.0) -> list[Action]:
        self.at += after_s
        self.did = self.machine.step(event, self.at)
        return self.did

    def hear(self, message: Checked, *, job: str = "j", term: int | None = None) -> list[Action]:
        header = header_of(
            message, job=job, term=self.term if term is None else term, generation=0, sender="",
            incarnation=0,
            sequence=1,
        )  # fmt: skip
        return self.tell(Heard(header, message))

    def register(self) -> "Story":
        self.tell(Connected())
        self.hear(welcome())
        return self

    def launch(self, worker: str, incarnation: int = 1, slot: int = 0, pid: int = 50) -> None:
        start = Start(worker, incarnation, slot, 0, 2)
        assert self.hear(launch(worker, incarnation, slot)) == [start]
        self.tell(Started(worker, incarnation, pid))

    def wait(self, seconds: float) -> list[Action]:
        """Tick whenever it is due; all that was done meanwhile."""
        done, until = [], self.at + seconds
        for _ in range(10_000):
            due = self.machine.next_deadline()
            if due > until:
                break
            self.at = max(self.at, due)
            done += self.tell(Tick())
            if self.machine.over:
                return done
        else:
            raise AssertionError("next_deadline never moves on: the shell would spin")
        self.at = until
        return done + self.tell(Tick())


def welcome() -> msg.AgentWelcome:
    return msg.AgentWelcome(run_dir="/runs/x", lease_s=2.0, beat_s=0.25, orphan_s=30.0)


def launch(worker: str, incarnation: int = 1, slot: int = 0) -> msg.Launch:
    return msg.Launch(worker=worker, incarnation=incarnation, slot=slot, rank_hint=0, world_hint=2)


def child(worker: str, pid: int = 50, process: str = "R", incarnation: int = 1) -> msg.Child:
    return msg.Child(worker=worker, incarnation=incarnation, pid=pid, process=process)


def gone(
    worker: str, code: int = 0, signum: int = 0, words: str = "", incarnation: int = 1
) -> msg.ChildExited:
    return msg.ChildExited(
        worker=worker, incarnation=incarnation, code=code, signal=signum, last_words=words
    )


def finish(code: int = 0, outcome: str = "finished", reason: str = "done") -> msg.Finish:
    return msg.Finish(outcome=outcome, code=code, reason=reason)


def sent(actions: list[Action], kind: type[Any]) -> list[Any]:
    return [item.message for item in actions if isinstance(item, Send) and isinstance(item.message, kind)]


# ---------------------------------------------------------------- registering
