"""What a person may set about a job, checked once, and the address a worker joins at.

`JobSettings` holds every number the membership machines go by, with the defaults of the paper; an
impossible combination is a `UsageError` that says which two options disagree.  `JoinAddress` is the one
line a person pastes; the rule that its token never appears in an argument list lives in `join_address`.  No
environment is read here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

from godmw.errors import UsageError

MAX_WORKERS = 1024
MAX_JOIN_FILE_BYTES = 4096
SCHEME = "godmw://"
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Everything the Coordinator is told about its job.  `maximum` 0: the larger of S and the target at the
    start.

    `stall_timeout_s` None: nobody is evicted for standing still.  `restarts` None: no limit.  Raises
    UsageError.
    """

    job: str = "job"
    token: str = ""
    term: int = 1
    address: str = ""  # where the master listens, host:port
    run_dir: str = ""
    local_host: str = ""  # a worker whose host has this name is on the master's own host
    minimum: int = 1
    maximum: int = 0
    target: int = 1
    lease_s: float = 2.0  # silence of a process on the master's host
    remote_lease_s: float = 10.0  # silence of a process elsewhere
    beat_s: float = 0.25
    start_timeout_s: float = 30.0  # the first generation forms this long after the first worker is prepared
    stall_timeout_s: float | None = 600.0
    restarts: int | None = 3  # replacements of one slot in any `restart_window_s`
    restart_window_s: float = 600.0
    orphan_s: float = 600.0  # members without a master pause after this

    def __post_init__(self) -> None:
        self._check_size()
        for name in ("beat_s", "lease_s", "remote_lease_s", "restart_window_s", "orphan_s"):
            _check_positive(name, getattr(self, name))
        if self.stall_timeout_s is not None:
            _check_positive("stall_timeout_s", self.stall_timeout_s)
        if not 0 <= self.start_timeout_s < math.inf:
            raise UsageError(f"--start-timeout {self.start_timeout_s}: seconds, 0 or more, were expected")
        if self.restarts is not None and self.restarts < 0:
            raise UsageError(f"--restarts {self.restarts}: 0 or more, or off, was expected")
        lease_s = min(self.lease_s, self.remote_lease_s)
        if lease_s < 2 * self.beat_s:
            raise UsageError(
                f"a lease of {lease_s} s is shorter than two beats of {self.beat_s} s",
                hint=f"every healthy worker would be lost: --lease {2 * self.beat_s} or more",
            )

    def _check_size(self) -> None:
        if not 1 <= self.minimum <= MAX_WORKERS:
            raise UsageError(f"--min {self.minimum}: 1 to {MAX_WORKERS} workers were expected")
        if not 0 <= self.maximum <= MAX_WORKERS:
            raise UsageError(f"--max {self.maximum}: 1 to {MAX_WORKERS} workers were expected")
        if not 0 <= self.target <= MAX_WORKERS:
            raise UsageError(f"{self.target} workers asked for: 0 to {MAX_WORKERS} were expected")
        if self.maximum and self.minimum > self.maximum:
            raise UsageError(
                f"--min {self.minimum} is above --max {self.maximum}",
                hint=f"--min {self.maximum} --max {self.maximum}, or leave --max out",
            )
        if self.maximum and self.target > self.maximum:
            raise UsageError(
                f"{self.target} workers asked for, above --max {self.maximum}",
                hint=f"--max {self.target}, or fewer workers",
            )


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        option = "--" + name.removesuffix("_s").replace("_", "-")
        raise UsageError(f"{option} {value}: a number of seconds above 0 was expected")


def seconds_or_off(text: str, option: str) -> float | None:
    """``600`` -> 600.0, ``off`` -> None.  Raises UsageError naming `option`."""
    if text == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{option} {text}: a number of seconds above 0, or off, was expected")
    return value


def count_or_off(text: str, option: str) -> int | None:
    """``3`` -> 3, ``off`` -> None.  Raises UsageError naming `option`."""
    if text == "off":
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{option} {text}: a whole number, or off, was expected")
    return int(text)


