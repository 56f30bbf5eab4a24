"""Traffic between subnets equals that of plain Python."""

from typing import Any

from meshbus.spark.lake.gold.traffic_matrix import TABLE
from tests.spark import oracle
from tests.spark.oracle import as_set
from tests.spark.world import World


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    expected = oracle.traffic_matrix(read["silver.events"], world.packets.to_pylist())
    assert as_set(read["gold.traffic_matrix"]) == as_set(expected)


def test_the_section_never_adds_events_and_packets() -> None:
    row = {"src": 0x03000000, "dst": None, "channel": "a", "events": 2, "bytes": 9, "forwarded": 3, "dropped": 4}
    text = TABLE.section.draw([row, row])
    assert "3 → unknown: 6 packets passed, 8 dropped" in text
    assert "3 → unknown: 4 events passed<" in text
    assert "10 " not in text


def test_the_section_leaves_out_what_nothing_is_known_about() -> None:
    row = {"src": 0, "dst": 0, "channel": "a", "events": 2, "bytes": 9, "forwarded": 0, "dropped": 0}
    assert "packets" not in TABLE.section.draw([row])
    assert "events passed" not in TABLE.section.draw([{**row, "events": 0, "dropped": 1}])
