"""What long trainings do around steps: evaluate each epoch, a scheduler, early stopping, the best model.

Everything it knows between epochs is in `job.state`, so a worker that joins late decides as the others do.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from light import light

import godmw

THIRD = 2  # the epoch in which there is time to join


def digest(tensors: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--told", type=Path, required=True, help="where each worker writes what it decided")
    parser.add_argument("--enter", type=Path, help="join when this file is there")
    args = parser.parse_args()

    light()
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    x = torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] * x[:, 1] > 0).long()
    train = torch.utils.data.TensorDataset(x[:400], y[:400])
    held_out = torch.utils.data.TensorDataset(x[400:], y[400:])

    def sums(batch: list[torch.Tensor]) -> tuple[float, int]:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum").item(), len(batch[1])

    while args.enter is not None and not args.enter.exists():
        time.sleep(0.02)
    job = godmw.join(model, optimizer, scheduler)
    job.state.update(best=1e9, bad=0, best_model={})
    for epoch in job.epochs(40):
        model.train()
        for step in epoch.steps(train, batch_size=40):
            for bx, by in step:
                time.sleep(0.5 if epoch.index == THIRD else 0.01)
                step.backward(F.cross_entropy(model(bx), by))
            optimizer.step()
        scheduler.step()
        model.eval()
        loss, count = job.evaluate(sums, held_out, batch_size=50)
        if loss / count < job.state["best"] - 1e-4:
            kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            job.state.update(best=loss / count, bad=0, best_model=kept)
        else:
            job.state["bad"] += 1
        if job.state["bad"] >= 3 and epoch.index > THIRD:
            job.state["stopped_after"] = epoch.index
            job.stop("no better for three epochs")
    told = {
        "stopped_after": job.state["stopped_after"],
        "rate": scheduler.get_last_lr(),
        "best": job.state["best"],
        "best_model": digest(job.state["best_model"]),
        "weights": digest(model.state_dict()),
    }
    args.told.mkdir(exist_ok=True)
    (args.told / f"{os.getpid()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
