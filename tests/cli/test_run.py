"""`godmw run` whole: a real master, an agent, real worker processes, and every way in which that ends badly.

The scripts here never join, so no torch is loaded; runs that train are tested with the examples.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from godmw.cli import run as verb
from godmw.cli.progress import Story, told_as
from godmw.cli.script import ScriptCommand
from godmw.client.rundir import RunDir
from godmw.errors import ExitCode, GodmwError
from godmw.worker.agent.facts import End
from godmw.worker.agent.master_process import Upkeep
from tests.integration.processes import alive, ended, godmw, wait_until

HANG = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
with open(os.environ["GODMW_WORKER"] + ".tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(os.environ["GODMW_WORKER"] + ".tmp", os.environ["GODMW_WORKER"] + ".pids")
print("hanging", sys.argv[1:])
time.sleep(300)
"""
SUMMARY: dict[str, Any] = {
    "outcome": "finished", "reason": "", "steps": 12, "samples": 96, "loss_last": 0.25, "wall_s": 3.21,
    "recoveries": [{"worker": "w1"}],
}  # fmt: skip


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return "train.py"


def pids(folder: Path, *workers: str) -> list[int]:
    paths = [folder / f"{worker}.pids" for worker in workers]
    wait_until(lambda: all(path.exists() for path in paths), what="the workers run")
    return [int(pid) for path in paths for pid in path.read_text().split()]


def master_pid(folder: Path) -> int:
    pid = RunDir(folder / "run").master_pid()
    assert pid is not None
    return pid


