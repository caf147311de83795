"""The nets and data that the soak jobs train, and the common parts of their command lines."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

NETS = ("small", "mlp13", "digits", "conv")


def build(name: str) -> nn.Module:
    """[n, 64] -> [n, 10].  small 0.3 M parameters, mlp13 3.2 M (13 MB), digits 33,000, conv 17,000.

    conv has batch-norm, and no bias before it: such a bias has no gradient but rounding noise.
    """
    torch.manual_seed(7)
    if name == "mlp13":
        widths = (64, 1536, 1536, 512)
    elif name == "small":
        widths = (64, 512, 512)
    elif name == "digits":
        widths = (64, 256, 64)
    else:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def digits() -> TensorDataset:
    """(images float32 [1797, 64] in 0 … 1, labels int64, the sample's own index)."""
    scans = load_digits()
    images = torch.tensor(scans.data, dtype=torch.float32) / 16
    return TensorDataset(images, torch.tensor(scans.target), torch.arange(len(images)))


def made_up(samples: int) -> TensorDataset:
    """Like digits, of any length."""
    x = torch.randn(samples, 64, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :10].argmax(1), torch.arange(samples))


def arguments() -> argparse.ArgumentParser:
    """What `tests.integration.jobs.Job` says to every script, and the fault table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a batch takes longer")
    parser.add_argument("--until", type=Path, help="stop all after the step at which this file is there")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--net", choices=NETS, default="small")
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
    parser.add_argument("--faults", default="[]")
    parser.add_argument("--fault-log", type=Path)
    return parser
