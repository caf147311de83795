"""What users' tests import: `Cluster`, a job under a virtual clock, and `RawPeer`, bytes against a real
master.

The pytest fixture is in `godmw.testing.plugin`. Both names are found on first use: `RawPeer` needs ZeroMQ,
and a training script that only wants `godmw.testing.faults` pays for neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godmw.testing.cluster import Cluster as Cluster
    from godmw.testing.cluster import Stalled as Stalled
    from godmw.testing.raw_peer import RawPeer as RawPeer

_PUBLIC = {
    "Cluster": "godmw.testing.cluster",
    "RawPeer": "godmw.testing.raw_peer",
    "Stalled": "godmw.testing.cluster",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'godmw.testing' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
