"""The report shows every gold table, the readers of the logs and a replayed policy, and says what is empty."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.replay import Change, Replay
from meshbus.spark.run.report import write_report
from tests.spark.run.test_reportpage import read
from tests.spark.world import World


def test_the_report_draws_what_was_read(world: World) -> None:
    text = write_report(Store(world.tables))
    assert read(text).seen.count("figure") >= 6
    assert "json/state" in text
    assert "unauthorized_publisher" in text
    assert "Every reader has read everything." in text


def test_empty_tables_are_said_to_be_empty(tmp_path: Path) -> None:
    text = write_report(Store(tmp_path))
    assert "figure" not in read(text).seen
    assert all(table.section.title in text and table.section.empty in text for table in CATALOG.gold.values())
    assert "No pipeline has read these tables." in text
    assert "No policy was replayed" in text


def test_every_title_is_a_question() -> None:
    assert all(table.section.title.endswith("?") for table in CATALOG.gold.values())


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
    assert '<td title="0000000000000005" data-v="west-rover">west-rover</td>' in text


def test_a_replayed_policy_is_shown_before_and_after(tmp_path: Path) -> None:
    changes = (Change("poses", "3.1", "3.2", "not_ancestor", "forward", 7, 70),)
    text = write_report(Store(tmp_path), replay=Replay(9, 7, changes, ()))
    assert read(text).seen.count("figure") == 1
    assert "The policy changes the verdict of 7 of 9 packets." in text
    assert "poses: 3.1 \\u2192 3.2" in text