# ---------------------------------------------------------------- bad input, before anything starts


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["run", "trian.py"], "no such script: trian.py", "did you mean: train.py"),
        (["run", "--workers", "2"], "no script given", "godmw run --help"),
        (["run", "-m", "no_such_module"], "no such module: no_such_module", ""),
        (["run", "."], ". is a directory, a script was expected", "-m PACKAGE"),
        (
            ["run", "--workers", "2", "--min", "3", "--max", "2", "train.py"],
            "--min 3 is above --max 2",
            "--min 2",
        ),
        (
            ["run", "--workers", "9", "--max", "4", "train.py"],
            "9 workers asked for, above --max 4",
            "--max 9",
        ),
        (["run", "--restarts", "many", "train.py"], "--restarts many: a whole number, or off", ""),
        (["worker", "train.py"], "no master to join", "GODMW_JOIN="),
        (["worker", "--join", "godmw://h:1/token", "train.py"], "--join holds the job's token", "@FILE"),
        (["worker", "--join", "godmw://h:1", "train.py"], "--join godmw://h:1 and no token", "GODMW_JOIN"),
        (["worker", "--join", "@nowhere", "train.py"], "join file 'nowhere'", ""),
    ],
)
def test_bad_input_is_one_line_and_64(tmp_path: Path, args: list[str], error: str, hint: str) -> None:
    script(tmp_path, "pass")
    with godmw(*args, cwd=tmp_path) as process:
        code, out, err = ended(process)
    first, *rest = err.splitlines()
    assert (code, out) == (64, "")
    assert first.startswith(f"error: {error}")
    assert hint in "".join(rest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_a_worker_on_a_directory_without_a_master(tmp_path: Path) -> None:
    script(tmp_path, "pass")
    with godmw("worker", "--run-dir", "nowhere", "train.py", cwd=tmp_path) as process:
        code, _, err = ended(process)
    assert code == 69
    assert err == ("error: no master has run on nowhere\nhint: start one: godmw master --run-dir nowhere\n")


# ---------------------------------------------------------------- scripts that fail


def test_a_typo_with_four_workers_is_one_traceback(tmp_path: Path) -> None:
    name = script(tmp_path, "print('begin')\nvalue = undefined_name\n")
    with godmw(
        "run", "--workers", "4", "--run-dir", "run", "--summary", "s.json", name, cwd=tmp_path
    ) as process:
        code, out, err = ended(process)
    assert code == 1
    assert err.count("Traceback (most recent call last)") == 1
    assert err.count("name 'undefined_name' is not defined") >= 2  # the traceback, and the error line
    assert "error: w" in err
    assert f"hint: see {tmp_path}/run/logs" in err
    assert set(out.splitlines()) <= {"begin"}
    assert json.loads((tmp_path / "s.json").read_text())["outcome"] == "failed"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "failed"


def test_a_script_that_exits_3(tmp_path: Path) -> None:
    name = script(tmp_path, "import sys\nprint('out')\nsys.exit(int(sys.argv[1]))\n")
    with godmw("run", "--json", "--run-dir", "run", name, "3", cwd=tmp_path) as process:
        code, out, err = ended(process)
    told = json.loads(out)
    assert code == 1
    assert out.count("\n") == 1
    assert (told["outcome"], told["code"], told["run_dir"]) == ("failed", 1, str(tmp_path / "run"))
    assert "exited with 3" in told["error"]
    assert "out\n" in err  # stdout belongs to the object
    with godmw("run", "--run-dir", "run", name, "3", cwd=tmp_path) as process:
        code, _, err = ended(process)
    assert (code, "is over" in err) == (1, True)


def test_a_module_and_options_behind_it_are_the_scripts(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(4)\n")
    with godmw("run", "--run-dir", "run", "-m", "pack.main", "--json", "-x", cwd=tmp_path) as process:
        code, out, _ = ended(process)
    assert (code, out) == (1, "['--json', '-x']\n")


# ---------------------------------------------------------------- signals and deaths


@pytest.mark.parametrize(("signals", "code"), [([2], 75), ([15], 75), ([2, 2], 130), ([15, 15], 143)])
def test_signals_stop_the_job_and_leave_nothing(tmp_path: Path, signals: list[int], code: int) -> None:
    name = script(tmp_path, HANG)
    with godmw("run", "--workers", "2", "--run-dir", "run", name, "--lr", "3", cwd=tmp_path) as process:
        all_pids = [*pids(tmp_path, "w0", "w1"), master_pid(tmp_path)]
        process.send_signal(signals[0])
        if len(signals) == 2:
            assert process.stderr is not None
            wait_until(lambda: "stopping the job" in process.stderr.readline())
            process.send_signal(signals[1])
        status, out, err = ended(process, 10.0)
    assert status == code
    assert out == "hanging ['--lr', '3']\n"
    if code == 75:
        assert "cannot be resumed" in err
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "stopped"
    wait_until(lambda: not any(map(alive, all_pids)), 5.0)


def test_sigkill_of_run_ends_all_it_started(tmp_path: Path) -> None:
    name = script(tmp_path, HANG)
    with godmw("run", "--workers", "2", "--run-dir", "run", name, cwd=tmp_path) as process:
        all_pids = [*pids(tmp_path, "w0", "w1"), master_pid(tmp_path)]
        assert all(map(alive, all_pids))
        process.kill()
        wait_until(lambda: not any(map(alive, all_pids)), 5.0)


def test_a_killed_master_is_started_again_and_no_worker_with_it(tmp_path: Path) -> None:
    name = script(tmp_path, HANG)
    with godmw("run", "--workers", "2", "--run-dir", "run", "--lease", "20", name, cwd=tmp_path) as process:
        workers = pids(tmp_path, "w0", "w1")
        first = master_pid(tmp_path)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: master_pid(tmp_path) != first, 5.0, "another master")
        assert process.stderr is not None
        wait_until(lambda: "the master is back (term 2)" in process.stderr.readline(), 5.0)
        assert all(map(alive, workers))
        process.send_signal(signal.SIGTERM)
        status, _, _ = ended(process, 10.0)
    assert status == 75


def test_a_master_that_cannot_start_says_why(tmp_path: Path) -> None:
    name = script(tmp_path, "pass")
    (tmp_path / "run").write_text("in the way")
    with godmw("run", "--run-dir", "run", name, cwd=tmp_path) as process:
        code, out, err = ended(process)
    assert (code, out) == (64, "")
    assert err.startswith(f"error: run directory '{tmp_path}/run'")
    assert err.count("\n") <= 2


# ---------------------------------------------------------------- the last word, without processes


def test_the_last_word_of_a_job_that_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path)
    assert verb.conclude(End(0, "", ""), SUMMARY, run, False, "") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"godmw: finished: 12 steps, 96 samples, loss 0.2500, 1 recovery, 3.2 s; {tmp_path}\n"
    )
    assert verb.conclude(End(0, "", ""), SUMMARY, run, True, "") == 0
    assert json.loads(capsys.readouterr().out) == {**SUMMARY, "code": 0, "run_dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("end", "outcome", "code"),
    [(0, "finished", 0), (1, "failed", 1), (70, "failed", 70), (0, "failed", 1), (75, "stopped", 75),
     (69, "finished", 0), (130, "stopped", 130)],
)  # fmt: skip
def test_the_exit_code_is_the_outcomes(tmp_path: Path, end: int, outcome: str, code: int) -> None:
    told = {**SUMMARY, "outcome": outcome, "reason": "why"}
    assert verb.conclude(End(end, "", ""), told, RunDir(tmp_path), True, "") == code


