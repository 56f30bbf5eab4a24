"""Every event has the roster that its publisher had when it was published, whatever the times of both."""

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meshbus.spark.lake.rosters import with_rosters
from tests.seeds import for_each_seed
from tests.spark.counted import Unread, counted, rows_of, scanned

HOUR = "2026-11-15T23"
START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9
MINUTE_NS = 60 * 10**9
CHANNELS = ("a", "b")
ORIGINS = {9: 5, 8: 6}
"""Two publishers: node id and origin."""


def frame(table: str, rows: list[dict[str, Any]]) -> Any:
    known = {"hour": HOUR} | ({"recv_ts": START, "payload": b""} if table == "silver.events" else {})
    return rows_of(table, ({**known, **row} for row in rows))


def snapshot(recorder: int, at: int, seq: int) -> dict[str, Any]:
    return {"recorder": recorder, "origin": ORIGINS[recorder], "kind": "snapshot", "ts_ns": at, "seq": seq}


def roster(recorder: int, at: int, seq: int, channel: str, count: int) -> dict[str, Any]:
    known = {"recorder": recorder, "kind": "roster", "ts_ns": at, "seq": seq, "channel": channel}
    return {**known, "subscribers": count, "copies": 10 * count}


def held(facts: list[dict[str, Any]], event: dict[str, Any]) -> int | None:
    """The subscribers of an event, by looking at every fact."""
    found = None
    for fact in facts:  # in the order in which they were written
        if (
            ORIGINS[fact["recorder"]] == event["origin"]
            and event["ts_ns"] is not None
            and fact["ts_ns"] <= event["ts_ns"]
        ):
            if fact["kind"] == "snapshot":
                found = 0
            elif fact["channel"] == event["channel"]:
                found = fact["subscribers"]
    return found


@for_each_seed(range(3))
def test_any_times_equal_plain_python(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)

    def some_time() -> int:
        # Often at the edge of a minute, and often the same.
        return START_NS + rng.randrange(5) * MINUTE_NS + rng.choice([0, 0, 1, MINUTE_NS - 1, rng.randrange(MINUTE_NS)])

    facts: list[dict[str, Any]] = []
    for seq, at in enumerate(sorted(some_time() for _ in range(30))):
        recorder = rng.choice(list(ORIGINS))
        if rng.random() < 0.2:
            facts.append(snapshot(recorder, at, seq))
        else:
            facts.append(roster(recorder, at, seq, rng.choice(CHANNELS), rng.randrange(3)))
    facts[:0] = [snapshot(recorder, START_NS + MINUTE_NS // 2, -1) for recorder in ORIGINS]
    facts.sort(key=lambda fact: (fact["ts_ns"], fact["kind"] != "snapshot", fact["seq"]))
    events = [
        {
            "channel": rng.choice(CHANNELS),
            "origin": rng.choice([5, 6, 7]),
            "ts_ns": rng.choice([None] + [some_time()] * 9),
        }
        for _ in range(300)
    ]
    rows = frame("silver.events", events)
    (counts,) = counted(["silver.event_counts"], rows)
    found: Counter[tuple[Any, ...]] = Counter()
    for row in with_rosters(
        counts, frame("bronze.census", facts), scanned(tmp_path, "silver.events", rows)
    ).to_pylist():
        assert row["copies"] == (None if row["subscribers"] is None else 10 * row["subscribers"])
        found[row["channel"], row["subscribers"]] += row["events"]
    assert found == Counter((event["channel"], held(facts, event)) for event in events)


def test_a_snapshot_that_repeats_what_is_known_is_no_change() -> None:
    at = [START_NS + second * 10**9 for second in (0, 70, 80)]
    facts = [
        fact
        for seq, time in enumerate(at)
        for fact in (snapshot(9, time, 2 * seq), roster(9, time, 2 * seq + 1, "a", 3))
    ]
    rows = frame("silver.events", [{"channel": "a", "origin": 5, "ts_ns": time} for time in at])
    (counts,) = counted(["silver.event_counts"], rows)
    found = with_rosters(counts, frame("bronze.census", facts), Unread()).to_pylist()
    assert {(row["subscribers"], row["copies"]) for row in found} == {(3, 30)}
    assert sum(row["events"] for row in found) == 3


def test_without_a_census_nothing_is_known() -> None:
    rows = frame("silver.events", [{"channel": "a", "origin": 5, "ts_ns": START_NS}, {"channel": "a", "origin": 5}])
    (counts,) = counted(["silver.event_counts"], rows)
    for events in (counts, counts.slice(0, 0)):
        found = with_rosters(events, frame("bronze.census", []), Unread())
        assert set(found["subscribers"].to_pylist()) <= {None}
        assert sum(found["events"].to_pylist()) == sum(events["events"].to_pylist())
