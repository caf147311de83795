"""Weights through kills and every step's gradients, against plain torch that sums the same micro-batches.

python tests/soak/weights.py RESULTS.jsonl [--only NAME] [--seed N]

digits: SGD with momentum and Adam, 2 to 4 workers, 100 steps; workers are killed at fixed steps and
replaced.  Every worker writes each micro-batch down before its backward; plain torch does those of the
committed steps again, in the order of the ranks.  A ring of three or more adds each chunk in an order of its
own: `rounding` says how far plain torch is from itself when it adds the ranks backwards.  gpt:
examples/char_gpt.py on two workers, see scripts/gpt_checked.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[2]))
import cases
import nets

from tests.integration.jobs import Job, job
from tests.integration.processes import ended, wait_until

STEPS = 100
FAULTS = (  # (worker, step, point); the third needs three workers
    ("w1", 15, "results_in"),
    ("w0", 60, "ready_sent"),
    ("w2", 35, "first_send"),
)
BAR, LOSS_BAR = 1e-5, 1e-3
Batches = dict[int, dict[tuple[int, int], list[list[int]]]]  # step -> (rank, pid) -> its micro-batches


def all_cases(seed: int) -> Iterator[cases.Case]:
    for net in ("digits", "conv"):
        for optimizer in ("sgd", "adam"):
            for workers in (2, 3, 4):
                name = f"{net}-{optimizer}-{workers}"
                yield {"name": name, "net": net, "optimizer": optimizer, "workers": workers}
    yield {"name": "gpt", "workers": 2, "steps": 120}


def counted(logs: Path, killed: set[int]) -> Batches:
    """What is in the committed steps: a dead worker's batch that others have done again is not."""
    found: Batches = {}
    for path in logs.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            mine = found.setdefault(line["step"], {}).setdefault((line["rank"], int(path.stem)), [])
            mine.append(line["indices"])
    for shares in found.values():
        living = {i for (_, pid), some in shares.items() if pid not in killed for part in some for i in part}
        for (_, pid), some in shares.items():
            if pid in killed:
                some[:] = [part for part in some if living.isdisjoint(part)]
    return found


def plain(net: str, kind: str, found: Batches, *, backwards: bool = False) -> dict[str, torch.Tensor]:
    """Plain torch on the same micro-batches; buffers move by the weighted mean of what each batch did."""
    torch.set_num_threads(1)
    model, images = nets.build(net), nets.digits()
    optimizer = nets.optimizer_of(kind, model)
    parameters, buffers = list(model.parameters()), dict(model.named_buffers())
    for step in range(STEPS):
        shares = [some for _, some in sorted(found[step].items(), reverse=backwards) if some]
        indices = sorted(i for some in shares for part in some for i in part)
        assert len(indices) == len(set(indices)), f"step {step}: samples in two batches"
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        moved = {name: torch.zeros_like(buffer, dtype=torch.float32) for name, buffer in buffers.items()}
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for some in shares:
            mine = [torch.zeros_like(parameter) for parameter in parameters]
            for part in some:
                x, y, _ = images[part]
                for name, buffer in buffers.items():
                    buffer.copy_(before[name])
                gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
                for kept, gradient in zip(mine, gradients, strict=True):
                    kept += len(part) * gradient
                for name, buffer in buffers.items():
                    moved[name] += len(part) * (buffer - before[name])
            for kept, part_sum in zip(total, mine, strict=True):
                kept += part_sum
        for name, buffer in buffers.items():
            change = moved[name] / len(indices)
            buffer.copy_(before[name] + (change if buffer.is_floating_point() else change.round().long()))
        for parameter, kept in zip(parameters, total, strict=True):
            parameter.grad = kept / len(indices)
        optimizer.step()
    return model.state_dict()


def apart(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest relative error of a tensor, and its name."""
    kinds = [name for name, tensor in wanted.items() if tensor.is_floating_point()]
    return max((float((got[name] - wanted[name]).norm() / wanted[name].norm()), name) for name in kinds)


def digits_case(case: cases.Case, folder: Path) -> cases.Case:
    workers, logs, log = case["workers"], folder / "logs", folder / "faults.jsonl"
    table = [
        {"worker": worker, "step": step, "point": point}
        for worker, step, point in FAULTS
        if int(worker[1:]) < workers
    ]
    args = ["--steps", str(STEPS), "--pace", "0.01", "--workers", str(workers), "--net", case["net"]]
    args += ["--optimizer", case["optimizer"], "--logs", str(logs)]
    args += ["--faults", json.dumps(table), "--fault-log", str(log)]
    with job(folder) as run:
        script = cases.SCRIPTS / "digits_logged.py"
        run.start(workers, "--restarts", "off", script=script, args=tuple(args))
        first = dict(run.first_pids)
        finished(run)
        acted = [row["worker"] for row in cases.read(log)]
        run.check(survivors=tuple(w for w in first if w not in acted))
    assert sorted(acted) == sorted(row["worker"] for row in table), f"killed {acted}"
    found = counted(logs, {first[worker] for worker in acted})
    expected, got = plain(case["net"], case["optimizer"], found), load_file(logs / "weights.safetensors")
    error, tensor = apart(got, expected)
    rounding, _ = apart(plain(case["net"], case["optimizer"], found, backwards=True), expected)
    return {
        "good": error <= BAR,
        "error": error,
        "tensor": tensor,
        "rounding": rounding,
        "killed": len(acted),
    }


def gpt_case(case: cases.Case, folder: Path) -> cases.Case:
    told = folder / "told.jsonl"
    args = ["--steps", str(case["steps"]), "--pace", "0", "--batch", "16"]
    args += ["--logs", str(folder / "logs"), "--told", str(told)]
    with job(folder) as run:
        run.start(case["workers"], script=cases.SCRIPTS / "gpt_checked.py", args=tuple(args))
        finished(run, 1200.0)
        run.check(survivors=tuple(run.first_pids))
    lines = cases.read(told)
    worst = max(lines, key=lambda line: line["error"])
    curve = max(abs(line["loss"] - line["plain_loss"]) for line in lines)
    return {
        "good": worst["error"] <= BAR and curve <= LOSS_BAR and len(lines) == case["steps"],
        "error": worst["error"],
        "tensor": worst["tensor"],
        "share": worst["share"],
        "of_all": max(line["of_all"] for line in lines),
        "loss_apart": curve,
        "loss_last": lines[-1]["loss"],
    }


def finished(run: Job, within_s: float = 300.0) -> None:
    """Until the script has ended by itself."""
    wait_until(lambda: run.process.poll() is not None, within_s, "the end of the script")
    code, out, err = ended(run.process)
    assert code == 0, (code, out, err)


def run_case(case: cases.Case, folder: Path) -> cases.Case:
    return gpt_case(case, folder) if case["name"] == "gpt" else digits_case(case, folder)


if __name__ == "__main__":
    sys.exit(cases.measure("weights", all_cases, run_case, __doc__.splitlines()[0]))
