"""The events of the funnel are what they claim to be: a figure for other rows would be about something else."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from bench.funnel.load import (
    BATCH_EVENTS,
    CHANNELS,
    JSON,
    PACKET_EVENTS,
    Load,
    append_alone,
    batches,
    expect,
    fill,
    fill_behind,
    write_plainly,
)
from meshbus.log.schema import EVENTS
from tests.spark.world import rows_of_logs

EVENTS_IN_ALL = 17 * BATCH_EVENTS + 30


def test_batches_have_every_event_once_and_number_them_by_publisher() -> None:
    numbers: dict[tuple[str, object], list[int]] = defaultdict(list)
    for batch in batches(Load(EVENTS_IN_ALL)):
        first = batch.columns["pub_seq"]
        assert isinstance(first, int)
        numbers[batch.channel, batch.columns["origin"]] += range(first, first + len(batch.payloads))
    assert {channel for channel, _ in numbers} == set(CHANNELS)
    assert len(numbers) == 16
    assert all(found == list(range(len(found))) for found in numbers.values())
    assert sum(map(len, numbers.values())) == EVENTS_IN_ALL


def test_json_events_have_the_declared_columns() -> None:
    [batch] = batches(Load(50, json=True))
    for payload in batch.payloads.to_pylist():
        value = json.loads(payload)
        assert len(payload) == len(JSON)
        assert {name: type(field) for name, field in value.items()} == {
            "sensor": str, "reading": int, "temp": float, "pressure": float, "state": str, "line": int, "ok": bool,
        }  # fmt: skip


@pytest.mark.parametrize("load", [Load(2 * BATCH_EVENTS + 30), Load(300, json=True)], ids=["raw", "json"])
def test_appends_alone_are_not_sealed(tmp_path: Path, load: Load) -> None:
    assert append_alone(tmp_path, load).seconds > 0
    assert not list(tmp_path.rglob("*.parquet"))
    assert len(rows_of_logs(tmp_path)) == load.events


@pytest.mark.parametrize("load", [Load(2 * BATCH_EVENTS + 30), Load(300, json=True)], ids=["raw", "json"])
def test_filled_logs_are_sealed_and_look_received(tmp_path: Path, load: Load) -> None:
    filled = fill(tmp_path, load)
    rows = rows_of_logs(tmp_path)
    assert len(rows) == load.events
    assert all(row.keys() == {column.name for column in EVENTS} for row in rows)
    assert not [row for row in rows if row["session_id"] is None or row["ts_ns"] >= row["recv_ts_ns"]]
    assert {row["event_index"] for row in rows} == set(range(PACKET_EVENTS))
    assert {len(row["payload"]) for row in rows} == {load.event_bytes}
    assert {Path(path).parent.parent.name for path in filled.paths} == {"received"}
    assert filled.append.seconds > 0
    assert filled.seal.seconds > 0


def test_published_events_did_not_arrive_in_a_session(tmp_path: Path) -> None:
    fill(tmp_path, Load(30, received=False))
    rows = rows_of_logs(tmp_path)
    assert len(rows) == 30
    assert {(row["session_id"], row["packet_seq"]) for row in rows} == {(None, None)}


def test_a_thread_that_is_behind_seals_everything_too(tmp_path: Path) -> None:
    load = Load(4 * BATCH_EVENTS)
    filled = fill_behind(tmp_path, load)
    assert len(filled.paths) == len(CHANNELS)
    assert len(rows_of_logs(tmp_path)) == load.events
    assert filled.seal.seconds >= filled.append.seconds


def test_a_plain_write_leaves_nothing(tmp_path: Path) -> None:
    assert write_plainly(tmp_path / "plain", 3 << 20) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_count_ends_a_measurement() -> None:
    expect("rows", 3, 3)
    with pytest.raises(RuntimeError, match="rows of gold: found 2, expected 3; the measurement is void"):
        expect("rows of gold", 2, 3)
