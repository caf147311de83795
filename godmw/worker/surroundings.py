"""What a worker finds around it: the address of its master, its name, its host, and where its main
thread stands.

A value made by the entries that may read the environment (DESIGN 9) and handed to the control;
nothing here reads it.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import sysconfig
import threading
from collections.abc import Mapping
from types import FrameType

from godmw.config import JoinAddress
from godmw.errors import Unreachable, UsageError

PATIENCE_S = 20.0
BACKENDS = ("gloo", "nccl")
_LIBRARIES = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), sysconfig.get_paths()["purelib"])


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """``worker`` is empty for a script started by hand: the master names it."""

    join: JoinAddress
    worker: str = ""
    incarnation: int = 0
    agent: str = ""
    host: str = ""
    run_id: str = ""
    backend: str = "gloo"
    patience_s: float = PATIENCE_S

    @classmethod
    def read(cls, environment: Mapping[str, str], join: JoinAddress) -> Surroundings:
        """From the variables that an agent gives (see ``worker/agent/environment.py``)."""
        return cls(
            join=join,
            worker=environment.get("GODMW_WORKER", ""),
            incarnation=int(environment.get("GODMW_INCARNATION", "0") or 0),
            agent=environment.get("GODMW_AGENT", ""),
            host=socket.gethostname()[:64],
            run_id=os.path.basename(environment.get("GODMW_RUN_DIR", "").rstrip("/")),
            backend=_backend(environment.get("GODMW_BACKEND") or "gloo"),
        )

    def unreachable(self) -> Unreachable:
        """Nobody welcomed this worker in time."""
        return Unreachable(
            f"no master answered at {self.join.bare()} within {self.patience_s:g} s",
            hint="is it running? `godmw master` prints the line; or unset GODMW_JOIN to train alone",
        )

    def own_address(self) -> str:
        """The local address of this host's route to the master: what other workers can reach, without
        guessing.
        """
        family = socket.AF_INET6 if ":" in self.join.host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((self.join.host, self.join.port))
                return str(probe.getsockname()[0])
        except OSError as error:
            raise Unreachable(
                f"this host has no route to {self.join.bare()}: {error.strerror or error}",
                hint="check the host name in GODMW_JOIN",
            ) from error


def _backend(name: str) -> str:
    if name not in BACKENDS:
        raise UsageError(f"GODMW_BACKEND={name}: one of {', '.join(BACKENDS)} was expected")
    return name


def main_thread_at(thread: threading.Thread) -> str:
    """``file:line function`` of the innermost frame of the user's own code, else of the innermost frame."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    innermost = frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            break
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
