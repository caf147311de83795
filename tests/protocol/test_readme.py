"""The page about the protocol is the code's own, and every message says what it is for."""

import inspect

import pytest

from godmw.protocol import readme
from godmw.protocol.fields import specs
from godmw.protocol.messages import MESSAGES, Row


def test_the_page_is_what_the_table_says(rewrite: bool) -> None:
    if rewrite:
        readme.PATH.write_text(readme.render(), encoding="utf-8")
    seen = readme.PATH.read_text(encoding="utf-8")
    assert seen == readme.render(), "python -m godmw.protocol.readme"


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: row.cls.__name__)
def test_a_message_is_described(row: Row) -> None:
    page = readme.render()
    assert f"| {row.number} | {row.cls.__name__} | {row.direction.value} |" in page
    section = page.split(f"### {row.number} {row.cls.__name__}\n")[1].split("\n#")[0]
    prose, fields = section.strip().split("\n\nFields: ")
    assert prose == inspect.getdoc(row.cls)
    assert len(prose) > 20
    assert all(f"`{name}` " in fields for name in specs(row.cls))
