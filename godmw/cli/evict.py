"""`godmw evict`: remove one worker."""

import click

from godmw.cli.target import carry_out, find, run_options


@click.command("evict")
@click.argument("worker")
@run_options
def command(worker: str, run: str | None, run_dir: str | None, as_json: bool) -> None:
    """Remove WORKER now, without its consent, and start none in its place."""
    job = find(run, run_dir)
    done = "{worker} is out; the target is {target} workers"
    carry_out(job, lambda: job.evict(worker), done, as_json=as_json)
