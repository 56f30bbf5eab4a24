"""The document of the live page: what is not known is null, and everything in it is shown."""

import re
from types import NoneType
from typing import get_args, get_type_hints

import msgspec
import pytest

from meshbus.web import document
from meshbus.web.document import Document, Flow, NodeState
from tests.house.tree import PACKAGE

STATIC = PACKAGE / "web" / "static"
SCRIPT = "".join((STATIC / name).read_text("utf-8") for name in ("page.js", "topology.js", "table.js", "format.js"))
ROWS = [one for one in vars(document).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]
NOT_SHOWN = {"nat", "bytes_per_s", "appended", "appended_bytes"}
"""Fields for those who read the document by program; the page shows what they say in another form, or not at all."""


def test_what_is_not_known_is_null() -> None:
    assert msgspec.json.encode(Flow(events=None, bytes=0)) == (
        b'{"events":null,"bytes":0,"events_per_s":null,"bytes_per_s":null}'
    )
    optional = {name for name, hint in get_type_hints(Document).items() if NoneType in get_args(hint)}
    assert optional == {"logs", "consumers", "daemons", "forwarded_per_s"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_the_page_shows_every_field(row: type[msgspec.Struct]) -> None:
    tables = {"peers", "channels", "losses", "logs", "replicas", "consumers", "daemons"}  # by their id
    fields = set(row.__struct_fields__) - NOT_SHOWN - tables
    missing = [field for field in fields if not re.search(rf"\b{field}\b", SCRIPT)]
    assert not missing


def test_every_state_has_a_color() -> None:
    style = (STATIC / "page.css").read_text("utf-8")
    plain = {NodeState.HEARD}  # as everything that needs no attention
    assert [state for state in NodeState if f".state.{state}" not in style and state not in plain] == []
