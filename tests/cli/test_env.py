"""The command's frame, seen through its smallest verb: output, errors, exit codes, and what is imported."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import godmw
from godmw.cli import main as frame
from godmw.cli.options import json_option, option, variable
from godmw.errors import ExitCode, Refused

CLI = Path(frame.__file__).parent


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = frame.run(args)
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


def test_env_says_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "env", "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    told = json.loads(out)
    keys = ["version", "python", "torch", "native", "native_reason", "isa", "cpus", "platform"]
    assert list(told) == keys
    assert told["version"] == godmw.__version__
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert told["native"] is (told["native_reason"] is None)
    assert (told["isa"] == "reference") is not told["native"]
    code, out, _ = run(capsys, "env")
    assert code == 0
    assert f"python         {told['python']}\n" in out


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["enf"], "no such command: enf", "did you mean: godmw env"),
        (["zzz"], "no such command: zzz", "godmw --help lists the commands"),
        ([], "no command given", "godmw --help lists the commands"),
        (["env", "--foo"], "No such option '--foo'.", "godmw env --help"),
        (["env", "more"], "Got unexpected extra argument (more)", "godmw env --help"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    error: str,
    hint: str,
) -> None:
    code, out, err = run(capsys, *args)
    lines = [line.replace("option: --foo", "option '--foo'.") for line in err.splitlines()]
    assert (code, out, lines) == (64, "", [f"error: {error}", f"hint: {hint}"])
    monkeypatch.setenv("GODMW_JSON", "1")
    code, out, err = run(capsys, *args)
    assert (code, err) == (64, "")
    told = json.loads(out)
    assert (told["code"], told["hint"]) == (64, hint)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """A verb `fail` that raises what the test puts into the dict."""
    planned: dict[str, BaseException] = {}

    @click.command("fail")
    @json_option
    def command(as_json: bool) -> None:
        raise planned["error"]

    module = type(sys)("godmw.cli.fail")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "godmw.cli.fail", module)
    monkeypatch.setitem(frame.VERBS, "fail", "fails")
    return planned


def test_errors_of_ours_are_shown_with_their_code(
    capsys: pytest.CaptureFixture[str], verb: dict[str, BaseException]
) -> None:
    verb["error"] = Refused("the key is another job's", hint="take the join line of this job")
    assert run(capsys, "fail") == (
        77,
        "",
        "error: the key is another job's\nhint: take the join line of this job\n",
    )
    code, out, err = run(capsys, "fail", "--json")
    assert (code, err, out.count("\n")) == (77, "", 1)
    assert json.loads(out) == {
        "error": "the key is another job's",
        "code": 77,
        "hint": "take the join line of this job",
    }


def test_other_endings(capsys: pytest.CaptureFixture[str], verb: dict[str, BaseException]) -> None:
    verb["error"] = KeyboardInterrupt()
    assert run(capsys, "fail")[0] == ExitCode.INTERRUPTED
    verb["error"] = ZeroDivisionError("1/0")
    code, _, err = run(capsys, "fail")
    assert code == ExitCode.INTERNAL
    assert "Traceback" in err
    assert "error: ZeroDivisionError: 1/0" in err


def test_json_after_a_script_is_the_scripts() -> None:
    assert frame.wants_json(["run", "--json", "train.py"])
    assert not frame.wants_json(["run", "train.py", "--json"])
    assert not frame.wants_json(["run", "-m", "package", "--json"])
    assert not frame.wants_json(["run", "--", "--json"])


def test_an_option_has_the_variable_of_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variable("-d", "--run-dir") == "GODMW_RUN_DIR"
    assert variable("--min") == "GODMW_MIN"
    assert variable("--shuffle/--no-shuffle", "flag") == "GODMW_SHUFFLE"
    seen = []

    @click.command()
    @option("--run-dir", type=str)
    def command(run_dir: str) -> None:
        seen.append(run_dir)

    monkeypatch.setenv("GODMW_RUN_DIR", "somewhere")
    command.main([], standalone_mode=False)
    command.main(["--run-dir", "here"], standalone_mode=False)
    assert seen == ["somewhere", "here"]


def test_the_table_names_every_verb_and_nothing_else() -> None:
    """A verb is a file that defines `command`."""
    defining = {
        path.stem
        for path in CLI.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if (isinstance(node, ast.FunctionDef) and node.name == "command")
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "command")
    }
    assert defining == set(frame.VERBS)


def test_help_lists_the_verbs_and_every_verb_loads(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name, line in frame.VERBS.items():
        assert f"  {name} " in out
        assert line.split()[0] in out
        assert run(capsys, name, "--help")[0] == 0
    assert run(capsys, "--version")[1] == f"godmw {godmw.__version__}\n"


def loaded_by(*command: str) -> tuple[set[str], float]:
    """The modules a command imports in a process of its own, and the CPU seconds it takes."""
    before = os.times()
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "godmw", *command],
        capture_output=True,
        text=True,
        check=True,
    )
    after = os.times()
    modules = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return modules, spent


@pytest.mark.parametrize("command", [["env"], ["--help"]])
def test_a_command_loads_what_it_needs_and_is_quick(command: list[str]) -> None:
    runs = [loaded_by(*command) for _ in range(5)]
    modules = runs[0][0]
    assert "godmw.cli.main" in modules
    heavy = {name for name in modules if name.split(".")[0] in ("torch", "numpy", "zmq", "rich", "sklearn")}
    assert heavy == set()
    assert min(spent for _, spent in runs) < 0.15


def test_importing_godmw_imports_no_room() -> None:
    code = "import sys, godmw; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = told.stdout.split()
    assert "godmw" in loaded
    assert [name for name in loaded if name.split(".")[0] in ("torch", "zmq", "numpy", "_native")] == []
    assert [name for name in loaded if name.startswith("godmw.")] == []
