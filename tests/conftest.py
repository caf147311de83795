"""What every test shares: the property tests replay the same examples on every run.

A failing random test must fail again: hypothesis is derandomised and has no deadline of its own (each test
has pytest's). Anything that only one room needs lives beside that room's tests.
Text files of expected bytes and conversations are written anew by `pytest --rewrite`, and read by a person.
"""

import pytest
from hypothesis import settings

settings.register_profile("replayable", derandomize=True, deadline=None, database=None, max_examples=100)
settings.load_profile("replayable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write goldens and transcripts anew")


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether text files of what is expected are to be written, not compared."""
    return bool(request.config.getoption("--rewrite"))
