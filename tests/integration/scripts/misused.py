"""A small job in which one thing is wrong, or in which this worker brings something else than the others."""

import argparse
import sys

import torch
from light import light

import godmw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--reverse", action="store_true", help="the same samples in another order")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--nan", type=int, default=-1, help="the step whose loss is not a number")
    parser.add_argument("--typo", type=int, default=-1, help="the step with a name that does not exist")
    parser.add_argument("--leave", type=int, default=-1, help="the step after which the script exits with 0")
    args = parser.parse_args()

    light()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.arange(args.samples * 4, dtype=torch.float32).reshape(-1, 4) / 1000
    data = torch.utils.data.TensorDataset(x.flip(0) if args.reverse else x)
    job = godmw.join(model, optimizer)
    for step in job.steps(data, batch_size=args.batch, steps=args.steps):
        for (bx,) in step:
            if step.index == args.typo:
                undefined_name  # noqa: B018, F821
            loss = model(bx).square().mean()
            step.backward(loss * float("nan") if step.index == args.nan else loss)
        optimizer.step()
        if step.index == args.leave:
            sys.exit(0)


if __name__ == "__main__":
    main()
