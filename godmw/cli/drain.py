"""`godmw drain`: let one worker leave."""

import click

from godmw.cli.target import carry_out, find, run_options


@click.command("drain")
@click.argument("worker")
@run_options
def command(worker: str, run: str | None, run_dir: str | None, as_json: bool) -> None:
    """Let WORKER leave at the next step boundary and start none in its place."""
    job = find(run, run_dir)
    done = "{worker} leaves at the next boundary; the target is {target} workers"
    carry_out(job, lambda: job.drain(worker), done, as_json=as_json)
