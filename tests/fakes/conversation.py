"""A story in a text file, replayed on a `Cluster`: commands, four dashes, and what was then said and
done.

A file opens with lines that begin with ``#``, the story. Then blocks: commands, one a line, a line
``----``, and the transcript since the block before. A command is a method of `godmw.testing.Cluster`
with its arguments (``run_until step=3``, ``kill w1``), ``cluster …`` makes it, and `EXTRA` has the
few that only conversations need.
"""

import shlex
from pathlib import Path
from typing import Any

from godmw.testing.cluster import Cluster

HIDDEN = ("→ master: Committed", "→ master: Prepared")
ALIAS = {"run": "run_until", "start": "start_master", "crash": "crash_master"}


class Conversation:
    """One replay."""

    def __init__(self) -> None:
        self.job: Cluster | None = None
        self.shown = 0
        self.detail = False

    def block(self, commands: list[str]) -> list[str]:
        """Carry commands out; the transcript they led to."""
        said: list[str] = []
        for command in commands:
            verb, *words = shlex.split(command)
            args, kwargs = arguments(words)
            if verb == "cluster":
                self.job = Cluster(*args, **kwargs)
                continue
            assert self.job is not None, "a conversation begins with: cluster …"
            extra = getattr(self, f"do_{verb}", None)
            answer = (
                extra(*args, **kwargs)
                if extra
                else getattr(self.job, ALIAS.get(verb, verb))(*args, **kwargs)
            )
            if answer is not None:
                said.append(f"{command} → {answer}")
        return [*self.lines(), *said]

    def lines(self) -> list[str]:
        assert self.job is not None
        fresh, self.shown = self.job.world.lines[self.shown :], len(self.job.world.lines)
        texts = [str(line) for line in fresh if self.detail or not line.detail]
        return [text for text in texts if not any(hidden in text for hidden in HIDDEN)]

    # ------------------------------------------------------------------ commands of conversations alone

    def do_skip(self) -> None:
        """What has been said so far is not of this story."""
        self.lines()

    def do_detail(self) -> None:
        """From here shards, contributions and ready words are shown, too."""
        self.detail = True

    def do_late(self, source: str, target: str) -> None:
        """What `source` says to `target` does not arrive until `mend`."""
        assert self.job is not None
        self.job.world.cut(source, target, one_way=True)

    def do_show(self, what: str, *args: Any) -> Any:
        """``show state w1``, ``show assignment 3``, ``show phase``."""
        value = getattr(self.job, what)
        return value(*args) if callable(value) else value


def arguments(words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = plain(value)
        else:
            args.append(plain(word))
    return args, kwargs


def plain(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return {"none": None, "true": True, "false": False}.get(word, word)


def replay(text: str, talk: Conversation | None = None) -> tuple[str, Conversation]:
    """The same file with what is said now; a `talk` that is given can be looked at when this raises."""
    head, _, body = text.partition("\n\n")
    assert all(line.startswith("#") for line in head.splitlines()), "a conversation opens with its story"
    out, talk = [head], talk or Conversation()
    for block in body.strip("\n").split("\n\n"):
        commands = [line for line in block.partition("----")[0].splitlines() if line.strip()]
        out.append("\n".join([*commands, "----", *talk.block(commands)]))
    assert talk.job is not None
    talk.job.check()
    return "\n\n".join(out) + "\n", talk


def stories(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt"))
