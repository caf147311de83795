"""`godmw logs`: what a worker printed.

Logs are files of the run directory on the worker's own host, named after the worker; they are read there and
nowhere else, while they grow or after the job is over.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from godmw.cli.options import option, to_json
from godmw.cli.target import find, run_options
from godmw.errors import UsageError

FOLLOW_S = 0.1


@click.command("logs")
@click.argument("worker")
@option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@run_options
def command(worker: str, run: str | None, run_dir: str | None, follow: bool, as_json: bool) -> None:
    """Print what WORKER has written to its log; with --json one object a line."""
    job = find(run, run_dir)
    if job.files is None:
        raise UsageError(
            "logs are in the run directory", hint="godmw logs WORKER RUN_DIR on the worker's host"
        )
    path = job.files.log(worker)
    if path.parent != job.files.logs or not path.exists():
        known = ", ".join(job.files.logged_workers()) or "nobody"
        raise UsageError(f"no log of {worker!r} in {job.files.logs}", hint=f"there are logs of: {known}")
    for text in lines(path, follow, lambda: job.ended):
        click.echo(to_json({"worker": worker, "line": text}) if as_json else text)


def lines(path: Path, follow: bool, over: Callable[[], bool]) -> Iterator[str]:
    """The lines of a log; with `follow` also those to come until `over`, a last unfinished one included."""
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        begun = ""
        while True:
            last = not follow or over()
            for text in file:
                begun += text
                if begun.endswith("\n"):
                    yield begun[:-1]
                    begun = ""
            if last:
                if begun:
                    yield begun
                return
            time.sleep(FOLLOW_S)
