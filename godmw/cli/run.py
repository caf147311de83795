"""`godmw run`: a master, an agent and its workers on this host, from the first line to the exit code.

The agent is this process, the master one of its own that is started again when it dies (`worker/agent`).
Here are the command line, the run directory, and the last word: what the summary says, one traceback at
most, and how the process ends.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from godmw.cli.options import emit, json_option, option
from godmw.cli.progress import Progress
from godmw.cli.script import ScriptCommand, script_command
from godmw.cli.worker import QUIET, default_slots
from godmw.client.rundir import RunDir, default_path
from godmw.config import JobSettings, count_or_off, seconds_or_off
from godmw.errors import ExitCode, GodmwError
from godmw.worker.agent.facts import End

if TYPE_CHECKING:
    from godmw.worker.agent.shell import Agent

OUTCOMES = {"finished": ExitCode.OK, "failed": ExitCode.FAILED, "stopped": ExitCode.RESUMABLE}
SECOND_SIGNAL = 128
NOT_ON_DISK = "no state is on disk: this job cannot be resumed, start it anew"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the job, as they are handed to `godmw master`; None: its default."""

    minimum: int | None
    maximum: int | None
    restarts: str | None
    lease: float | None
    stall_timeout: str | None
    start_timeout: float | None

    def check(self, workers: int) -> None:
        """Raise UsageError here and now for what the master would refuse."""
        given: dict[str, Any] = {"target": workers}
        if self.minimum is not None:
            given["minimum"] = self.minimum
        if self.maximum is not None:
            given["maximum"] = self.maximum
        if self.restarts is not None:
            given["restarts"] = count_or_off(self.restarts, "--restarts")
        if self.lease is not None:
            given["lease_s"] = given["remote_lease_s"] = self.lease
        if self.stall_timeout is not None:
            given["stall_timeout_s"] = seconds_or_off(self.stall_timeout, "--stall-timeout")
        if self.start_timeout is not None:
            given["start_timeout_s"] = self.start_timeout
        JobSettings(**given)

    def arguments(self) -> list[str]:
        named = {
            "--min": self.minimum, "--max": self.maximum, "--restarts": self.restarts, "--lease": self.lease,
            "--stall-timeout": self.stall_timeout, "--start-timeout": self.start_timeout,
        }  # fmt: skip
        return [word for name, value in named.items() if value is not None for word in (name, str(value))]


@click.command("run", cls=ScriptCommand)
@option(
    "--workers", type=click.IntRange(1, 1024), metavar="N", help="Workers to start [one a device, else 1]."
)
@option("--min", "minimum", type=int, metavar="N", help="Pause below this many [1].")
@option("--max", "maximum", type=int, metavar="N", help="Never more than this many.")
@option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Where it is written; an unfinished job there is resumed.",
)
@option("--summary", type=click.Path(path_type=Path), help="Write the summary to this file too.")
@option("--restarts", metavar="N|off", help="Replacements of one worker in 10 minutes [3].")
@option(
    "--lease",
    type=float,
    metavar="S",
    help="Silence after which a host is taken for dead [2 here, 10 elsewhere].",
)
@option("--stall-timeout", metavar="S|off", help="Evict a worker that stands still while others wait [600].")
@option(
    "--start-timeout",
    type=float,
    metavar="S",
    help="The first generation waits this long for all workers [30].",
)
@option(
    "--threads", type=click.IntRange(1, 4096), metavar="N", help="Threads of each worker [cores / workers]."
)
@option("--tee", is_flag=True, help="Show the output of all workers, each line with whose it is.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, workers: int | None, minimum: int | None, maximum: int | None, run_dir: Path | None,
    summary: Path | None, restarts: str | None, lease: float | None, stall_timeout: str | None,
    start_timeout: float | None, threads: int | None, tee: bool, as_json: bool,
) -> int:  # fmt: skip
    """Train SCRIPT with N workers on this host."""
    line, label = script_command(ctx)
    slots = workers or default_slots()
    asked = Asked(
        minimum=minimum, maximum=maximum, restarts=restarts, lease=lease, stall_timeout=stall_timeout,
        start_timeout=start_timeout,
    )  # fmt: skip
    asked.check(slots)
    run = RunDir((run_dir or default_path(label, time.strftime("%Y%m%d-%H%M%S"))).absolute())

    from godmw.worker.agent import run_agent
    from godmw.worker.agent.master_process import MasterProcess, fresh

    before = fresh(run)
    master = MasterProcess(master_command(run, asked), run, os.environ)
    progress = Progress(run, as_json=as_json)
    agents: list[Agent] = []
    progress.start()
    try:
        end = run_agent(
            line,
            slots=slots,
            run_dir=run.path,
            threads=threads,
            tee=tee,
            sink=progress.sink,
            companion=master,
            on_start=agents.append,
        )
    finally:
        progress.stop()
    told = run.read_summary() if fresh(run) != before else None
    if summary is not None and told is not None:
        copy(run.summary, summary)
    words = "" if progress.passed_traceback or not agents else culprit(agents[0], told or {})
    return conclude(end, told, run, as_json, words)


