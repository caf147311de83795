"""`godmw status`: where a job stands."""

import click

from godmw.cli.target import find, run_options, show_status


@click.command("status")
@run_options
def command(run: str | None, run_dir: str | None, as_json: bool) -> None:
    """Show where a job stands: phase, step, generation and its workers."""
    show_status(find(run, run_dir).status(), as_json=as_json)
