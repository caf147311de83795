"""Names of things: jobs, workers, agents, and the job's token.

An id is short, printable and safe as a file name, because logs are named after workers; the same rule is
checked on everything that comes over the wire.  Workers and agents are numbered by the master; jobs and
tokens are random.
"""

import re
import secrets

ID_LIMIT = 64
TOKEN_BYTES = 24
_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{ID_LIMIT - 1}}}")


def is_id(text: str) -> bool:
    """Whether `text` may name a job, worker, agent or admin: 1 to 64 of A-Za-z0-9._-, no . or - first."""
    return _ID.fullmatch(text) is not None


def worker_id(number: int) -> str:
    """The worker with this number: ``w0``, ``w1``, …"""
    return f"w{number}"


def agent_id(number: int) -> str:
    """The agent with this number: ``a0``, ``a1``, …"""
    return f"a{number}"


def new_id(prefix: str) -> str:
    """A random id, for a job or an admin: `prefix`, a dash and 12 hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(6)}"


def new_token() -> str:
    """A fresh secret for one job: 192 random bits in URL-safe letters."""
    return secrets.token_urlsafe(TOKEN_BYTES)
