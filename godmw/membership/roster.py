"""Who the coordinator knows: workers, agents, and the evidence about their lives.

Plain records and small questions about them; every change of a worker's state goes through its ``Track``.
``failure_detector`` judges the evidence, ``change`` and ``ending`` act on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from godmw.membership.failure_detector import BeatGap
from godmw.membership.states import GONE, WORKER_EDGES, Track, WorkerState
from godmw.protocol import messages as msg

Key = tuple[str, int]  # (worker id, incarnation): a restarted worker inherits nothing


@dataclasses.dataclass(slots=True)
class Worker:
    """One incarnation of one worker."""

    id: str
    incarnation: int
    agent: str = ""
    slot: int = -1
    host: str = ""
    pid: int = 0
    peer: str = ""
    address: str = ""
    track: Track[WorkerState] = dataclasses.field(init=False)
    launched_s: float = 0.0
    joined: bool = False  # has said Join to this term
    prepared: msg.Prepared | None = None
    generation: int = 0
    position: int = -1
    abort: int = 0
    ended: bool = False
    digest: bytes = b""  # of its final state
    confirmed: bool = False
    draining: bool = False
    exited: bool = False  # its agent saw the end of its process
    certain: bool = False  # its death was seen, not inferred from silence
    told_out: str = ""  # the connection on which it was told that it is out
    excused: bool = False  # its exit was asked for: not counted against the budget
    failure: msg.Failed | None = None
    failed_s: float = math.inf  # when it said its last words
    beat: msg.Heartbeat | None = None
    gap: BeatGap = dataclasses.field(default_factory=BeatGap)
    process: str = ""
    stopped_since_s: float | None = None
    named_s: float = -1e9
    named_for: str = ""

    def __post_init__(self) -> None:
        self.track = Track(f"{self.id}#{self.incarnation}", WorkerState.JOINING, WORKER_EDGES)

    @property
    def key(self) -> Key:
        return (self.id, self.incarnation)

    @property
    def state(self) -> WorkerState:
        return self.track.state

    @property
    def gone(self) -> bool:
        return self.state in GONE


@dataclasses.dataclass(slots=True)
class Agent:
    """One agent: the supervisor of one host's worker processes."""

    id: str
    host: str = ""
    pid: int = 0
    peer: str = ""
    slots: list[str] = dataclasses.field(default_factory=list)  # worker ids
    gap: BeatGap = dataclasses.field(default_factory=BeatGap)
    lost: bool = False
    lost_s: float = 0.0
    took: int = 0  # by how much its loss has lowered the target


class Roster:
    """All workers by key, all agents by id, and which connection belongs to whom."""

    def __init__(self) -> None:
        self.workers: dict[Key, Worker] = {}
        self.latest: dict[str, int] = {}
        self.agents: dict[str, Agent] = {}
        self.peers: dict[str, Key | str] = {}  # connection -> worker key or agent id
        self.next_worker = 0
        self.next_agent = 0

    def add(self, worker: Worker) -> Worker:
        self.workers[worker.key] = worker
        self.latest[worker.id] = max(worker.incarnation, self.latest.get(worker.id, 0))
        self.next_worker = max(self.next_worker, _serial(worker.id) + 1)
        return worker

    def new_worker_id(self) -> str:
        self.next_worker += 1
        return f"w{self.next_worker - 1}"

    def new_agent_id(self) -> str:
        self.next_agent += 1
        return f"a{self.next_agent - 1}"

    def current(self, worker_id: str) -> Worker | None:
        """The newest incarnation of a worker id."""
        return self.workers.get((worker_id, self.latest.get(worker_id, 0)))

    def by_hand(self, host: str, pid: int, address: str) -> Worker | None:
        """The living worker without an agent that is this process."""
        place = (host, pid, address)
        alive = (worker for worker in self.alive() if worker.joined and not worker.agent)
        return next((w for w in alive if (w.host, w.pid, w.address) == place), None)

    def of_peer(self, peer: str) -> Worker | None:
        key = self.peers.get(peer)
        return self.workers.get(key) if isinstance(key, tuple) else None

    def agent_of_peer(self, peer: str) -> Agent | None:
        key = self.peers.get(peer)
        return self.agents.get(key) if isinstance(key, str) else None

    def bind(self, peer: str, owner: Key | str) -> None:
        """From now on ``peer`` is the owner's one connection; an older one is forgotten."""
        for old in [name for name, key in self.peers.items() if key == owner and name != peer]:
            del self.peers[old]
        self.peers[peer] = owner

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if not worker.gone]

    def get(self, keys: Iterable[Key]) -> list[Worker]:
        return [self.workers[key] for key in keys if key in self.workers]

    def forget(self, keep: set[Key]) -> None:
        """Drop the gone ones that nothing refers to: memory is bounded by members, not by history.

        Ids are given once and in order, so an id below the next that nobody remembers is out (`retired`).
        """
        gone = [worker for worker in self.workers.values() if worker.gone and worker.key not in keep]
        if not gone:
            return
        slots = {worker_id for agent in self.agents.values() for worker_id in agent.slots}
        for worker in gone:
            if self.latest.get(worker.id) != worker.incarnation:
                del self.workers[worker.key]
            elif worker.id not in slots and _serial(worker.id) >= 0 and not self._heard_of(worker):
                del self.workers[worker.key], self.latest[worker.id]

    def _heard_of(self, worker: Worker) -> bool:
        """May it still speak, or its agent of it?"""
        agent = self.agents.get(worker.agent)
        return bool(worker.peer) or (agent is not None and not agent.lost and not worker.exited)

    def retired(self, worker_id: str, incarnation: int) -> bool:
        """Is this one that was in the job and is not any more?"""
        if worker_id in self.latest:
            return incarnation <= self.latest[worker_id]
        return 0 <= _serial(worker_id) < self.next_worker


def _serial(worker_id: str) -> int:
    """The number in an id that the master gave, -1 for other names."""
    return int(worker_id[1:]) if worker_id[:1] == "w" and worker_id[1:].isdigit() else -1
