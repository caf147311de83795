"""`godmw rehearse SCRIPT`: your own script on 3 local workers under everything that happens to a job, and a
checklist.

Thin: the line of the script, where things are written, and the words at the end. What happens is in
`demo/rehearsal.py`, what it means in `demo/checklist.py`.
"""

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import click

from godmw.cli.options import emit, json_option, option
from godmw.cli.script import KEY, ScriptCommand, script_command


@click.command("rehearse", cls=ScriptCommand)
@option("--run-dir", type=click.Path(path_type=Path), help="Keep what is written here.")
@json_option
@click.pass_context
def command(ctx: click.Context, run_dir: Path | None, as_json: bool) -> int:
    """40 steps of SCRIPT on 3 workers here, through a kill, a freeze, a join, a drain and a master
    restart.
    """
    from godmw.demo import checklist
    from godmw.demo.rehearsal import rehearse

    _, label = script_command(ctx)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, leave))
        directory = run_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="godmw-rehearse-"))
        )
        report = rehearse(ctx.meta[KEY], directory.absolute(), os.environ, quiet if as_json else click.echo)
    if as_json:
        result: dict[str, Any] = {
            "ok": report.ok,
            "script": label,
            "steps": report.steps,
            "wall_s": round(report.wall_s, 3),
            "checks": [check.as_dict() for check in report.checks],
            "words": report.words,
        }
        emit(result, as_json=True)
    else:
        if report.words.strip():
            click.echo(report.words.strip("\n"), err=True)
        click.echo("\n".join(checklist.lines(report.checks)))
    return 0 if report.ok else 1


def quiet(_: str) -> None:
    """Under --json only the last object is said."""


def leave(signum: int, frame: object) -> NoReturn:
    """End as an exception does, so that everything started here is ended first."""
    sys.exit(128 + signum)
