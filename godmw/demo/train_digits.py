"""The demo's training script: handwritten digits, by however many workers there are.

Scikit-learn's 1,797 scans of 8×8 pixels; a small convolutional net with batch-norm and dropout; accuracy on
digits that nobody trained on, counted together with `job.evaluate` after each pass.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import godmw

MOST_EPOCHS = 2000
HELD_OUT = 360  # samples no worker trains on


def tensors() -> tuple[torch.utils.data.TensorDataset, torch.utils.data.TensorDataset]:
    """(train, held out), the same split everywhere: images [n, 1, 8, 8] in 0..1, labels [n]."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, held = order[HELD_OUT:], order[:HELD_OUT]
    make = torch.utils.data.TensorDataset
    return make(images[train], labels[train]), make(images[held], labels[held])


def build() -> torch.nn.Module:
    """A small convolutional net: [n, 1, 8, 8] → [n, 10]."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32 * 4 * 4, 10),
    )


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    until = Path(sys.argv[2]) if len(sys.argv) > 2 else None  # train on until this file is there
    torch.manual_seed(7)
    train, held = tensors()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    job = godmw.join(model, optimizer)

    def correct(batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, int]:
        x, y = batch
        return {"correct": int((model(x).argmax(1) == y).sum()), "of": len(y)}

    for epoch in job.epochs(epochs if until is None else MOST_EPOCHS):
        model.train()
        for step in epoch.steps(train, batch_size=96):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            optimizer.step()
        model.eval()
        totals = job.evaluate(correct, held, batch_size=120)
        if until is not None and epoch.index + 1 >= epochs and until.exists():
            job.stop("enough")  # one worker's word is enough: all end after the same pass
    accuracy = totals["correct"] / totals["of"]
    sys.stdout.write(f"accuracy on {totals['of']} held-out digits: {accuracy:.4f}\n")


if __name__ == "__main__":
    main()
