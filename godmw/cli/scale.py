"""`godmw scale`: how many workers a job should have."""

import click

from godmw.cli.target import carry_out, find, run_options


@click.command("scale")
@click.argument("workers", type=click.IntRange(0, 1024))
@run_options
def command(workers: int, run: str | None, run_dir: str | None, as_json: bool) -> None:
    """Set how many WORKERS a job should have; they come and go at a step boundary."""
    job = find(run, run_dir)
    carry_out(job, lambda: job.scale(workers), "the target is {target} workers", as_json=as_json)
