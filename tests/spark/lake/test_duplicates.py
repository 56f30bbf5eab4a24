"""Each event is new once: by its number, by its place in a log, or by its place in a stream."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.positions import Mark
from meshbus.log.schema import EVENTS, arrow_schema
from meshbus.spark.lake.duplicates import COLUMNS, KnownEvents
from meshbus.spark.lake.numbering import Numbering
from meshbus.spark.lake.stretches import runs_of
from meshbus.wire.messages.reliable import CLOCK_NUMBERS

LOGS = (b"L" * 16, b"M" * 16)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "log_id": st.sampled_from(LOGS),
            "origin": st.sampled_from([-5, 5]),
            "pub_seq": st.one_of(st.none(), st.integers(0, 12)),
            "recorder": st.sampled_from([1, 2]),
            "session_id": st.sampled_from([None, 1, -1]),
            "stream_id": st.just(3),
            "packet_seq": st.integers(0, 4),
            "event_index": st.integers(0, 1),
        }
    ),
    max_size=40,
)


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    schema = arrow_schema(EVENTS, dictionaries=False)
    return pa.Table.from_pylist(list(rows), pa.schema([schema.field(name).with_nullable(True) for name in COLUMNS]))


def key_of(row: dict[str, Any]) -> tuple[object, ...]:
    """What an event is known by."""
    if row["pub_seq"] is not None:
        return ("number", row["origin"], row["pub_seq"])
    if row["session_id"] is not None:
        names = ("recorder", "session_id", "stream_id", "packet_seq", "event_index")
        return ("place", *(row[name] for name in names))
    return ("log", row["log_id"], row["seq"])


@given(ROWS, st.integers(1, 5))
def test_each_event_is_new_once_in_whatever_pieces_it_comes(rows: list[dict[str, Any]], size: int) -> None:
    for seq, row in enumerate(rows):
        row["seq"] = seq
    known, kept = KnownEvents(), []
    known.places.begin([])
    for start in range(0, len(rows), size):
        for log in LOGS:  # a piece has rows of one log
            piece = [row for row in rows[start : start + size] if row["log_id"] == log]
            fresh = known.fresh("a", Numbering(log), table_of(piece))
            kept += [row for row, is_new in zip(piece, fresh.tolist(), strict=True) if is_new]
            known.add(runs_of("a", Numbering(log), table_of(piece), known.highest).to_pylist())
    assert sorted(map(key_of, kept)) == sorted({key_of(row) for row in rows})


def event(seq: int, **more: Any) -> dict[str, Any]:
    blank = dict.fromkeys(COLUMNS)
    return {**blank, "origin": 5, "seq": seq, **more}


def test_a_replica_and_another_channel_are_told_apart() -> None:
    known = KnownEvents(runs_of("a", Numbering(LOGS[0]), table_of([event(0, pub_seq=7), event(1)]), {}).to_pylist())
    known.places.begin([])
    again = table_of([event(0, pub_seq=7), event(1), event(2)])
    assert known.fresh("a", Numbering(LOGS[0]), again).tolist() == [False, False, True]
    assert known.fresh("a", Numbering(LOGS[1]), again).tolist() == [False, True, True], (
        "only the number is known in another log"
    )
    assert known.fresh("b", Numbering(LOGS[1]), again).tolist() == [True, True, True]


def test_places_are_found_in_the_files_of_silver(tmp_path: Path) -> None:
    place = {"recorder": 1, "session_id": 9, "stream_id": 3}
    stored = [event(seq, **place, packet_seq=seq, event_index=0) for seq in range(6)]
    pq.write_table(table_of(stored), tmp_path / "old.parquet", row_group_size=2)
    known = KnownEvents()
    known.places.begin([str(tmp_path / "old.parquet")])
    rows = [event(10, **place, packet_seq=5, event_index=0), event(11, **place, packet_seq=5, event_index=1)]
    assert known.fresh("a", Numbering(LOGS[1]), table_of(rows)).tolist() == [False, True]
    assert len(known.places.near(table_of(rows))) == 2, "one row group, and the rows of this batch"
    known.places.begin([])  # the file has expired
    assert known.fresh("a", Numbering(LOGS[1]), table_of(rows)).tolist() == [True, True]


def test_the_highest_number_of_each_owner_is_remembered() -> None:
    runs = runs_of("a", Numbering(LOGS[0]), table_of([event(0, pub_seq=7), event(1, pub_seq=5)]), {}).to_pylist()
    known = KnownEvents(runs)
    late = runs_of("a", Numbering(LOGS[0]), table_of([event(2, pub_seq=6)]), known.highest).to_pylist()
    assert [run["reordered"] for run in late if run["kind"] == "publisher"] == [1]


REPLICATED = b"R" * 16
LEADERS = (5, -6)


def received(first: int = 0) -> Numbering:
    """The log of a subscriber that got events from two leaders of a replicated channel."""
    marks = (Mark(REPLICATED.hex(), f"{leader % (1 << 64):016x}", first) for leader in LEADERS)
    return Numbering(LOGS[1], marks=tuple(marks))


@given(
    st.lists(st.tuples(st.sampled_from(LEADERS), st.integers(0, 9)), max_size=20),
    st.integers(0, 9),
    st.permutations([0, 1, 2]),
)
def test_an_event_of_a_replicated_channel_is_new_once_in_whichever_logs_it_is(
    sent: list[tuple[int, int]], tail: int, order: list[int]
) -> None:
    member = Numbering(LOGS[0], shared=True, marks=(Mark(REPLICATED.hex(), first=3),))
    newer = Numbering(REPLICATED, shared=True, marks=(Mark(REPLICATED.hex()),))
    arrived = [event(seq, origin=leader, pub_seq=number) for seq, (leader, number) in enumerate(sent)]
    own = [event(seq, origin=seq, pub_seq=seq) for seq in range(tail)]
    logs = [(member, own), (newer, own[:-1]), (received(), arrived)]
    known, kept = KnownEvents(), list[int]()
    known.places.begin([])
    for log, rows in (logs[place] for place in order):
        table = table_of(rows)
        fresh = known.fresh("a", log, table)
        kept += [row["pub_seq"] for row, is_new in zip(rows, fresh.tolist(), strict=True) if is_new]
        again = known.read_before(log, table)
        known.add(runs_of("a", log, table.filter(pa.array(~again)), known.highest, fresh[~again]).to_pylist())
    assert sorted(kept) == sorted({*range(tail), *(number for _, number in sent)})


def test_only_marked_numbers_are_positions() -> None:
    known = KnownEvents(runs_of("a", Numbering(REPLICATED), table_of([event(seq) for seq in range(9)]), {}).to_pylist())
    known.places.begin([])
    rows = [
        event(0, origin=5, pub_seq=4),  # before the mark
        event(1, origin=5, pub_seq=4),
        event(2, origin=7, pub_seq=5),  # of a publisher that is no member
        event(3, origin=5, pub_seq=CLOCK_NUMBERS + 6),  # numbered by a clock
        event(4, origin=5, pub_seq=9),
    ]
    assert known.fresh("a", received(first=1), table_of(rows)).tolist() == [True, False, True, True, True]
