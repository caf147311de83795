"""A script written for DistributedDataParallel: a manager in place of the wrapping and the loop."""

import argparse
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from godmw import DistributedTrainingManager

SAMPLES = 1000


class Paced(nn.Module):
    """A two-layer net that takes its time until a file is there, so that a test can do things to it."""

    def __init__(self, pace_s: float, until: str) -> None:
        super().__init__()
        self.pace_s, self.until = pace_s, until
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.until and not os.path.exists(self.until):
            time.sleep(self.pace_s)
        return self.net(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pace", type=float, default=0.2)
    parser.add_argument("--until", default="")
    args = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    torch.manual_seed(rank)  # every process starts with other weights: the leader's count
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 10, generator=generator)
    dataset = TensorDataset(x, (x[:, 0] > 0).long())
    model = Paced(args.pace, args.until)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    manager = DistributedTrainingManager("gloo", "env://", world_size=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
    result = manager.train(model, loader, optimizer, nn.CrossEntropyLoss(), epochs=args.epochs)
    losses = ",".join(f"{loss!r}" for loss in result.losses)
    # one write: the ranks share their output
    sys.stdout.write(f"result {result.steps} {result.samples} {losses}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