def master_command(run: RunDir, asked: Asked) -> list[str]:
    """How the master is started; on loopback, unless GODMW_LISTEN says where."""
    listen = [] if "GODMW_LISTEN" in os.environ else ["--listen", "127.0.0.1:0"]
    return [
        sys.executable,
        "-m",
        "godmw",
        "master",
        "--json",
        "--run-dir",
        str(run.path),
        *listen,
        *asked.arguments(),
    ]


def copy(source: Path, target: Path) -> None:
    """Put a whole file there or none."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, fresh)
        os.replace(fresh, target)
    except OSError as error:
        click.echo(f"godmw: --summary {target}: {error.strerror}; it is in {source}", err=True)


def culprit(agent: Agent, told: dict[str, Any]) -> str:
    """The last words of the worker that ended the job, where a person has not seen its traceback yet."""
    if agent.supervision is None or told.get("outcome") != "failed":
        return ""
    named = str(told.get("reason") or "").partition(":")[0]
    report = agent.supervision.exits.get(named) or agent.supervision.first_failure
    return "" if report is None or report.worker in agent.shown else report.last_words


def conclude(end: End, told: dict[str, Any] | None, run: RunDir, as_json: bool, words: str) -> int:
    """Say how it ended; returns the exit code.  ``words``: what the worker that failed said last."""
    if told is None:
        if end.code in QUIET or end.code not in tuple(ExitCode):
            return say(end.code, end.reason, {"run_dir": str(run.path), "code": end.code}, as_json)
        raise GodmwError(end.reason or "the job failed", code=end.code, hint=end.hint or f"see {run.logs}")
    outcome = str(told.get("outcome"))
    code = int(OUTCOMES.get(outcome, ExitCode.INTERNAL))
    if outcome == "failed" and end.code:
        code = end.code
    if end.code > SECOND_SIGNAL:
        code = end.code
    result = {**told, "code": code, "run_dir": str(run.path)}
    reason = " ".join(str(told.get("reason") or "").split())
    if outcome == "failed":
        result.update(error=reason, hint=f"see {run.logs}")
        if not as_json:
            if words.strip():
                click.echo(words.strip(), err=True)
            click.echo(f"error: {reason}", err=True)
            click.echo(f"hint: see {run.logs}", err=True)
            return code
    return say(code, sentence(outcome, reason, told, run), result, as_json)


def sentence(outcome: str, reason: str, told: dict[str, Any], run: RunDir) -> str:
    """The last line of a run that did not fail."""
    loss = told.get("loss_last")
    shown = "" if loss is None else f", loss {loss:.4f}"
    recoveries = len(told.get("recoveries") or ())
    survived = f", {recoveries} recover{'y' if recoveries == 1 else 'ies'}" if recoveries else ""
    counts = f"{told['steps']} steps, {told['samples']} samples"
    text = f"{counts}{shown}{survived}, {told['wall_s']:.1f} s; {run.path}"
    if outcome == "stopped":
        return f"stopped ({reason}) after {text}; {NOT_ON_DISK}"
    return f"{outcome}: {text}"


def say(code: int, text: str, result: dict[str, Any], as_json: bool) -> int:
    if as_json:
        emit(result, as_json=True)
    elif text:
        click.echo(f"godmw: {text}", err=True)
    return code
