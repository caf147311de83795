"""Two godmw workers against DDP + gloo on two ranks, or one against the bare loop: step times, in turns.

python tests/soak/against_ddp.py [--rounds N] [--steps N] [--ranks N] [MODEL ...]

One JSON line a model: median step of each side, and the median over rounds of their ratio (below 1:
godmw is faster). One thread a process. Both sides build the same model and batch; nothing else should
run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import step_models

SKIP = 5  # steps of warming up


def timed(times: list[float]) -> None:
    ordered = sorted(times[SKIP:])
    sys.stdout.write(json.dumps({"step_ms": ordered[len(ordered) // 2] * 1e3}) + "\n")


def ddp_side(name: str, steps: int, ranks: int) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = step_models.build(name)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = step_models.samples(name, step_models.BATCH[name])
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        step_models.loss_of(model, x, y).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if ranks == 1 or dist.get_rank() == 0:
        timed(times)
    if ranks > 1:
        dist.destroy_process_group()


def godmw_side(name: str, steps: int, ranks: int) -> None:
    import godmw

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = step_models.build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = step_models.BATCH[name] * ranks
    data = torch.utils.data.TensorDataset(*step_models.samples(name, batch))
    job = godmw.join(model, optimizer)
    times, before = [], time.perf_counter()
    for step in job.steps(data, batch_size=batch, steps=steps):
        for x, y in step:
            step.backward(step_models.loss_of(model, x, y))
        optimizer.step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    if job.is_leader:
        timed(times)


def run_side(side: str, name: str, steps: int, ranks: int) -> float:
    me = [__file__, "--side", side, "--steps", str(steps), "--ranks", str(ranks), name]
    with tempfile.TemporaryDirectory() as work:
        if ranks == 1:
            command = [sys.executable, *me]
        elif side == "ddp":
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *me]
        else:
            command = [
                sys.executable,
                "-m",
                "godmw",
                "run",
                "--workers",
                str(ranks),
                "--run-dir",
                f"{work}/run",
                *me,
            ]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return float(json.loads(line)["step_ms"])
    raise SystemExit(f"{side} {name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(step_models.NAMES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--side", choices=["ddp", "godmw"])
    args = parser.parse_args()
    if args.side:
        {"ddp": ddp_side, "godmw": godmw_side}[args.side](args.models[0], args.steps, args.ranks)
        return
    for name in args.models:
        rows = []
        for _ in range(args.rounds):
            rows.append(
                (
                    run_side("godmw", name, args.steps, args.ranks),
                    run_side("ddp", name, args.steps, args.ranks),
                )
            )
        ours, theirs = (statistics.median(side) for side in zip(*rows, strict=True))
        ratio = statistics.median(a / b for a, b in rows)
        other = "bare loop" if args.ranks == 1 else "ddp"
        row = {
            "model": name,
            "ranks": args.ranks,
            "other": other,
            "ours_ms": ours,
            "other_ms": theirs,
            "ratio": ratio,
        }
        sys.stdout.write(
            json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}) + "\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
