"""The page "Write a protocol test": its code runs, as it stands there."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import godmw.testing

pytest_plugins: list[str] = []
PAGE = Path(godmw.testing.__file__).with_name("README.md").read_text(encoding="utf-8")
CODE = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
TESTS: dict[str, Callable[..., None]] = {}
exec(compile(CODE, "godmw/testing/README.md", "exec"), TESTS)  # the page is ours


@pytest.mark.parametrize("name", [name for name in TESTS if name.startswith("test_")])
def test_the_page_runs(name: str, cluster: Callable[..., godmw.testing.Cluster]) -> None:
    TESTS[name](cluster)


def test_the_page_names_what_there_is() -> None:
    for name in re.findall(r"`(\w+)\([^`]*\)`", PAGE):
        assert hasattr(godmw.testing.Cluster, name) or hasattr(godmw.testing, name), name
