"""What reaches an agent's decisions and what they ask for: the events and actions of ``Supervision``.

Plain frozen values without a socket, a process or a clock in them.  An event is a fact told once; an
action is performed in the order in which it stands in the list.
"""

from __future__ import annotations

from dataclasses import dataclass

from godmw.protocol.fields import Checked
from godmw.protocol.messages import Header

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection to the master stands."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to the master is gone; another is tried for ever."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A valid message of the master."""

    header: Header
    message: Checked


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """The master speaks another version of the protocol."""

    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The process asked for by ``Start`` runs."""

    worker: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The process asked for by ``Start`` could not be started."""

    worker: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A child was waited for.  ``signal`` 0: it exited with ``code``."""

    worker: str
    incarnation: int
    code: int
    signal: int
    last_words: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The state letters of the children, by worker."""

    letters: dict[str, str]


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process was sent SIGINT, SIGTERM or SIGHUP."""

    signal: int


@dataclass(frozen=True, slots=True)
class MasterEnded:
    """The master that this agent started has ended and is not started again."""

    code: int
    reason: str
    hint: str


Event = (
    Tick | Connected | Disconnected | Heard | OtherVersion | Started | StartFailed | Exited | Observed
    | Signalled | MasterEnded
)  # fmt: skip


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Send:
    """Give ``message`` to the master; lost when the connection is."""

    message: Checked


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker process in a slot; answered by ``Started`` or ``StartFailed``."""

    worker: str
    incarnation: int
    slot: int
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Send ``signal`` to the process group of a child."""

    pid: int
    signal: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """The child has exited: end whatever it started that still runs."""

    worker: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class SignalMaster:
    """Send ``signal`` to the master this agent started."""

    signal: int


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the person at the terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The agent ends: exit code, what was seen, what to type."""

    code: int
    reason: str
    hint: str


Action = Send | Start | Signal | Sweep | SignalMaster | Say | End


def order(worker: str) -> tuple[int, int, str]:
    """Sorts ``w2`` before ``w10``, and names of another form after them."""
    digits = worker[1:]
    return (0, int(digits), worker) if digits.isascii() and digits.isdigit() else (1, 0, worker)
