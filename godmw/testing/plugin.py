"""The pytest fixture: ``pytest_plugins = ["godmw.testing.plugin"]`` in a conftest.

``cluster`` makes clusters and, when the test has passed, goes over the whole past of each.  This module is
the only one of the package that imports pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from godmw.testing.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Callable[..., Cluster]]:
    """A maker of `godmw.testing.Cluster`; takes its arguments."""
    made: list[Cluster] = []

    def make(*args: int, **kwargs: object) -> Cluster:
        made.append(Cluster(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.check()
