"""The command `godmw`: finds the verb, runs it, and turns every ending into an exit code.

One verb a file, imported only when it is used: `godmw status` pays for itself alone. The table below
names the verbs and what `godmw --help` says of them; `godmw.cli.<verb>` holds the click command as
`command`. A verb returns None or an exit code, or raises `GodmwError`; it never formats an error. Errors
are one line and a hint on stderr, or one line of JSON on stdout under `--json`.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from godmw import __version__
from godmw.cli.options import to_json
from godmw.errors import ExitCode, GodmwError, InternalError, UsageError

# verb -> its line in `godmw --help`; the module is godmw.cli.<verb>
VERBS = {
    "demo": "A small real training that loses workers and gets them back.",
    "rehearse": "Your own script on 3 workers under a kill, a freeze, a join and more; a checklist.",
    "master": "The process that decides who is in a job; prints the line that starts its workers.",
    "status": "Where a job stands.",
    "events": "What happened to a job.",
    "logs": "What a worker has printed.",
    "scale": "Set how many workers a job should have.",
    "drain": "Let a worker leave at the next boundary.",
    "evict": "Remove a worker now.",
    "pause": "Hold a job, its state in memory.",
    "resume": "Let a paused job go on.",
    "stop": "End a job early.",
    "run": "Train a script with N workers on this host.",
    "worker": "Start worker processes here and join them to a master.",
    "audit": "Prove that every sample of every epoch went into exactly one step.",
    "env": "What is installed here, and whether the native kernels are.",
}


class Verbs(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"godmw.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise UsageError(f"no such command: {args[0]}", hint=nearest(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def nearest(verb: str) -> str:
    """What to type instead."""
    from difflib import get_close_matches

    close = get_close_matches(verb, VERBS, n=1)
    return f"did you mean: godmw {close[0]}" if close else "godmw --help lists the commands"


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(__version__, message="godmw %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Elastic data-parallel training: workers come, go and die; no step is lost."""
    if ctx.invoked_subcommand is None:
        raise UsageError("no command given", hint="godmw --help lists the commands")


def wants_json(args: Sequence[str]) -> bool:
    """Whether `--json` is godmw's here: what follows a script, a module or `--` is the script's."""
    for arg in args:
        if arg == "--json":
            return True
        if arg in ("--", "-m") or arg.endswith(".py"):
            return False
    return os.environ.get("GODMW_JSON", "").lower() in ("1", "true", "yes", "on", "t", "y")


def report(error: GodmwError, *, as_json: bool) -> int:
    """Say what went wrong, once; returns the exit code."""
    if as_json:
        click.echo(to_json(error.as_dict()))
    else:
        click.echo(f"error: {error.message}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
    return int(error.code)


def usage(error: click.UsageError) -> UsageError:
    """Click's complaint in our form: one line, and where to look."""
    path = error.ctx.command_path if error.ctx else "godmw"
    return UsageError(" ".join(error.format_message().split()), hint=f"{path} --help")


def run(args: Sequence[str]) -> int:
    """Run one command line; returns its exit code and never raises."""
    as_json = wants_json(args)
    try:
        ended: Any = cli.main(args=list(args), prog_name="godmw", standalone_mode=False)
        sys.stdout.flush()
    except GodmwError as error:
        return report(error, as_json=as_json)
    except click.UsageError as error:
        return report(usage(error), as_json=as_json)
    except click.ClickException as error:
        return report(GodmwError(error.format_message()), as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # the reader of a pipe (`godmw events | head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        import traceback

        traceback.print_exc()
        fault = InternalError(f"{type(error).__name__}: {error}", hint="this is a fault of godmw: report it")
        return report(fault, as_json=as_json)
    return ended if isinstance(ended, int) and not isinstance(ended, bool) else ExitCode.OK


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The console script."""
    sys.exit(int(run(sys.argv[1:] if args is None else args)))
