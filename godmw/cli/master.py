"""`godmw master`: the process that decides who is in a job.

It prints the line to paste on other terminals and hosts, then serves until the job is over. On an
unfinished run directory it takes that job up again, at the address its workers know.
"""

import logging
import time
from pathlib import Path

import click

from godmw.cli.options import json_option, option, to_json
from godmw.client.rundir import RunDir, default_path
from godmw.config import JobSettings, JoinAddress, count_or_off, seconds_or_off
from godmw.errors import ExitCode, JobFailed, Stopped

DEFAULTS = JobSettings()


@click.command("master")
@option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True, help="Port 0: a free one."
)
@option("--run-dir", help="Where the job is kept; an unfinished one is taken up.  [default: ./godmw-runs/…]")
@option("--min", "minimum", type=int, default=DEFAULTS.minimum, show_default=True, help="Pause below this.")
@option("--max", "maximum", type=int, default=DEFAULTS.maximum, help="Take no more workers than this.")
@option(
    "--lease",
    type=float,
    help="Seconds of silence that make a worker lost.  [default: 2 here, 10 elsewhere]",
)
@option("--start-timeout", type=float, default=DEFAULTS.start_timeout_s, show_default=True)
@option("--stall-timeout", default="600", show_default=True, help="Seconds, or off.")
@option("--restarts", default="3", show_default=True, help="Of one slot in 10 minutes, or off.")
@json_option
def command(
    listen: str,
    run_dir: str | None,
    minimum: int,
    maximum: int,
    lease: float | None,
    start_timeout: float,
    stall_timeout: str,
    restarts: str,
    as_json: bool,
) -> None:
    """Coordinate a job; prints the line that starts its workers."""
    from godmw.master.main import run_master

    settings = JobSettings(
        minimum=minimum,
        maximum=maximum,
        target=minimum,
        lease_s=DEFAULTS.lease_s if lease is None else lease,
        remote_lease_s=DEFAULTS.remote_lease_s if lease is None else lease,
        start_timeout_s=start_timeout,
        stall_timeout_s=seconds_or_off(stall_timeout, "--stall-timeout"),
        restarts=count_or_off(restarts, "--restarts"),
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    path = Path(run_dir) if run_dir else default_path("master", time.strftime("%Y%m%d-%H%M%S"))

    def ready(join: JoinAddress) -> None:
        paste = f"GODMW_JOIN='{join.format()}' godmw worker SCRIPT"
        place = {"address": join.endpoint, "run_dir": str(path.absolute()), "join": join.format()}
        click.echo(to_json(place) if as_json else paste)

    code = run_master(settings, path, listen, ready=ready)
    say_end(code, RunDir(path), as_json=as_json)


def say_end(code: int, files: RunDir, *, as_json: bool) -> None:
    """One line on how the job ended; an end that is no success is raised, so that it has its exit code."""
    summary = files.read_summary() or {}
    reason, steps = summary.get("reason", ""), summary.get("steps", 0)
    if code == ExitCode.OK:
        if not as_json:
            click.echo(f"finished after {steps} steps; summary in {files.summary}")
        return
    if code == ExitCode.RESUMABLE:
        raise Stopped(
            f"stopped after {steps} steps: {reason}", hint="there is no state on disk to go on from"
        )
    raise JobFailed(
        reason or f"the job failed after {steps} steps", code=code, hint=f"logs are in {files.logs}"
    )
