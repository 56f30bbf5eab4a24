"""The report shows the gold tables, needs no network, and believes no name."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.report import write_report
from tests.spark.world import World


class Reader(HTMLParser):
    """Collects elements and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.remove(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert not reader.links
    assert "script" not in reader.seen
    assert not re.search(r"https?://|@import|url\(", text)
    return reader


def test_the_report_draws_what_was_read(world: World) -> None:
    text = write_report(Store(world.tables))
    seen = read(text).seen
    assert seen.count("svg") >= 4
    assert seen.count("polyline") == 7
    assert "json/state" in text
    assert "unauthorized_publisher" in text


def test_empty_tables_are_said_to_be_empty(tmp_path: Path) -> None:
    text = write_report(Store(tmp_path))
    assert "svg" not in read(text).seen
    assert all(table.section.title in text and table.section.empty in text for table in CATALOG.gold.values())


def test_names_from_elsewhere_are_only_text(tmp_path: Path) -> None:
    store = Store(tmp_path)
    evil = "<script>alert(1)</script>\"'"
    counts = {"events": [2], "deliveries": [2], "unknown": [0], "receivers": [1], "receipts": [2]}
    table = pa.table({"channel": [evil], "subscribers": [1], **counts})
    store.table("gold.fan_out").put_hour("2026-01-01T00", table, "x")
    text = write_report(store)
    read(text)
    assert "&lt;script&gt;" in text


def test_nodes_are_shown_by_their_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    seen = datetime(2026, 1, 1, tzinfo=UTC)
    node = {"node_id": -1, "origin": 5, "entity": None, "name": "west-rover", "subnet": None, "first_seen": seen,
            "last_seen": seen, "recorders": 1}  # fmt: skip
    store.table("gold.nodes").put_hour(None, pa.Table.from_pylist([node]), "x")
    talker = {"rank": 1, "origin": 5, "channels": 1, "events": 2, "bytes": 3}
    store.table("gold.top_talkers").put_hour("2026-01-01T00", pa.Table.from_pylist([talker]), "x")
    text = write_report(store)
    read(text)
    assert "west-rover <small>0000000000000005</small>" in text
    assert text.count(">west-rover<") == 1
