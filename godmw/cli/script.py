"""The part of a command line that is the user's: SCRIPT or ``-m MODULE``, and everything after it.

Click would take options behind the script for its own; ``ScriptCommand`` cuts the line first, knowing
which of the command's options take a value.  The script is looked for before anything is started.
"""

from __future__ import annotations

import importlib.machinery
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from godmw.errors import UsageError

KEY = "godmw.script"


class ScriptCommand(click.Command):
    """A command that ends in ``(SCRIPT | -m MODULE) [ARGS]...``; ``script_command`` gives what was found."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, theirs = self.cut(args)
        ctx.meta[KEY] = theirs
        return super().parse_args(ctx, ours)

    def cut(self, args: list[str]) -> tuple[list[str], list[str]]:
        """What is the command's, and what begins with the script or ``-m``."""
        valued = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        index = 0
        while index < len(args):
            word = args[index]
            if word == "--":
                return args[:index], args[index + 1 :]
            if word == "-m" or not word.startswith("-") or word == "-":
                return args[:index], args[index:]
            index += 2 if word in valued else 1
        return args, []

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "(SCRIPT | -m MODULE) [ARGS]..."]


def script_command(ctx: click.Context) -> tuple[list[str], str]:
    """(the command line that runs the script under this Python, its short name).  Raises UsageError."""
    words: list[str] = ctx.meta[KEY]
    usage = f"{ctx.command_path} --help"
    if not words or words == ["-m"]:
        raise UsageError("no script given", hint=f"{ctx.command_path} [OPTIONS] SCRIPT [ARGS]...; {usage}")
    if words[0] == "-m":
        check_module(words[1])
        return [sys.executable, *words], words[1]
    check_script(words[0])
    return [sys.executable, *words], words[0]


def check_script(name: str) -> None:
    """Raise UsageError unless there is such a file."""
    path = Path(name)
    if path.is_file():
        return
    if path.is_dir():
        raise UsageError(f"{name} is a directory, a script was expected", hint="for a package: -m PACKAGE")
    folder = path.parent
    near = (
        get_close_matches(path.name, [item.name for item in folder.glob("*.py")], n=1)
        if folder.is_dir()
        else []
    )
    hint = f"did you mean: {folder / near[0]}" if near else f"looked in {folder.absolute()}"
    raise UsageError(f"no such script: {name}", hint=hint)


def check_module(name: str) -> None:
    """Raise UsageError unless the module's first package can be found as ``python -m`` would."""
    top = name.partition(".")[0]
    if top in sys.builtin_module_names:
        return
    if importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
        raise UsageError(
            f"no such module: {name}", hint=f"python -m {name} must find it from this directory"
        )
