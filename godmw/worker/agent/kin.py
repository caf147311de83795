"""Finding and ending everything that a process started, however far it has gone from its parent.

Kin are known by a mark in the environment they were started with, which a fork and an exec both keep, or
by the session they live in, which a program that overwrites its environment keeps.  Run as a script this
is the *keeper*: a small process beside an agent that reads a pipe the agent holds.  When the pipe ends,
because the agent ended in whatever way, the keeper ends all kin, stopped ones too, and then itself.  It
is started with its parent's mark as its argument and without it in its environment, imports no package,
and decides nothing else.
"""

import os
import signal
import sys
import time
from collections.abc import Collection

END_WITHIN_S = 4.5
PAUSE_S = 0.01
DEAD = "ZX"


def stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and session of a process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    letter, parent, _group, session = data[data.rindex(b")") + 2 :].split(None, 4)[:4]
    return letter.decode(), int(parent), int(session)


def find(marks: Collection[str], sessions: Collection[int]) -> list[int]:
    """The processes started with all of `marks` (``NAME=value``) in their environment, or living in
    `sessions`.
    """
    wanted = {os.fsencode(mark) for mark in marks}
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        seen = stat(int(name))
        if seen is None or seen[0] in DEAD:
            continue
        if seen[2] in sessions or (wanted and wanted <= environment(int(name))):
            found.append(int(name))
    return found


def environment(pid: int) -> set[bytes]:
    """What a process was started with; empty when it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def end(marks: Collection[str], sessions: Collection[int], within_s: float = END_WITHIN_S) -> list[int]:
    """Kill all kin until none is found any more; returns those that were left after `within_s`."""
    deadline = time.monotonic() + within_s
    while (left := kill(marks, sessions)) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return left


def kill(marks: Collection[str], sessions: Collection[int]) -> list[int]:
    """Kill the kin that are there now, without waiting; returns them (not what they fork meanwhile)."""
    found = find(marks, sessions)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # it has just ended
    return found


def keep(mark: str) -> None:
    """The keeper: sessions come and go on stdin as lines ``+PID`` and ``-PID``; its end is the agent's."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    sessions: set[int] = set()
    left = b""
    while data := os.read(0, 4096):
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            (sessions.add if line[:1] == b"+" else sessions.discard)(int(line[1:]))
    end([mark], sessions)


if __name__ == "__main__":
    keep(sys.argv[1])