def test_without_a_summary_the_agents_end_counts(tmp_path: Path) -> None:
    with pytest.raises(GodmwError, match="the port is taken") as caught:
        verb.conclude(End(64, "the port is taken", "free it"), None, RunDir(tmp_path), False, "")
    assert (caught.value.code, caught.value.hint) == (ExitCode.USAGE, "free it")
    assert verb.conclude(End(143, "a second SIGTERM", ""), None, RunDir(tmp_path), False, "") == 143


def test_upkeep_of_the_master() -> None:
    upkeep = Upkeep()
    assert upkeep.died(0, 9, 100.0) == 100.0
    assert [upkeep.died(70, 0, 101.0 + i) for i in range(4)] == [101.1, 102.2, 103.4, 104.8]
    assert upkeep.died(0, 11, 106.0) is None  # the sixth within a minute
    assert Upkeep([100.0] * 5).died(0, 9, 161.0) == 161.0  # they are long ago
    assert [Upkeep().died(code, 0, 1.0) for code in (0, 1, 64, 75, 77)] == [None] * 5
    assert Upkeep(stopping=True).died(0, 15, 1.0) is None


def test_the_line_is_cut_where_the_script_begins() -> None:
    command = verb.command
    assert isinstance(command, ScriptCommand)
    cuts = {
        "--workers 3 a.py --tee": ["--workers", "3"],
        "--workers=3 --tee a.py --workers 9": ["--workers=3", "--tee"],
        "--tee -m pack -m x": ["--tee"],
        "-- --odd.py": [],
        "--json": ["--json"],
    }
    for line, ours in cuts.items():
        assert command.cut(line.split())[0] == ours, line
    assert command.cut(["--tee", "--", "--odd.py", "x"])[1] == ["--odd.py", "x"]


def test_progress_is_read_from_the_files(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    story = Story(run)
    assert story.look() == []
    assert story.line() == "starting: 0 s"
    run.events.write_text('{"kind": "prepared", "worker": "w0"}\n')
    assert story.look() == []
    assert story.line().startswith("starting: 1 worker ready, ")
    lines = [
        {"t": 10.0 + i, "samples": 32, "step": i, "epoch": 1, "world_size": 3, "loss": 0.5}
        for i in range(11)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run.metrics.write_text(text[:-1])  # the last line is not whole yet
    with run.events.open("a") as events:
        events.write('{"kind": "verdict", "worker": "w1", "reason": "signal 9"}\n{"kind": "beat"}\n')
    assert story.look() == ["w1 is out: signal 9"]
    assert story.line() == "step 10  epoch 1  loss 0.5000  32 samples/s  3 workers"
    run.metrics.write_text(text)
    assert story.look() == []
    assert story.line().startswith("step 11 ")
    formed = {"kind": "formed", "number": 3, "members": ["w0", "w2"]}
    assert told_as(formed) == "generation 3: w0, w2"
    assert Story(run).look() == []  # an earlier part of the job is not told again
    assert told_as({"kind": "target", "target": 3, "reason": "asked for by an operator"}) == (
        "3 workers wanted: asked for by an operator"
    )
