"""Dropped packets equal those of plain Python, and codes of later versions are kept."""

from datetime import UTC, datetime
from typing import Any

from meshbus.policy.fate import Fate
from meshbus.spark.lake.gold.denials import TABLE
from tests.spark import oracle
from tests.spark.counted import counted, rows_of
from tests.spark.oracle import as_set
from tests.spark.world import World


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    assert as_set(read["gold.denials"]) == as_set(oracle.denials(world.packets.to_pylist()))


def test_an_unknown_reason_is_shown_by_its_code() -> None:
    known = {"ts": datetime(2026, 11, 15, 23, 0, tzinfo=UTC)}
    row = {**known, "verdict": int(Fate.DROPPED), "reason": 9_999, "sampling_rate": 4, "payload_len": 10}
    (found,) = TABLE.rows(counted(TABLE.sources, rows_of("bronze.packets", [row]))).to_pylist()
    assert (found["reason"], found["packets"], found["bytes"]) == ("code_9999", 4, 40)


def test_the_section_sums_by_reason() -> None:
    rows = [{"reason": "subnet_local", "packets": packets} for packets in (2, 3)]
    assert ">5</text>" in TABLE.section.draw(rows)
    assert TABLE.section.facts(rows) == {"packets denied": 5}
