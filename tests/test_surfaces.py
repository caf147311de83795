"""What others build on, frozen: public names, exit codes, verbs and their options.

A failure here is a change that a user would notice. If it is meant, change the table in the same commit.
"""

from importlib import import_module

import click
import pytest

import godmw
from godmw import errors
from godmw.cli.main import VERBS

PUBLIC = ["__version__", "DistributedTrainingManager", "connect", "device", "join", "start"]

EXIT_CODES = {
    "OK": 0,
    "FAILED": 1,
    "USAGE": 64,
    "UNREACHABLE": 69,
    "INTERNAL": 70,
    "RESUMABLE": 75,
    "VERSION": 76,
    "REFUSED": 77,
    "INTERRUPTED": 130,
    "TERMINATED": 143,
}

ERRORS = {
    "GodmwError": 1,
    "UsageError": 64,
    "Unreachable": 69,
    "InternalError": 70,
    "Refused": 77,
    "VersionMismatch": 76,
    "JobFailed": 1,
    "Stopped": 75,
    "GradientMisuse": 1,
}

# verb -> its options and, in capitals, its arguments
OPTIONS = {
    "demo": ["--run-dir", "--json"],
    "rehearse": ["--run-dir", "--json"],
    "master": [
        *("--listen", "--run-dir", "--min", "--max", "--lease", "--start-timeout"),
        *("--stall-timeout", "--restarts", "--json"),
    ],
    "status": ["RUN", "--run-dir", "--json"],
    "events": ["RUN", "--run-dir", "--follow", "-f", "--json"],
    "logs": ["WORKER", "RUN", "--run-dir", "--follow", "-f", "--json"],
    "scale": ["WORKERS", "RUN", "--run-dir", "--json"],
    "drain": ["WORKER", "RUN", "--run-dir", "--json"],
    "evict": ["WORKER", "RUN", "--run-dir", "--json"],
    "pause": ["RUN", "--run-dir", "--json"],
    "resume": ["RUN", "--run-dir", "--json"],
    "stop": ["RUN", "--run-dir", "--reason", "--json"],
    "run": [
        *("--workers", "--min", "--max", "--run-dir", "--summary", "--restarts", "--lease"),
        *("--stall-timeout", "--start-timeout", "--threads", "--tee", "--json"),
    ],
    "worker": [
        *("--join", "--run-dir", "--nproc", "--threads", "--connect-timeout", "--tee", "--json"),
    ],
    "audit": ["RUN", "--run-dir", "--json"],
    "env": ["--json"],
}


def test_public_names() -> None:
    assert godmw.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(godmw))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        godmw.nothing  # noqa: B018


@pytest.mark.parametrize("name", PUBLIC[1:])
def test_a_public_name_is_found_where_the_table_says(name: str) -> None:
    assert getattr(godmw, name) is getattr(import_module(godmw._PUBLIC[name]), name)


def test_exit_codes() -> None:
    assert {code.name: code.value for code in errors.ExitCode} == EXIT_CODES


def test_errors_and_their_codes() -> None:
    found = {
        name: int(value.code)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.GodmwError)
    }
    assert found == ERRORS


def test_an_error_carries_message_code_and_hint() -> None:
    error = errors.JobFailed("loss is not finite", code=errors.ExitCode.INTERNAL, hint="lower the rate")
    assert str(error) == "loss is not finite"
    assert error.as_dict() == {"error": "loss is not finite", "code": 70, "hint": "lower the rate"}
    assert errors.JobFailed("again").as_dict() == {"error": "again", "code": 1, "hint": None}
    assert errors.JobFailed.code == errors.ExitCode.FAILED


def test_verbs() -> None:
    assert set(VERBS) == set(OPTIONS)


@pytest.mark.parametrize("verb", OPTIONS)
def test_options(verb: str) -> None:
    command: click.Command = import_module(f"godmw.cli.{verb}").command
    assert command.name == verb
    names: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            names.append(parameter.human_readable_name.upper())
        else:
            names += [*parameter.opts, *parameter.secondary_opts]
    assert sorted(names) == sorted(OPTIONS[verb])


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_option_has_the_variable_of_its_name(verb: str) -> None:
    command: click.Command = import_module(f"godmw.cli.{verb}").command
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            longest = max((name for name in parameter.opts if name.startswith("--")), key=len)
            assert parameter.envvar == "GODMW_" + longest[2:].replace("-", "_").upper()
