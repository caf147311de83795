"""Digits, with every micro-batch written down before its backward, and the weights at the end.

While workers are missing a step takes longer, so that replacements come in before the next fault.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import nets
import torch.nn.functional as F
from safetensors.torch import save_file

import godmw
from godmw.testing import faults


def main() -> None:
    parser = nets.arguments()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--slow", type=float, default=0.15)
    parser.add_argument("--logs", type=Path, required=True)
    args = parser.parse_args()

    model = nets.build(args.net)
    optimizer = nets.optimizer_of(args.optimizer, model)
    args.logs.mkdir(exist_ok=True)
    with (args.logs / f"{os.getpid()}.jsonl").open("a", buffering=1) as log:
        job = godmw.join(model, optimizer)
        faults.install(job, faults.table(args.faults), args.fault_log)
        for step in job.steps(nets.digits(), batch_size=args.batch, steps=args.steps):
            for x, y, indices in step:
                line = {"step": step.index, "rank": job._engine.control.rank, "indices": indices.tolist()}
                log.write(json.dumps(line) + "\n")
                time.sleep(args.pace if job.world_size >= args.workers else args.slow)
                step.backward(F.cross_entropy(model(x), y))
            optimizer.step()
    if job.is_leader:
        save_file(model.state_dict(), args.logs / "weights.safetensors")


if __name__ == "__main__":
    main()
