"""Conversations between the shipped machines, told in text files named by their story.

`pytest --rewrite` writes down what is said now; a person reads the difference before it is kept.
Invariants are checked while a story is replayed and at its end.
"""

from pathlib import Path

import pytest

from tests.fakes.conversation import replay, stories

FOLDER = Path(__file__).parents[1] / "transcripts"


@pytest.mark.parametrize("path", stories(FOLDER), ids=lambda path: path.stem)
def test_a_story(path: Path, rewrite: bool) -> None:
    told = path.read_text(encoding="utf-8")
    seen, _ = replay(told)
    if rewrite:
        path.write_text(seen, encoding="utf-8")
        told = seen
    assert seen == told, f"{path.name} goes otherwise now: pytest --rewrite, and read the difference"


def test_there_are_stories() -> None:
    assert len(stories(FOLDER)) >= 20
