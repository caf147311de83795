"""Which job a verb is about: the RUN argument, ``--run-dir``, ``GODMW_JOIN``, or the newest run here.

RUN is a run directory or an address; an address in an argument list carries no token, which then comes from
`GODMW_JOIN`.  Also here, because every verb that acts on a job ends with it: how a job's state is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from godmw.cli.options import emit, json_option, option, to_json
from godmw.client.rundir import ROOT, newest
from godmw.config import SCHEME, join_address
from godmw.errors import UsageError

if TYPE_CHECKING:
    from godmw.client.handle import Run

Command = TypeVar("Command", bound=Callable[..., Any])

COLUMNS = ("id", "rank", "state", "step", "phase", "host", "pid", "incarnation")


def run_options(command: Command) -> Command:
    """The RUN argument, ``--run-dir`` and ``--json``: passed as `run`, `run_dir` and `as_json`."""
    command = json_option(command)
    command = option("--run-dir", help="The job's run directory.")(command)
    return click.argument("run", required=False)(command)


def find(run: str | None, run_dir: str | None) -> Run:
    """The handle of the job that is meant.  Raises UsageError when none can be."""
    from godmw.client.handle import connect

    if run and run.startswith(SCHEME):
        address = join_address(run, os.environ.get("GODMW_JOIN"))
        if address is not None:
            return connect(address)
    if run or run_dir:
        return connect(run or run_dir or "")
    address = join_address(None, os.environ.get("GODMW_JOIN"))
    if address is not None:
        return connect(address)
    found = newest()
    if found is None:
        raise UsageError(
            f"no run under ./{ROOT}", hint="name one: a run directory or its address, or --run-dir"
        )
    return connect(found.path)


def carry_out(job: Run, act: Callable[[], dict[str, Any]], done: str, *, as_json: bool) -> None:
    """Ask for something and say what was answered; a job that is over shows its final state instead."""
    body = act()
    if job.ended:
        show_status(job.final_status(), as_json=as_json)
    elif as_json:
        click.echo(to_json(body))
    else:
        click.echo(done.format(**body))


def show_status(status: dict[str, Any], *, as_json: bool) -> None:
    """One object, or a few lines and a table of the workers."""
    if as_json:
        click.echo(to_json(status))
        return
    workers = status.get("workers") or []
    shown = {name: status.get(name) for name in ("job", "phase", "reason", "step", "generation", "term")}
    shown["reason"] = shown["reason"] or None
    size = "{world_size} of {target} (min {min}, max {max})"
    if "target" in status:
        shown["workers"] = size.format(**status)
    emit(shown, as_json=False)
    if workers:
        click.echo()
        click.echo(table([[_cell(worker.get(name)) for name in COLUMNS] for worker in workers]))


def table(rows: list[list[str]]) -> str:
    """Aligned columns under their names."""
    lines = [[name.upper() for name in COLUMNS], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )
    return "\n".join(line.rstrip() for line in padded)


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
