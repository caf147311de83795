"""char_gpt on several workers; the leader holds every step against plain torch in its own process.

From the same weights: the gradients of the same micro-batches, summed in the order of the ranks.  And a twin
that trains by itself on the same micro-batches: its loss curve.  One line a step in `--told`.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import nets
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import godmw

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
from char_gpt import GPT, Windows, standard_library

LENGTH = 128


class Indexed(torch.utils.data.Dataset):
    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return *self.windows[index], index


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def batches_of(logs: Path, step: int) -> list[list[list[int]]]:
    """The micro-batches of a step, by rank."""
    found = defaultdict(list)
    for path in logs.iterdir():
        for line in map(json.loads, path.read_text().splitlines()):
            if line["step"] == step:
                found[line["rank"]].append(line["indices"])
    return [found[rank] for rank in sorted(found)]


def plain(model: nn.Module, ranks: list[list[list[int]]], data: Windows) -> float:
    """Set `grad` to the mean over all samples, summed a rank after the other; the mean loss."""
    parameters, total, loss_sum = list(model.parameters()), 0, 0.0
    sums: list[Tensor] = [torch.zeros_like(parameter) for parameter in parameters]
    for batches in ranks:
        mine = [torch.zeros_like(parameter) for parameter in parameters]
        for indices in batches:
            x, y = (torch.stack(items) for items in zip(*(data[i] for i in indices), strict=True))
            loss = loss_of(model, x, y)
            for kept, gradient in zip(mine, torch.autograd.grad(loss, parameters), strict=True):
                kept += len(indices) * gradient
            total += len(indices)
            loss_sum += len(indices) * float(loss)
        for kept, part in zip(sums, mine, strict=True):
            kept += part
    for parameter, kept in zip(parameters, sums, strict=True):
        parameter.grad = kept / total
    return loss_sum / total


def errors(model: nn.Module, twin: nn.Module) -> dict[str, object]:
    """The largest error of a tensor's gradient, against its norm and against the norm of them all."""
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    theirs = {name: parameter.grad for name, parameter in twin.named_parameters()}
    everything = float(torch.cat([gradient.flatten() for gradient in theirs.values()]).norm())
    apart = {name: float((ours[name] - theirs[name]).norm()) for name in ours}
    relative = {name: apart[name] / max(float(theirs[name].norm()), 1e-30) for name in ours}
    worst = max(relative, key=lambda name: relative[name])
    share = float(theirs[worst].norm()) / everything
    return {
        "error": relative[worst],
        "tensor": worst,
        "share": share,
        "of_all": max(apart.values()) / everything,
    }


def main() -> None:
    parser = nets.arguments()
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--told", type=Path, required=True)
    args = parser.parse_args()

    torch.manual_seed(0)
    windows = Windows(standard_library(), LENGTH)
    model = GPT(LENGTH)
    twin, alone = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    args.logs.mkdir(exist_ok=True)
    log = (args.logs / f"{os.getpid()}.jsonl").open("a", buffering=1)
    job = godmw.join(model, optimizer)
    other = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    for step in job.steps(Indexed(windows), batch_size=args.batch, steps=args.steps):
        for x, y, indices in step:
            line = {"step": step.index, "rank": job._engine.control.rank, "indices": indices.tolist()}
            log.write(json.dumps(line) + "\n")
            step.backward(loss_of(model, x, y))
        if job.is_leader:
            ranks = batches_of(args.logs, step.index)
            twin.load_state_dict(model.state_dict())
            plain(twin, ranks, windows)
            said = {"step": step.index, "loss": step.loss, **errors(model, twin)}
            said["plain_loss"] = plain(alone, ranks, windows)
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            other.step()
            with args.told.open("a") as told:
                told.write(json.dumps(said) + "\n")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
