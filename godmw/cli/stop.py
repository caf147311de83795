"""`godmw stop`: end a job early."""

import click

from godmw.cli.options import option
from godmw.cli.target import carry_out, find, run_options


@click.command("stop")
@option("--reason", default="stopped by an operator", show_default=True, help="Goes into the summary.")
@run_options
def command(run: str | None, run_dir: str | None, reason: str, as_json: bool) -> None:
    """End a job early; its processes exit with 75."""
    job = find(run, run_dir)
    carry_out(job, lambda: job.stop(reason), "the job is told to stop", as_json=as_json)
