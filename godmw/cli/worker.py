"""`godmw worker`: an agent and its worker processes, joined to a master that runs already.

Works out where that master is (a pasted address, a file, a run directory of this machine) and hands over to
`godmw.worker.agent`.  The job's token is never taken from the argument list, which everybody can read.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from godmw.cli.options import emit, json_option, option
from godmw.cli.script import ScriptCommand, script_command
from godmw.client.rundir import RunDir
from godmw.config import JoinAddress, join_address
from godmw.errors import ExitCode, GodmwError, Unreachable, UsageError
from godmw.worker.agent.environment import this_machine
from godmw.worker.agent.facts import End

# endings that somebody asked for: said, and no error
QUIET = (ExitCode.OK, ExitCode.RESUMABLE, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
NO_ADDRESS = "paste what `godmw master` printed: GODMW_JOIN='godmw://HOST:PORT/TOKEN' godmw worker SCRIPT"


@click.command("worker", cls=ScriptCommand)
@option("--join", metavar="ADDR|@FILE", help="The master: godmw://HOST:PORT, or @FILE.")
@option(
    "--run-dir", type=click.Path(path_type=Path), help="Find the master of this directory, on this host."
)
@option("--nproc", type=click.IntRange(1, 1024), metavar="N", help="Workers here [one a device, else 1].")
@option("--threads", type=click.IntRange(1, 4096), metavar="N", help="Threads of each worker [its share].")
@option(
    "--connect-timeout",
    "connect_s",
    type=click.FloatRange(0.1),
    default=20.0,
    show_default=True,
    metavar="S",
    help="How long a master is looked for at the start.",
)
@option("--tee", is_flag=True, help="Show the output of all workers, each line with whose it is.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, join: str | None, run_dir: Path | None, nproc: int | None, threads: int | None,
    connect_s: float, tee: bool, as_json: bool,
) -> int:  # fmt: skip
    """Start worker processes of SCRIPT here and join them to a master."""
    line, _ = script_command(ctx)
    typed = ctx.get_parameter_source("run_dir") is ParameterSource.COMMANDLINE
    argument = join if ctx.get_parameter_source("join") is ParameterSource.COMMANDLINE else None
    address = find_master(argument, run_dir, typed)

    from godmw.worker.agent import run_agent
    from godmw.worker.agent.outlet import Terminal

    end = run_agent(
        line, slots=nproc or default_slots(), join=address, run_dir=run_dir if typed else None,
        threads=threads,         connect_s=connect_s, tee=tee, sink=Terminal(all_err=as_json),
    )  # fmt: skip
    return conclude(end, as_json)


def find_master(join: str | None, run_dir: Path | None, typed: bool) -> JoinAddress:
    """Where the master is: what was typed before the environment, an address before a directory."""
    pasted = os.environ.get("GODMW_JOIN")
    if join or (pasted and not typed):
        address = join_address(join, pasted)
        if address is not None:
            return address
    if run_dir is None:
        raise UsageError("no master to join", hint=NO_ADDRESS)
    address = RunDir(run_dir).address()
    if address is None:
        raise Unreachable(
            f"no master has run on {run_dir}", hint=f"start one: godmw master --run-dir {run_dir}"
        )
    return address


def default_slots() -> int:
    """One worker a device, or one."""
    return max(1, len(this_machine(os.environ).devices))


def conclude(end: End, as_json: bool) -> int:
    """The exit code; a failure is raised, so that it is said as every command says it."""
    if end.code in QUIET or end.code not in tuple(ExitCode):
        if as_json:
            emit({"code": end.code, "reason": end.reason}, as_json=True)
        else:
            click.echo(f"godmw: {end.reason}", err=True)
        return end.code
    raise GodmwError(end.reason, code=end.code, hint=end.hint or None)
