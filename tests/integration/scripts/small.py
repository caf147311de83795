"""A small net on made-up data: what the kill matrix trains.  Step compute well under 20 ms."""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from light import light

import godmw
from godmw.testing import faults


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--until", type=Path, help="stop all after the step at which this file is there")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a batch takes longer")
    parser.add_argument("--stand", type=int, default=-1, help="the step at which the leader stands for 15 s")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--width", type=int, default=512, help="from 512 there are two buckets")
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--faults", default="[]")
    parser.add_argument("--fault-log", type=Path)
    parser.add_argument("--net", choices=["mlp", "cnn"], default="mlp")
    args = parser.parse_args()

    light()
    torch.manual_seed(7)
    if args.net == "cnn":
        model = torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, 8, 8)),
            torch.nn.Conv2d(1, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Flatten(),
            torch.nn.Linear(512, 10),
        )
    else:
        model = torch.nn.Sequential(
            torch.nn.Linear(64, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, args.width),
            torch.nn.ReLU(), torch.nn.Linear(args.width, 10),
        )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(args.samples, 64, generator=generator)
    y = (x[:, :10]).argmax(1)
    data = torch.utils.data.TensorDataset(x, y)

    job = godmw.join(model, optimizer)
    faults.install(job, faults.table(args.faults), args.fault_log)
    for step in job.steps(data, batch_size=args.batch, steps=args.steps, num_workers=args.loaders):
        for bx, by in step:
            time.sleep(15.0 if step.index == args.stand and job.is_leader else args.pace)
            step.backward(F.cross_entropy(model(bx), by))
        optimizer.step()
        if args.until is not None and args.until.exists():
            job.stop("the file is there")


if __name__ == "__main__":
    main()
