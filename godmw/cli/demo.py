"""`godmw demo`: train digits with three workers, kill one, freeze one, add one, and tell what happened."""

import tempfile
from pathlib import Path
from typing import Any

import click

from godmw.cli.options import emit, json_option, option


def quiet(_: str) -> None:
    """Under --json only the last object is said."""


@click.command("demo")
@option("--run-dir", type=click.Path(path_type=Path), help="Keep the run's files here.")
@json_option
def command(run_dir: Path | None, as_json: bool) -> int:
    """A real small training that loses a worker, freezes another, gets both back and grows by one."""
    from godmw.demo.story import play, report

    with tempfile.TemporaryDirectory(prefix="godmw-demo-") as temporary:
        outcome = play(run_dir or Path(temporary) / "run", quiet if as_json else click.echo)
    result: dict[str, Any] = {
        "ok": outcome.ok,
        "accuracy": outcome.accuracy,
        "missing": outcome.audit.missing,
        "repeated": outcome.audit.repeated,
        "digests": outcome.digests,
        "summary": outcome.summary,
    }
    if as_json:
        emit(result, as_json=True)
    else:
        click.echo("\n".join(report(outcome)))
    return 0 if outcome.ok else 1
