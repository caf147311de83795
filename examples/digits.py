"""Handwritten digits (1,797 scans of 8x8 pixels): evaluate every epoch, stop when it stops helping.

    python examples/digits.py                            one worker
    godmw run --workers 3 examples/digits.py             three, which may come and go

The early stopping lives in `job.state`, so a worker that joins in epoch 7 knows what the others know.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import godmw

HELD_OUT = 360


def digits() -> tuple[TensorDataset, TensorDataset]:
    """(train, held out): images float32 [n, 1, 8, 8] in 0 … 1, labels int64 [n]."""
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(scans.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held], labels[held])


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--patience", type=int, default=4, help="epochs without a better accuracy")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    train, held_out = digits()
    model = build().to(godmw.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    job = godmw.join(model, optimizer, scheduler)

    def hits(batch: list[torch.Tensor]) -> dict[str, float]:
        x, y = (tensor.to(godmw.device()) for tensor in batch)
        scores = model(x)
        loss = F.cross_entropy(scores, y, reduction="sum")
        return {"hits": int((scores.argmax(1) == y).sum()), "loss": float(loss), "n": len(y)}

    for epoch in job.epochs(arguments.epochs):
        model.train()
        for step in epoch.steps(train, batch_size=arguments.batch_size):
            for x, y in step:
                step.backward(F.cross_entropy(model(x.to(godmw.device())), y.to(godmw.device())))
            optimizer.step()
            step.log(lr=optimizer.param_groups[0]["lr"])
        scheduler.step()

        model.eval()
        found = job.evaluate(hits, held_out, batch_size=120)
        accuracy = found["hits"] / found["n"]
        if accuracy > job.state.get("best", 0.0):
            job.state.update(best=accuracy, at=epoch.index)
        elif epoch.index - job.state["at"] >= arguments.patience:
            job.stop(f"no better for {arguments.patience} epochs")
        if job.is_leader:
            print(
                f"epoch {epoch.index:2}  loss {step.loss:.4f}  held out {found['loss'] / found['n']:.4f}  "
                f"accuracy {accuracy:.4f}  workers {job.world_size}",
                flush=True,
            )

    if job.is_leader:
        print(f"best accuracy {job.state['best']:.4f} in epoch {job.state['at']}")


if __name__ == "__main__":
    main()