def parse_endpoint(text: str, what: str = "address") -> tuple[str, int]:
    """``HOST:PORT`` -> (host, port); IPv6 in brackets, not part of the host.  Raises UsageError."""
    host, _, port = text.rpartition(":")
    numeric = re.fullmatch(r"[0-9]{1,5}", port) is not None
    if not _HOST.fullmatch(host) or not numeric or int(port) > 65535:
        bare_ipv6 = text.count(":") > 1
        hint = "an IPv6 address stands in brackets: [::1]:7000" if bare_ipv6 else "example: 10.0.0.1:7000"
        raise UsageError(f"{what} {text!r}: HOST:PORT was expected", hint=hint)
    return host.strip("[]"), int(port)


def format_endpoint(host: str, port: int) -> str:
    """(host, port) -> ``HOST:PORT``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclasses.dataclass(frozen=True, slots=True)
class JoinAddress:
    """``godmw://HOST:PORT/TOKEN``, the line to paste; `token` is empty where the address came without."""

    host: str
    port: int
    token: str = dataclasses.field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> JoinAddress:
        """Read what `format` wrote, the token optional.  Raises UsageError, never with the token."""
        place, slash, token = text.removeprefix(SCHEME).partition("/")
        if not text.startswith(SCHEME) or (slash and not _TOKEN.fullmatch(token)):
            shown = place if text.startswith(SCHEME) else text.split("/")[0]
            raise UsageError(
                f"join address {shown!r}: {SCHEME}HOST:PORT/TOKEN was expected",
                hint="paste the GODMW_JOIN line that `godmw master` printed",
            )
        host, port = parse_endpoint(place, "join address")
        if port == 0:
            hint = "the master prints the port it listens on"
            raise UsageError(f"join address {place!r}: nobody listens on port 0", hint=hint)
        return cls(host, port, token)

    @property
    def endpoint(self) -> str:
        """``HOST:PORT``."""
        return format_endpoint(self.host, self.port)

    def format(self) -> str:
        """The whole line, token and all: for the environment and for files, never for an argument list or a
        log.
        """
        return f"{self.bare()}/{self.token}" if self.token else self.bare()

    def bare(self) -> str:
        """Without the token: for people's eyes."""
        return SCHEME + self.endpoint


def read_join_file(path: str | Path) -> JoinAddress:
    """The address in a file: one line, with or without ``GODMW_JOIN=`` before it.  Raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_JOIN_FILE_BYTES).strip()
    except (OSError, ValueError) as error:
        seen = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"join file {str(path)!r}: {seen}") from error
    return JoinAddress.parse(text.removeprefix("GODMW_JOIN=").strip("'\""))


def join_address(argument: str | None, environment: str | None) -> JoinAddress | None:
    """Where to join, from ``--join`` and ``GODMW_JOIN``; each an address or ``@FILE``; None when neither is
    given.

    An argument list is readable by everybody on the machine, so a token in `argument` is refused; an
    address there takes its token from `environment`.  Raises UsageError.
    """
    given = _address_or_file(environment) if environment else None
    if not argument:
        if given and not given.token:
            raise UsageError(f"GODMW_JOIN {given.bare()} has no token", hint=_WITH_TOKEN)
        return given
    asked = _address_or_file(argument)
    if asked.token and not argument.startswith("@"):
        raise UsageError(
            "--join holds the job's token, and argument lists are readable by everybody on this machine",
            hint=f"GODMW_JOIN='{asked.bare()}/…' godmw worker SCRIPT, or --join @FILE",
        )
    token = asked.token or (given.token if given else "")
    if not token:
        raise UsageError(f"--join {asked.bare()} and no token", hint=_WITH_TOKEN)
    return JoinAddress(asked.host, asked.port, token)


_WITH_TOKEN = "set GODMW_JOIN to the whole line that `godmw master` printed, or use --join @FILE"


def _address_or_file(text: str) -> JoinAddress:
    return read_join_file(text[1:]) if text.startswith("@") else JoinAddress.parse(text)
