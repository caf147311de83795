"""A training of any pace and size that writes down what it applies, and can be told to be long once.

`--hold KIND`: at step `--hold-step`, `gil` lets every worker but the leader sit in a C call that keeps the
GIL, `validate` lets the leader work between two steps.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import nets
import torch.nn.functional as F

import godmw
from godmw.testing import faults

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integration" / "scripts"))
from light import light


def validate(model: nets.nn.Module, data: nets.TensorDataset, for_s: float) -> None:
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        model(data[:100][0])
        time.sleep(0.01)


def main() -> None:
    parser = nets.arguments()
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--applied", type=Path, help="folder: a file a process, a line an applied step")
    parser.add_argument("--hold", choices=["gil", "validate"])
    parser.add_argument("--hold-step", type=int, default=50)
    parser.add_argument("--hold-for", type=float, default=30.0)
    args = parser.parse_args()

    light()
    model = nets.build(args.net)
    optimizer = nets.optimizer_of(args.optimizer, model)
    data = nets.made_up(args.samples)
    applied = None
    if args.applied is not None:
        args.applied.mkdir(exist_ok=True)
        applied = (args.applied / str(os.getpid())).open("a", buffering=1)

    job = godmw.join(model, optimizer)
    faults.install(job, faults.table(args.faults), args.fault_log)
    for step in job.steps(data, batch_size=args.batch, steps=args.steps, num_workers=args.loaders):
        here = args.hold is not None and step.index == args.hold_step
        for x, y, _ in step:
            if args.pace:
                time.sleep(args.pace)
            if here and args.hold == "gil" and job.world_size > 1 and not job.is_leader:
                ctypes.PyDLL(None).sleep(int(args.hold_for))
            step.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        if applied is not None:
            applied.write(f"{time.time()} {step.index}\n")
        if here and args.hold == "validate" and job.is_leader:
            validate(model, data, args.hold_for)
        if args.until is not None and args.until.exists():
            job.stop("the file is there")


if __name__ == "__main__":
    main()
