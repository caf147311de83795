"""How workers that torchrun started find each other: rank 0 starts a master, torchrun's store says where.

The master is a process of its own, bound to rank 0 (`worker/agent/bound_master.py`); its join address goes
to the other ranks through the TCPStore at MASTER_ADDR:MASTER_PORT. Who lives and who is started again is
torchrun's affair, and the master's leases are long enough to leave it that. Nothing here trains or reads the
environment; the caller hands it over.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from godmw.client.rundir import RunDir, default_path
from godmw.config import JoinAddress
from godmw.errors import Unreachable, UsageError
from godmw.frontends import door
from godmw.frontends.companion import Companion
from godmw.worker.agent import kin

NUMBER = "[0-9]{1,9}"
NEEDED = {"RANK": NUMBER, "WORLD_SIZE": NUMBER, "MASTER_ADDR": ".+", "MASTER_PORT": "[0-9]{1,5}"}
LEASE_S = 30  # torchrun sees deaths itself; a long call that holds the GIL is none
COME_S = 600.0  # for rank 0 to come to `train`
SAY_AFTER_S = 10.0
ASK_AGAIN_S = 0.05
STORE_S = 60.0  # for torchrun's store to take a connection
ANSWER_S = 30.0  # for the master that rank 0 has named to take a connection


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What torchrun told a process."""

    rank: int
    world_size: int
    local_world_size: int
    address: str
    port: int
    run_id: str
    attempt: int
    restarts: str
    agent_store: bool  # torchrun itself serves the store; otherwise rank 0 does

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Place:
        """Raises UsageError for an environment that torchrun did not make."""
        wrong = [name for name in NEEDED if not re.fullmatch(NEEDED[name], environment.get(name, ""))]
        if wrong:
            raise UsageError(
                f"{door.TORCHRUN} is set, but {', '.join(wrong)} is not as torchrun sets it",
                hint=f"torchrun --nproc-per-node 2 {door.script()}, or unset {door.TORCHRUN}",
            )
        return cls(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment.get("LOCAL_WORLD_SIZE") or 0),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            run_id=environment[door.TORCHRUN],
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0),
            restarts=environment.get("TORCHELASTIC_MAX_RESTARTS", "0"),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def one_host(self) -> bool:
        return self.local_world_size == self.world_size


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Where the job's master listens, and the run directory it writes on rank 0's host."""

    join: JoinAddress
    run_dir: str

    def format(self) -> str:
        return json.dumps({"join": self.join.format(), "run_dir": self.run_dir})

    @classmethod
    def parse(cls, text: str) -> Meeting:
        said = json.loads(text)
        return cls(JoinAddress.parse(said["join"]), said["run_dir"])


def meet(environment: Mapping[str, str]) -> Meeting:
    """Where to join: rank 0 starts the master and says so, the others wait for its word.

    Raises UsageError, Unreachable, or what kept the master from starting.
    """
    place = Place.read(environment)
    store = _store(place)
    key = f"godmw/{place.run_id}/{place.attempt}"
    if place.rank:
        return _wait_for_rank_0(store, key, place)
    meeting = _found_or_started(place, environment)
    store.set(key, meeting.format())
    _kept.append(store)  # rank 0 may be who serves it
    sys.stderr.write(start_line(place, meeting))
    return meeting


_kept: list[Any] = []


def start_line(place: Place, meeting: Meeting) -> str:
    """What rank 0 says before the first step."""
    workers = "1 worker" if place.world_size == 1 else f"{place.world_size} workers"
    again = "" if place.restarts == "0" else ", and torchrun starts them again from the first step"
    where = f"master at {meeting.join.endpoint}, run directory {meeting.run_dir}"
    rules = f"deaths follow torchrun's rules (--max-restarts {place.restarts}): one death ends all workers"
    other = f"`godmw run --workers {place.world_size} {door.script()}` goes on with the others"
    return f"godmw: {workers} under torchrun; {where}; {rules}{again}; {other}\n"


# ---- torchrun's store ----


def _store(place: Place) -> Any:
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.address,
            place.port,
            is_master=not place.agent_store and place.rank == 0,
            multi_tenant=not place.agent_store,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_S if place.agent_store else COME_S),
        )
    except RuntimeError as error:
        raise Unreachable(
            f"torchrun's store at MASTER_ADDR:MASTER_PORT {place.address}:{place.port} does not answer: "
            f"{_first_line(error)}",
            hint="did torchrun start this process? its MASTER_ADDR must be reachable from every host",
        ) from error


def _wait_for_rank_0(store: Any, key: str, place: Place) -> Meeting:
    """Ask until rank 0 has named a master that takes connections: one that is left from before does not."""
    begin_s = time.monotonic()
    named_s: float | None = None
    said = False
    while True:
        text = _asked(store, key)
        if text is not None and _answers(Meeting.parse(text).join):
            return Meeting.parse(text)
        waited_s = time.monotonic() - begin_s
        if text is not None:
            named_s = waited_s if named_s is None else named_s
        elif waited_s > SAY_AFTER_S and not said:
            said = True
            sys.stderr.write(f"godmw: rank {place.rank} waits for rank 0 to come to train()\n")
        if text is not None and named_s is not None and waited_s - named_s > ANSWER_S:
            raise Unreachable(
                f"rank {place.rank} cannot reach the master that rank 0 started at "
                f"{Meeting.parse(text).join.endpoint}",
                hint="GODMW_LISTEN=HOST:0 before torchrun says on which address of rank 0's host it listens",
            )
        if waited_s > COME_S:
            raise Unreachable(
                f"rank {place.rank} has waited {COME_S:.0f} s for rank 0 to come to train()",
                hint="every rank must call train(); see rank 0's output",
            )
        time.sleep(ASK_AGAIN_S)


def _asked(store: Any, key: str) -> str | None:
    """The value, None where there is none yet; Unreachable when the store has gone."""
    try:
        return str(store.get(key).decode()) if store.check([key]) else None
    except RuntimeError as error:
        raise Unreachable(f"torchrun's store has gone: {_first_line(error)}") from error


def _answers(join: JoinAddress) -> bool:
    try:
        socket.create_connection((join.host, join.port), 2.0).close()
    except OSError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


# ---- the master, started by rank 0 ----


def _found_or_started(place: Place, environment: Mapping[str, str]) -> Meeting:
    given = environment.get("GODMW_RUN_DIR")
    if given and (join := _standing(RunDir(given))) is not None:
        return Meeting(join, str(Path(given).absolute()))
    run_dir = _run_dir(given, place.attempt).absolute()
    listen = [] if "GODMW_LISTEN" in environment else ["--listen", _listen(place)]
    options = [*listen, "--min", str(place.world_size), "--lease", str(LEASE_S)]
    join = Companion(run_dir, options).start()
    return Meeting(dataclasses.replace(join, host=_dialled(join.host, place)), str(run_dir))


def _standing(run: RunDir) -> JoinAddress | None:
    """A master that somebody started by hand; one of an earlier attempt's is only about to end."""
    join, pid = run.living(), run.master_pid()
    marks = {entry.partition(b"=")[0] for entry in kin.environment(pid or 0)}
    return None if door.TORCHRUN.encode() in marks else join


def _run_dir(given: str | None, attempt: int) -> Path:
    """Each attempt of torchrun's is a job of its own: the last one's state died with its workers."""
    if given:
        return Path(f"{given}-restart{attempt}" if attempt else given)
    return default_path(door.script(), time.strftime("%Y%m%d-%H%M%S"))


def _listen(place: Place) -> str:
    return "127.0.0.1:0" if place.one_host else "0.0.0.0:0"


def _dialled(host: str, place: Place) -> str:
    """What the ranks of other hosts dial: the name that took them to torchrun's store, if it can be it."""
    if place.one_host:
        return host
    try:
        found = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)
    except OSError:
        return host
    return host if ipaddress.ip_address(str(found[0][4][0])).is_loopback else place.address
