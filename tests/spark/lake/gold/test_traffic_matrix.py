"""Traffic between subnets equals that of plain Python."""

from typing import Any

from meshbus.spark.lake.gold.traffic_matrix import TABLE
from meshbus.spark.lake.goldtable import no_scans
from tests.spark import oracle
from tests.spark.figure import values
from tests.spark.oracle import as_set
from tests.spark.world import World


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    expected = oracle.traffic_matrix(read["silver.events"], world.packets.to_pylist())
    assert as_set(read["gold.traffic_matrix"]) == as_set(expected)


def test_the_section_never_adds_events_and_packets() -> None:
    row = {"src": 0x03000000, "dst": None, "channel": "a", "events": 2, "bytes": 9, "forwarded": 3, "dropped": 4}
    packets, events = TABLE.section.draw([row, row], no_scans).charts
    assert [cell["said"] for cell in values(packets)] == ["3 → unknown: 6 packets passed, 8 dropped"]
    assert [cell["said"] for cell in values(events)] == ["3 → unknown: 4 events passed"]


def test_the_section_leaves_out_what_nothing_is_known_about() -> None:
    row = {"src": 0, "dst": 0, "channel": "a", "events": 2, "bytes": 9, "forwarded": 0, "dropped": 0}
    (events,) = TABLE.section.draw([row], no_scans).charts
    assert "events" in values(events)[0]["said"]
    (packets,) = TABLE.section.draw([{**row, "events": 0, "dropped": 1}], no_scans).charts
    assert "packets" in values(packets)[0]["said"]


def test_the_table_of_the_section_adds_up_hours() -> None:
    row = {"src": 0, "dst": 0, "channel": None, "events": 2, "bytes": 9, "forwarded": 0, "dropped": 1}
    (shown,) = TABLE.section.draw([row, row], no_scans).rows
    assert (shown["channel"], shown["events"], shown["dropped"]) == (None, 4, 2)
