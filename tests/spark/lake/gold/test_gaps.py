"""Ranges of any order and overlap are combined, and what lies between them is missing."""

from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

from meshbus.spark.lake.gold.gaps import TABLE
from meshbus.spark.lake.goldtable import no_scans
from meshbus.spark.lake.numbering import Numbering
from meshbus.spark.lake.stretches import COLUMNS, runs_of
from tests.spark import oracle
from tests.spark.counted import rows_of, scanned
from tests.spark.figure import values
from tests.spark.oracle import as_set
from tests.spark.world import World


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]], world: World) -> None:
    # Two nodes hold a replica of one log under one log id: together they are one log.
    expected = oracle.gaps(world.bronze())
    replica = {row["log_id"] for row in world.bronze() if row["channel"] == "json/state"}
    of_one_node = [row for row in expected if row["log_id"] not in replica]
    assert as_set(row for row in read["gold.gaps"] if row["log_id"] not in replica) == as_set(of_one_node)
    assert any(row["missing"] and row["duplicates"] and row["reordered"] for row in of_one_node)


def test_ranges_of_any_order_and_overlap_are_combined() -> None:
    def run_of(first: int, last: int, events: int) -> dict[str, object]:
        whose = {"kind": "publisher", "channel": "a", "log_id": b"L" * 16, "origin": 5}
        return {**whose, "first": first, "last": last, "events": events, "reordered": 1}

    runs = [run_of(20, 29, 10), run_of(0, 9, 12), run_of(5, 12, 8), run_of(13, 13, 1), run_of(40, 40, 1)]
    (row,) = TABLE.rows([rows_of("silver.runs", runs)]).to_pylist()
    assert (row["first"], row["last"], row["events"]) == (0, 40, 25)
    assert (row["missing"], row["holes"], row["first_missing"], row["last_missing"]) == (16, 2, 14, 39)
    assert (row["duplicates"], row["reordered"]) == (7, 5)


def test_numbers_at_their_limits_fail_no_query() -> None:
    extremes = [-(2**63), -1, 0, 2**63 - 1]
    rows = [
        {"channel": "a", "log_id": b"L" * 16, "seq": place, "origin": number, "pub_seq": other}
        for place, (number, other) in enumerate(product([-(2**63), 5], extremes))
    ]
    runs = runs_of("a", Numbering(b"L" * 16), rows_of("bronze.events", rows).select(COLUMNS), {})
    assert len(TABLE.rows([runs])) == 3


def measured(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Kind, events and missing of the rows of a log, without those of the log itself."""
    whole = [{"channel": "a", "log_id": b"L" * 16, "seq": seq, "origin": 5, **row} for seq, row in enumerate(rows)]
    runs = runs_of("a", Numbering(b"L" * 16), rows_of("bronze.events", whole).select(COLUMNS), {})
    found = TABLE.rows([runs]).to_pylist()
    return sorted((row["kind"], row["events"], row["missing"]) for row in found if row["kind"] != "log")


def test_three_runs_of_a_publisher_that_numbers_from_its_clock_have_no_gaps() -> None:
    starts = [(1, 1_790_000_000 * 10**9), (2, 1_790_000_300 * 10**9), (3, 1_790_000_859 * 10**9)]
    rows = [{"pub_seq": start + n, "session_id": session} for session, start in starts for n in range(4)]
    del rows[5]
    assert measured(rows) == [("publisher", 3, 1), ("publisher", 4, 0), ("publisher", 4, 0)]


def test_numbers_of_a_log_continue_over_sessions() -> None:
    rows = [{"pub_seq": number, "session_id": number // 3} for number in (0, 1, 2, 3, 6, 7)]
    assert measured(rows) == [("publisher", 6, 2)]


def test_best_effort_losses_are_counted_in_packets_of_a_session() -> None:
    packets = [(1, 0), (1, 2), (1, 5), (2, 90), (2, 91)]
    rows = [{"session_id": session, "packet_seq": seq, "event_index": n} for session, seq in packets for n in range(3)]
    assert measured(rows) == [("stream", 2, 0), ("stream", 3, 3)]


def test_what_nothing_numbers_is_not_measured_and_never_complete() -> None:
    rows: list[dict[str, Any]] = [{}, {"session_id": 1}, {"session_id": 1, "packet_seq": 2**61 + 1, "event_index": 0}]
    assert measured([*rows, {"pub_seq": 2**60 + 5}]) == [("publisher", 1, None), ("unnumbered", 3, None)]
    rows = [{"kind": "unnumbered", "events": 3, **dict.fromkeys(("missing", "duplicates", "reordered"))}]
    (note,) = TABLE.section.draw(rows, no_scans).notes
    assert "Not measured: 3 events" in note
    assert "complete" not in note


WHOLE = {
    "kind": "publisher", "channel": "whole", "log_id": b"L" * 16, "origin": 5, "session_id": None, "events": 4,
    "missing": 0, "holes": 0, "first_missing": None, "last_missing": None, "duplicates": 0, "reordered": 0,
}  # fmt: skip
BROKEN = {**WHOLE, "channel": "broken", "missing": 7, "holes": 1}


def test_the_section_lists_only_what_is_incomplete() -> None:
    expired = {**BROKEN, "kind": "log"}
    lost = {**BROKEN, "kind": "stream", "missing": 4}
    assert "No gaps: 2 logs, publishers and streams" in TABLE.section.draw([WHOLE, WHOLE], no_scans).notes[0]
    shown = TABLE.section.draw([WHOLE, lost, BROKEN], no_scans)
    assert [(row["channel"], row["what"]) for row in shown.rows] == [("broken", "events"), ("broken", "packets")]
    assert not shown.charts
    assert "When they were lost is not known" in shown.notes[0]
    facts = TABLE.section.facts([WHOLE, BROKEN, expired, lost])
    assert facts == {"events missing": 7, "best-effort packets missing": 4}


def test_gaps_are_drawn_between_the_events_around_them(tmp_path: Path) -> None:
    start = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)
    known = {"channel": "broken", "log_id": b"L" * 16, "origin": 5}
    events = [
        {**known, "pub_seq": number, "recv_ts": start + timedelta(seconds=second)}
        for second, number in enumerate((0, 1, 9, 10, 20))
    ]
    others = [
        {**known, "origin": 6, "pub_seq": 4},
        {**known, "log_id": b"M" * 16, "pub_seq": 5},
        {**known, "pub_seq": None},
    ]
    scan = scanned(tmp_path, "bronze.events", rows_of("bronze.events", [*events, *others]))
    (chart,) = TABLE.section.draw([BROKEN], lambda _: scan).charts
    found = [
        (row["begin"] / 1000 - start.timestamp(), row["end"] / 1000 - start.timestamp(), row["detail"])
        for row in values(chart)
    ]
    assert found == [(1, 2, "7 missing from number 2"), (3, 4, "9 missing from number 11")]
