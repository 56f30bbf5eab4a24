"""The ranking of publishers equals that of plain Python."""

from typing import Any

from meshbus.spark.lake.gold.top_talkers import TABLE
from meshbus.spark.lake.goldtable import no_scans
from tests.spark import oracle
from tests.spark.oracle import as_set


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]]) -> None:
    assert as_set(read["gold.top_talkers"]) == as_set(oracle.top_talkers(read["silver.events"]))


def test_the_section_sums_the_hours_of_a_publisher() -> None:
    rows = [{"origin": origin, "events": 1, "bytes": size} for origin, size in ((-1, 10), (5, 30), (-1, 25))]
    shown = TABLE.section.draw(rows, no_scans).rows
    assert [(row["publisher"], row["bytes"]) for row in shown] == [(-1, 35), (5, 30)]
