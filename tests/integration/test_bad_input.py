"""What people get wrong: one clear line that says what to do, the right exit code, nothing left running.

What fails before anything is started (no such script, min above max, a secret in argv, a wrong address for
an agent) is in tests/cli/test_run.py and test_agent.py; misuse inside a step in tests/worker.
"""

import json
import socket
from pathlib import Path

import pytest

from tests.integration.jobs import PATIENCE_S, SCRIPTS, Job, job
from tests.integration.processes import ended

pytestmark = pytest.mark.timeout(180)
MISUSED = SCRIPTS / "misused.py"
TRACEBACK = "Traceback (most recent call last)"


def write(run: Job, text: str) -> str:
    (run.folder / "train.py").write_text(text)
    return "train.py"


def failed(
    run: Job, workers: int, *words: str, options: tuple[str, ...] = (), prefix: str = "error: w"
) -> tuple[str, str]:
    """A job that must fail with 1; its error line and everything it said."""
    command = ["run", "--workers", str(workers), "--run-dir", str(run.path), *options, *words]
    code, _, err = ended(run.godmw(*command), PATIENCE_S)
    assert code == 1, err
    lines = [line for line in err.splitlines() if line.startswith(prefix)]  # the worker that failed
    assert len(lines) == 1, err
    assert err.splitlines()[-1] == f"hint: see {run.path}/logs"
    summary = run.files.read_summary()
    assert summary is not None
    assert summary["outcome"] == "failed"
    run.nothing_left()
    return lines[0], err


# ---------------------------------------------------------------- scripts that never join


@pytest.mark.parametrize(
    ("text", "error", "tracebacks"),
    [
        ("raise ValueError('the data is not there')", "ValueError: the data is not there", 1),
        ("import sys; sys.exit(0)", "its script ended inside a loop or before one", 0),
        (
            "import sys; print('no such option', file=sys.stderr); sys.exit(3)",
            "exited with 3: no such option",
            0,
        ),
    ],
)
def test_a_script_that_ends_before_it_joins(tmp_path: Path, text: str, error: str, tracebacks: int) -> None:
    with job(tmp_path) as run:
        line, err = failed(run, 3, write(run, text))
    assert line.startswith("error: w")
    assert error in line
    assert err.count(TRACEBACK) == tracebacks


def test_a_script_that_hangs_before_it_joins_is_named_and_given_up(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        script = write(run, "import time\ntime.sleep(300)\n")
        line, _ = failed(run, 2, script, options=("--stall-timeout", "2"))
    assert "its script has not called godmw.join for 2 s (--stall-timeout 2)" in line


# ---------------------------------------------------------------- scripts that join and go wrong


def test_a_typo_in_the_loop_of_four_workers_is_one_traceback(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        line, err = failed(run, 4, str(MISUSED), "--typo", "0")
    assert "its script raised: NameError: name 'undefined_name' is not defined" in line
    assert err.count(TRACEBACK) == 1, err
    assert "misused.py" in err


@pytest.mark.slow
def test_a_typo_that_all_meet_after_the_first_commit_is_one_traceback_too(tmp_path: Path) -> None:
    """Nobody who holds the state is left: the reason says whose script it was."""
    with job(tmp_path) as run:
        line, err = failed(run, 3, str(MISUSED), "--typo", "5", prefix="error: every worker")
    assert "has died, and there is no checkpoint; w" in line
    assert line.endswith("its script raised: NameError: name 'undefined_name' is not defined")
    assert err.count(TRACEBACK) == 1, err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--nan", "3"), "step 3"),
        (("--samples", "0"), "empty"),
        (("--leave", "2"), "inside a step loop, at step 3"),
    ],
)
def test_what_a_script_does_wrong_is_one_line(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    with job(tmp_path) as run:
        line, err = failed(run, 1, str(MISUSED), *words, options=("--restarts", "0"))
    assert error in line
    assert TRACEBACK not in err, err


def test_workers_that_bring_something_else_are_refused_by_name(tmp_path: Path) -> None:
    """Another batch size, model, dataset length and order, against a job that runs: it goes on."""
    others = {
        "settings are not the job's: batch_size=16 (the job has 8)": ("--batch", "16"),
        "model is not the job's: it has 25 parameters, the job's has 20 parameters": ("--width", "5"),
        "settings are not the job's: samples=65 (the job has 64)": ("--samples", "65"),
        "dataset is not the job's: other samples, or in another order": ("--reverse",),
    }
    with job(tmp_path) as run:
        run.process = run.godmw("run", "--workers", "1", "--run-dir", str(run.path), str(MISUSED))
        run.see("formed", members=1)
        joined = {what: run.python(str(MISUSED), *words, env=run.join) for what, words in others.items()}
        said = {what: ended(process, PATIENCE_S) for what, process in joined.items()}
        for what, (code, _, err) in said.items():
            assert code == 77, (what, err)
            errors = [line for line in err.splitlines() if line.startswith("error: ")]
            assert len(errors) == 1, err
            assert errors == [f"error: this worker's {what}"], err
            assert TRACEBACK not in err, err
            assert err.splitlines()[-1].startswith("hint: every worker of one job must run the same script")
        run.goes_on()
        assert run.status()["world_size"] == 1
        assert run.status()["target"] == 1
        run.run.stop()
        assert ended(run.process, PATIENCE_S)[0] == 75
        run.nothing_left()


# ---------------------------------------------------------------- addresses


def test_a_plain_script_with_a_wrong_token(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        master = run.master()
        address = run.files.address()
        assert address is not None
        plain = run.python(str(MISUSED), env={"GODMW_JOIN": f"{address.bare()}/wrong"})
        code, _, err = ended(plain, PATIENCE_S)
        assert code == 77, err
        assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
        assert TRACEBACK not in err
        assert address.token not in err
        master.terminate()
        ended(master, PATIENCE_S)
        run.nothing_left()


@pytest.mark.slow
def test_a_plain_script_with_a_wrong_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with job(tmp_path) as run:
        plain = run.python(str(MISUSED), env={"GODMW_JOIN": f"godmw://127.0.0.1:{port}/token"})
        code, _, err = ended(plain, PATIENCE_S)
        assert code == 69, err
        assert f"error: no master answered at godmw://127.0.0.1:{port} within 20 s" in err
        assert "hint: is it running? `godmw master` prints the line" in err
        run.nothing_left()


def test_the_master_is_gone(tmp_path: Path) -> None:
    """Its directory is there: who asks and who joins is told what to type."""
    with job(tmp_path) as run:
        run.kill_pid(run.master().pid)
        script = write(run, "pass")
        asked = run.godmw("status", "--json", str(run.path))
        joined = run.godmw("worker", "--connect-timeout", "0.5", "--run-dir", str(run.path), script)
        code, out, _ = ended(asked)
        assert (code, json.loads(out)["code"]) == (69, 69)
        assert f"godmw master --run-dir {run.path}" in json.loads(out)["hint"]
        code, _, err = ended(joined)
        assert code == 69
        assert err.startswith("error: no master at 127.0.0.1:")
        assert err.splitlines()[-1].startswith("hint: ")
        run.nothing_left()


def test_the_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, job(tmp_path) as run:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = run.godmw(
            "run", "--run-dir", str(run.path), write(run, "pass"), env={"GODMW_LISTEN": listen}
        )
        code, _, err = ended(process)
        assert code == 64, err
        assert len(err.splitlines()) == 2
        assert err.startswith("error: ")
        assert "is taken" in err
        assert "hint: --listen HOST:0 takes a free port" in err
        run.nothing_left()
