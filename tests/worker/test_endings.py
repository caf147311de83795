"""How a script ends, seen from outside: exit status, what is on the terminal, what the summary says.

One process imports torch and forks a child for each script, which then ends like any other interpreter.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

NURSERY = """
import os, sys
import torch, torch.nn.functional as F, godmw
from torch import nn
from torch.utils.data import TensorDataset
torch.set_num_threads(1)
import godmw.worker.job
warm = nn.Linear(1, 1)  # the first step of an optimizer imports half of torch
warm(torch.ones(1)).sum().backward()
torch.optim.SGD(warm.parameters(), lr=1).step()
while True:
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    script, output, run_dir = line.split()
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
file = os.open(output, os.O_WRONLY | os.O_CREAT)
os.dup2(file, 1)
os.dup2(file, 2)
os.environ["GODMW_RUN_DIR"] = run_dir
exec(compile(open(script).read(), script, "exec"))
"""

HEAD = """
x = torch.arange(20.0).reshape(20, 1)
data = TensorDataset(x, x)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
job = godmw.join(model, optimizer)
"""

LOOP = """
for step in job.steps(data, batch_size=5, epochs=1):
    for a, b in step:
        step.backward(F.mse_loss(model(a), b))
    optimizer.step()
"""


@dataclasses.dataclass
class Ending:
    code: int
    output: str
    summary: dict[str, object] | None


class Nursery:
    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, script: str) -> Ending:
        self._count += 1
        place = self._directory / str(self._count)
        place.mkdir()
        (place / "train.py").write_text(HEAD + textwrap.dedent(script))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{place}/train.py {place}/output {place}/run\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        summary = place / "run" / "summary.json"
        return Ending(
            code,
            (place / "output").read_text(),
            json.loads(summary.read_text()) if summary.exists() else None,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("endings"))
    yield nursery
    nursery.close()


def test_a_script_that_runs_off_its_end_has_finished(nursery: Nursery) -> None:
    end = nursery.run(LOOP)
    assert (end.code, end.output) == (0, "")
    assert end.summary is not None
    assert end.summary["outcome"] == "finished"
    assert (end.summary["steps"], end.summary["samples"], end.summary["epochs"]) == (4, 20, 1)
    assert len(str(end.summary["weights_sha256"])) == 64


@pytest.mark.parametrize("exit", ["sys.exit()", "sys.exit(0)", "raise SystemExit", "exit(0)"])
def test_an_exit_of_zero_after_the_loop_is_an_end(nursery: Nursery, exit: str) -> None:
    end = nursery.run(f"{LOOP}\n{exit}")
    assert end.code == 0
    assert end.summary is not None
    assert end.summary["outcome"] == "finished"


def test_an_exception_is_shown_once_and_fails_the_job(nursery: Nursery) -> None:
    end = nursery.run(LOOP + "    if step.index == 1: raise ValueError('my own')\n")
    assert end.code == 1
    assert end.output.count("Traceback") == 1
    assert end.output.rstrip().endswith("ValueError: my own")
    assert end.summary is not None
    assert end.summary["outcome"] == "failed"
    assert "ValueError: my own" in str(end.summary["reason"])


@pytest.mark.parametrize("exit", ["sys.exit(0)", "sys.exit()"])
def test_an_exit_inside_a_loop_is_an_early_end(nursery: Nursery, exit: str) -> None:
    end = nursery.run(f"{LOOP}    if step.index == 1: {exit}\n")
    assert end.code == 1
    assert "error: the script ended inside a step loop, at step 2" in end.output
    assert "hint:" in end.output
    assert "Traceback" not in end.output
    assert end.summary is not None
    assert "early_end" in str(end.summary["reason"])


def test_an_exit_status_is_kept_and_fails_the_job(nursery: Nursery) -> None:
    end = nursery.run(f"{LOOP}\nsys.exit(3)")
    assert end.code == 3
    assert end.summary is not None
    assert end.summary["outcome"] == "failed"


def test_break_is_an_end_of_the_loop_and_of_the_script(nursery: Nursery) -> None:
    end = nursery.run(LOOP + "    if step.index == 1: break\n")
    assert end.code == 0
    assert end.summary is not None
    assert end.summary["steps"] == 2


def test_misuse_is_one_line_of_the_script_what_and_how(nursery: Nursery) -> None:
    end = nursery.run(
        """
        for step in job.steps(data, batch_size=5, epochs=1):
            for a, b in step:
                F.mse_loss(model(a), b).backward()
        """
    )
    assert end.code == 1
    lines = end.output.splitlines()
    assert "train.py" in lines[0]
    assert lines[1].strip() == "F.mse_loss(model(a), b).backward()"
    assert lines[-2].startswith("error: loss.backward() reached parameter")
    assert lines[-1].startswith("hint: call step.backward(loss)")
    assert "godmw/" not in end.output


def test_a_step_left_early_at_the_very_end_is_not_forgiven(nursery: Nursery) -> None:
    end = nursery.run(
        """
        for step in job.steps(data, batch_size=5, epochs=1, micro_batch=2):
            for a, b in step:
                step.backward(F.mse_loss(model(a), b))
                break
            break
        """
    )
    assert end.code == 1
    assert "was left before its last batch" in end.output


def test_a_usage_error_exits_64(nursery: Nursery) -> None:
    end = nursery.run("job.steps(data, batch_size=5, epochs=1, reduction='exact')")
    assert end.code == 64
    assert "not built yet" in end.output
    assert "Traceback" not in end.output


def test_a_loss_that_is_not_finite_exits_1_and_says_which_samples(nursery: Nursery) -> None:
    end = nursery.run(
        """
        for step in job.steps(data, batch_size=5, epochs=1, shuffle=False):
            for a, b in step:
                step.backward(F.mse_loss(model(a), b) * (float("nan") if step.index == 1 else 1))
            optimizer.step()
        """
    )
    assert end.code == 1
    assert "error: step 1: the loss is not finite on worker w0; samples 5, 6, 7, 8, 9" in end.output
    assert end.summary is not None
    assert "nonfinite" in str(end.summary["reason"])


def test_the_users_own_hook_still_sees_the_exception(nursery: Nursery) -> None:
    end = nursery.run(
        "sys.excepthook = (lambda hook: lambda *e: (print('mine'), hook(*e)))(sys.excepthook)\n1 / 0"
    )
    assert end.code == 1
    assert end.output.startswith("mine")
    assert "ZeroDivisionError" in end.output


def test_a_closed_job_leaves_the_process_alone(nursery: Nursery) -> None:
    end = nursery.run(f"{LOOP}\njob.close()\nmodel(x).sum().backward()\noptimizer.step()\nsys.exit(5)")
    assert end.code == 5
    assert end.summary is not None
    assert end.summary["outcome"] == "finished"


def test_a_forked_child_does_not_end_the_job(nursery: Nursery) -> None:
    end = nursery.run(
        f"{LOOP}\nif not os.fork(): sys.exit(0)\nos.wait()\nprint(os.path.exists(run_dir + '/summary.json'))"
    )
    assert end.code == 0
    assert end.output.strip() == "False"
    assert end.summary is not None
