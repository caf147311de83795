"""`godmw audit`: prove from a run's ledger that every sample of every epoch was in exactly one step.

Reads the run directory and asks nobody, so it works while the job runs and when all of it is dead. Exit 0
and the counts when the proof holds, exit 1 and the first offending samples when it does not.
"""

from typing import Any

import click

from godmw.cli.options import to_json
from godmw.cli.target import run_options
from godmw.client.rundir import ROOT, RunDir, newest
from godmw.data.audit import AuditReport, audit
from godmw.data.ledger import FILE_NAME
from godmw.errors import ExitCode, UsageError

SHOWN = 5


def chosen(run: str | None, run_dir: str | None) -> RunDir:
    """The run directory to audit, which has a ledger.  Raises UsageError."""
    named = run or run_dir
    found = RunDir(named) if named else newest()
    if found is None:
        raise UsageError(f"no run under ./{ROOT}", hint="godmw audit RUN, where RUN is a run directory")
    if not (found.ledger / FILE_NAME).is_file():
        raise UsageError(
            f"{found.path} has no ledger", hint="godmw audit RUN, where RUN is the run directory of a job"
        )
    return found


def counts(report: AuditReport) -> dict[str, int]:
    return {
        "epochs": report.epochs,
        "steps": report.steps,
        "samples": report.samples,
        "missing": report.missing,
        "repeated": report.repeated,
        "open": report.open_epochs,
    }


def fault(report: AuditReport, run: RunDir) -> dict[str, Any]:
    """The error's own part of the answer."""
    return {
        "error": f"the ledger does not prove this run: {report.first_bad[0]}",
        "code": int(ExitCode.FAILED),
        "hint": f"keep {run.path} and look at the step in {run.events}",
        "first_bad": [offence.as_dict() for offence in report.first_bad],
    }


@click.command("audit")
@run_options
def command(run: str | None, run_dir: str | None, as_json: bool) -> int:
    """Prove that every sample of every epoch went into exactly one committed step."""
    found = chosen(run, run_dir)
    report = audit(found.ledger)
    if as_json:
        click.echo(to_json(counts(report) | ({} if report.clean else fault(report, found))))
    else:
        click.echo(", ".join(f"{name} {number}" for name, number in counts(report).items()))
        if not report.clean:
            wrong = fault(report, found)
            click.echo(f"error: {wrong['error']}", err=True)
            for offence in report.first_bad[1:SHOWN]:
                click.echo(f"       {offence}", err=True)
            click.echo(f"hint: {wrong['hint']}", err=True)
    return int(ExitCode.OK if report.clean else ExitCode.FAILED)
