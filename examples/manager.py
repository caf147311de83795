"""A script written for DistributedDataParallel, with another import: handwritten digits behind one call.

    python examples/manager.py                                  one worker
    godmw run --workers 3 examples/manager.py                   three, which may come and go
    torchrun --nproc-per-node 2 examples/manager.py             as before; deaths follow torchrun's rules

The batch of a step is 32 × world_size, however many workers there are at the moment.
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from godmw import DistributedTrainingManager

HELD_OUT = 360


def digits() -> tuple[TensorDataset, TensorDataset]:
    """(train, held out): pixels float32 [n, 64] in 0 … 1, labels int64 [n]."""
    scans = load_digits()
    pixels = torch.tensor(scans.data, dtype=torch.float32) / 16
    labels = torch.tensor(scans.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(pixels[train], labels[train]), TensorDataset(pixels[held], labels[held])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--backend", default="auto", help="auto, gloo or nccl")
    arguments = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    torch.manual_seed(0)
    train, held_out = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    manager = DistributedTrainingManager(arguments.backend, "env://", world_size=world_size, rank=rank)
    loader = DataLoader(train, batch_size=32, sampler=DistributedSampler(train))
    result = manager.train(model, loader, optimizer, nn.CrossEntropyLoss(), epochs=arguments.epochs)

    if manager.job.is_leader:
        model.eval()
        with torch.no_grad():
            x, y = held_out.tensors
            accuracy = (model(x).argmax(1) == y).double().mean().item()
        print(f"loss of the first epoch {result.losses[0]:.4f}, of the last {result.losses[-1]:.4f}")
        print(f"{result.steps} steps, {result.samples} samples, accuracy {accuracy:.4f} on held-out digits")


if __name__ == "__main__":
    main()
