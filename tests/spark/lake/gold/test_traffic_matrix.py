"""Traffic between subnets equals that of plain Python."""

from typing import Any

from meshbus.spark.lake.gold.traffic_matrix import TABLE
from tests.spark import oracle
from tests.spark.oracle import as_set
from tests.spark.world import World


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    expected = oracle.traffic_matrix(read["silver.events"], world.packets.to_pylist())
    assert as_set(read["gold.traffic_matrix"]) == as_set(expected)


def test_the_section_adds_events_and_packets_of_a_pair() -> None:
    row = {"src": 0x03000000, "dst": None, "channel": "a", "events": 2, "bytes": 9, "forwarded": 3, "dropped": 4}
    assert "3 → unknown: 10 passed, 8 dropped" in TABLE.section.draw([row, row])
