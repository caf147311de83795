"""Elastic data-parallel training.

`import godmw` is cheap on purpose: commands, agents and the master must start without torch. The public
names are found on first use, in the room that owns them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godmw.client.handle import connect as connect
    from godmw.client.launch import start as start
    from godmw.frontends.pytorch import DistributedTrainingManager as DistributedTrainingManager
    from godmw.worker.job import device as device
    from godmw.worker.job import join as join

__version__ = "0.1.0"

# public name -> module that defines it
_PUBLIC = {
    "DistributedTrainingManager": "godmw.frontends.pytorch",
    "connect": "godmw.client.handle",
    "device": "godmw.worker.job",
    "join": "godmw.worker.job",
    "start": "godmw.client.launch",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    """Import the room of a public name, once (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'godmw' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
