"""`godmw resume`: end a pause."""

import click

from godmw.cli.target import carry_out, find, run_options


@click.command("resume")
@run_options
def command(run: str | None, run_dir: str | None, as_json: bool) -> None:
    """Let a paused job go on."""
    job = find(run, run_dir)
    carry_out(job, job.resume, "the pause is over", as_json=as_json)
