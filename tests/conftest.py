"""What every test shares: the property tests replay the same examples on every run.

A failing random test must fail again: hypothesis is derandomised and has no deadline of its own (each test
has pytest's). Anything that only one room needs lives beside that room's tests.
"""

from hypothesis import settings

settings.register_profile("replayable", derandomize=True, deadline=None, database=None, max_examples=100)
settings.load_profile("replayable")
