"""What a worker process finds in its environment, and what of this machine it is given.

``worker_environment`` is a pure function of the agent's own environment and the launch; the rest reads
how many cores and devices there are.  A variable that the person set (``OMP_NUM_THREADS``) is left as it
is.  Nothing here knows the master or starts a process.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from godmw.config import JoinAddress

MARK = "GODMW_AGENT"  # carried by everything an agent starts: what its keeper looks for
LIFELINE = "GODMW_LIFELINE"  # a descriptor that ends when the agent does
# what is meant for the command that was typed, and not for what it starts
_FOR_THIS_PROCESS = {
    "GODMW_JSON",
    "GODMW_JOIN",
    "GODMW_LIFELINE",
    "GODMW_WORKER",
    "GODMW_INCARNATION",
    "GODMW_SLOT",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One launch in one slot of an agent."""

    worker: str
    incarnation: int
    slot: int
    slots: int
    rank: int
    world_size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What an agent divides among its slots: cores, and the devices' names for ``CUDA_VISIBLE_DEVICES``."""

    cores: int
    devices: tuple[str, ...] = ()


def worker_environment(
    base: Mapping[str, str],
    slot: Slot,
    *,
    agent: str,
    join: JoinAddress,
    run_dir: str,
    machine: Machine,
    threads: int | None,
) -> dict[str, str]:
    """The environment of one worker process.

    One device a worker; then LOCAL_RANK is 0, because scripts hand it to ``torch.cuda.set_device`` and
    only one is visible.  More workers than devices share them in turn.  RANK and WORLD_SIZE are a
    snapshot.
    """
    result = foreign(base)
    result.update(
        GODMW_JOIN=join.format(),
        GODMW_WORKER=slot.worker,
        GODMW_INCARNATION=str(slot.incarnation),
        GODMW_AGENT=agent,
        GODMW_RUN_DIR=run_dir,
        GODMW_SLOT=str(slot.slot),
        RANK=str(slot.rank),
        WORLD_SIZE=str(slot.world_size),
        LOCAL_RANK=str(slot.slot),
        LOCAL_WORLD_SIZE=str(slot.slots),
        MASTER_ADDR=join.host,
        MASTER_PORT=str(join.port),
    )
    result.setdefault("OMP_NUM_THREADS", str(max(1, machine.cores // max(1, slot.slots))))
    result.setdefault("PYTHONUNBUFFERED", "1")  # what a killed worker printed last is seen
    result.setdefault("PYTHONFAULTHANDLER", "1")
    for watchdog in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"):
        result.setdefault(watchdog, "0")  # torch's own would end the survivors of a death
    if threads is not None:
        result.update(GODMW_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    if machine.devices:
        device = machine.devices[slot.slot % len(machine.devices)]
        result.update(CUDA_VISIBLE_DEVICES=device, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    return result


def foreign(base: Mapping[str, str]) -> dict[str, str]:
    """An environment for something this process starts, without what speaks to this process alone."""
    return {name: value for name, value in base.items() if name not in _FOR_THIS_PROCESS}


def this_machine(base: Mapping[str, str]) -> Machine:
    """What this process may use: its affinity bounded by the quota of its control group; its devices."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores=max(1, min(affinity, quota())), devices=devices(base.get("CUDA_VISIBLE_DEVICES")))


def devices(visible: str | None, listed: Sequence[str] | None = None) -> tuple[str, ...]:
    """The devices to hand out: those of ``CUDA_VISIBLE_DEVICES`` where it is set, else all that are
    there.
    """
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return tuple(name for name in names if name and name != "-1")
    if listed is None:
        listed = [path.name for path in Path("/dev").glob("nvidia[0-9]*")]
    count = sum(1 for name in listed if re.fullmatch(r"nvidia[0-9]+", name))
    return tuple(str(index) for index in range(count))


def quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores the control group may use, rounded up; a large number where there is no limit."""
    limit = math.inf
    for line in _read(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        top = root if not controllers else root / "cpu"
        place = top / path.lstrip("/")
        for folder in [place, *place.parents]:
            limit = min(limit, _limit(folder))
            if folder == top:
                break
    return 1_000_000 if limit == math.inf else max(1, math.ceil(limit))


def memory_kills(counters: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has killed for want of memory since this machine started."""
    for line in _read(counters).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdigit():
            return int(count)
    return 0


def _limit(folder: Path) -> float:
    """Quota over period in one control group, of either version."""
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        return int(words[0]) / int(words[1]) if int(words[0]) > 0 else math.inf
    except ValueError:
        return math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
