"""`godmw pause`: hold a job."""

import click

from godmw.cli.target import carry_out, find, run_options


@click.command("pause")
@run_options
def command(run: str | None, run_dir: str | None, as_json: bool) -> None:
    """Hold all workers of a job, their state in memory, until `godmw resume`."""
    job = find(run, run_dir)
    carry_out(job, job.pause, "paused; godmw resume goes on", as_json=as_json)
