"""What the verbs share: options that have an environment variable, and `--json`.

An option's variable has the option's own name (`--run-dir` is `GODMW_RUN_DIR` in every verb), not the
verb's, which click's automatic prefix would put in between. Printing one object, as text or as one line
of JSON, is here too, so that no verb wraps its output.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def variable(*declarations: str) -> str:
    """The environment variable of an option: `--run-dir` -> `GODMW_RUN_DIR`."""
    longest = max((name.split("/")[0] for name in declarations if name.startswith("--")), key=len)
    return "GODMW_" + longest[2:].replace("-", "_").upper()


def option(*declarations: str, **attributes: Any) -> Callable[[Command], Command]:
    """`click.option` with the environment variable named by the option alone."""
    attributes.setdefault("envvar", variable(*declarations))
    return click.option(*declarations, **attributes)


def json_option(command: Command) -> Command:
    """`--json`: passed to the verb as `as_json`."""
    return option("--json", "as_json", is_flag=True, help="One JSON object on one line.")(command)


def to_json(value: Any) -> str:
    """One line, unwrapped; keys in the order they were given."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), allow_nan=False)


def emit(value: dict[str, Any], *, as_json: bool) -> None:
    """Print one object: as one line of JSON, or one `key  value` line each."""
    if as_json:
        click.echo(to_json(value))
        return
    width = max(map(len, value), default=0)
    for name, item in value.items():
        if item is not None:
            click.echo(f"{name:<{width}}  {item}")
