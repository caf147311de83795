"""`godmw events`: what happened to a job, and what happens.

One line an event, read from the run directory or, for a job on another host, asked for as they happen.
It formats and prints; what an event means is said where it is logged.
"""

from typing import Any

import click

from godmw.cli.options import option, to_json
from godmw.cli.target import find, run_options

STANDING = ("t", "since_s", "kind", "worker", "term", "generation", "step", "reason")


@click.command("events")
@option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@run_options
def command(run: str | None, run_dir: str | None, follow: bool, as_json: bool) -> None:
    """Print what happened to a job, oldest first; with --json one object a line."""
    for event in find(run, run_dir).events(follow=follow):
        click.echo(to_json(event) if as_json else line(event))


def line(event: dict[str, Any]) -> str:
    """One event for the eye: when, what, who, at which step, and the rest."""
    parts = [f"{event.get('since_s', 0.0):>10.3f}", f"{event.get('kind', '?'):<10}"]
    parts += [str(event["worker"])] if event.get("worker") else []
    parts += [f"step {event['step']}"] if "step" in event else []
    parts += [f"{key}={_short(value)}" for key, value in event.items() if key not in STANDING]
    parts += [f"({event['reason']})"] if event.get("reason") else []
    return "  ".join(parts)


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    first = text.splitlines()[-1] if text.strip() else text
    return first if len(first) <= 60 else first[:59] + "…"
