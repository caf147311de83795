"""The fixture that users get, as they get it."""

from godmw.testing.plugin import cluster

__all__ = ["cluster"]
