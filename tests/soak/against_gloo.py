"""The ring against gloo's own allreduce of the same bytes, in turns: milliseconds of the slowest rank.

python tests/soak/against_gloo.py [--ranks N] [--rounds N] [MIB ...]

One JSON line a size: the medians of both sides and of the rounds' ratios (below 1: godmw is faster). One
thread a process, the sum is checked, and nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))
from godmw.collectives.packing import Results
from godmw.collectives.process_group import GlooTransport
from godmw.collectives.ring import Ring

WARM_UP = 3
MOVED_MIB = 200  # by one side in one round of one size


def slowest_ms(run: Callable[[], None], times: int) -> float:
    """The median over `times` runs of the time that the slowest rank took."""
    taken = []
    for _ in range(times):
        dist.barrier()
        begin = time.perf_counter()
        run()
        mine = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        taken.append(mine.item() * 1e3)
    return statistics.median(taken)


def rank_side(sizes: list[float], rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("ring", dist.distributed_c10d._get_default_store())
    transport = GlooTransport(store, rank, ranks, "127.0.0.1", 10.0)
    results = Results(transport.allocate)
    ring = Ring(transport, results)
    for mib in sizes:
        part, theirs = torch.full((int(mib * 2**18),), rank + 1.0), torch.zeros(int(mib * 2**18))
        out = results.of([[part]])[0]

        def ours(part: torch.Tensor = part, out: list[torch.Tensor] = out) -> None:
            ring.allreduce([part], out)

        def other(theirs: torch.Tensor = theirs) -> None:
            dist.all_reduce(theirs)

        times = max(4, min(200, int(MOVED_MIB / mib)))
        for run in (ours, other):
            slowest_ms(run, WARM_UP)
        pairs = [(slowest_ms(ours, times), slowest_ms(other, times)) for _ in range(rounds)]
        assert out[0].unique().tolist() == [ranks * (ranks + 1) / 2]
        mine_ms, their_ms = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        if rank == 0:
            row = {"mib": mib, "ranks": ranks, "ours_ms": mine_ms, "other_ms": their_ms, "ratio": ratio}
            sys.stdout.write(json.dumps({key: round(value, 3) for key, value in row.items()}) + "\n")
            sys.stdout.flush()
    dist.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mib", nargs="*", type=float, default=[0.25, 1.0, 2.1, 8.0, 25.0, 64.0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank_side(args.mib, args.rounds)
        return 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*torchrun, *sys.argv], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
