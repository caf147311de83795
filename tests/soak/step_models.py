"""The models and batches of the step-time comparisons: built alike by both sides.  Batch sizes are per
worker.
"""

from __future__ import annotations

import torch
from torch import nn

NAMES = ("small", "mlp", "cnn", "gpt")


def build(name: str) -> nn.Module:
    """mlp 25.2 M parameters (bound by communication), cnn 1.6 M, gpt 3.3 M, small 0.5 M (bound by
    latency).
    """
    if name == "small":
        return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    if name == "mlp":
        layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
        return nn.Sequential(*layers)
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(256, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 256))


def samples(name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``count`` samples and labels; a gpt sample is 128 tokens, its label as many."""
    generator = torch.Generator().manual_seed(3)
    if name == "small":
        return torch.randn(count, 512, generator=generator), torch.randint(
            0, 10, (count,), generator=generator
        )
    if name == "mlp":
        return torch.randn(count, 1024, generator=generator), torch.randint(
            0, 1024, (count,), generator=generator
        )
    if name == "cnn":
        x = torch.randn(count, 1, 28, 28, generator=generator)
        return x, torch.randint(0, 10, (count,), generator=generator)
    shape = (count, 128)
    return torch.randint(0, 256, shape, generator=generator), torch.randint(
        0, 256, shape, generator=generator
    )


BATCH = {"small": 32, "mlp": 16, "cnn": 32, "gpt": 8}


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = model(x)
    return nn.functional.cross_entropy(out.reshape(y.numel(), -1), y.reshape(-1))
