"""Dropped packets equal those of plain Python, and codes of later versions are kept."""

from datetime import UTC, datetime
from typing import Any

from meshbus.policy.fate import Fate
from meshbus.spark.lake.gold.denials import TABLE
from meshbus.spark.lake.goldtable import no_scans
from meshbus.spark.lake.named import NamedId
from tests.spark import oracle
from tests.spark.counted import counted, rows_of
from tests.spark.figure import values
from tests.spark.oracle import as_set
from tests.spark.world import World


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    assert as_set(read["gold.denials"]) == as_set(oracle.denials(world.packets.to_pylist()))


def test_an_unknown_reason_is_shown_by_its_code() -> None:
    known = {"ts": datetime(2026, 11, 15, 23, 0, tzinfo=UTC)}
    row = {**known, "verdict": int(Fate.DROPPED), "reason": 9_999, "sampling_rate": 4, "payload_len": 10}
    (found,) = TABLE.rows(counted(TABLE.sources, rows_of("bronze.packets", [row]))).to_pylist()
    assert (found["reason"], found["packets"], found["bytes"]) == ("code_9999", 4, 40)


def test_the_section_sums_by_reason_and_publisher_and_explains_reasons() -> None:
    known = {"reason": "subnet_local", "bytes": 1, "channel": None, "peer": None, "recorder": 1, "hour": "h"}
    rows = [{**known, "origin": NamedId.of(5, "rover"), "packets": packets} for packets in (2, 3)]
    rows.append({**known, "reason": "code_9999", "origin": 6, "packets": 1})
    shown = TABLE.section.draw(rows, no_scans)
    found = {(row["name"], row["part"]): row["count"] for row in values(shown.charts[0]) if "part" in row}
    assert found == {("subnet_local", "rover"): 5, ("code_9999", f"{6:016x}"): 1}
    (_, later), (_, local) = shown.words.items()
    assert later == "a reason of a later version"
    assert "must not leave its subnet" in local
    assert TABLE.section.facts(rows) == {"packets denied": 6}
