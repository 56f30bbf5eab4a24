"""Arrow batches: every column of the table, the values that were given, and no copies where none are needed."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError, LogError
from meshbus.log import arrow
from meshbus.log.arrow import from_binary, require_arrow, wanted
from meshbus.log.schema import EVENTS, arrow_schema, unsigned
from meshbus.names.channel import ChannelName
from tests.log.making import CHANNEL, NOW, open_log


def rows_of(tmp_path: Path, events: list[bytes], **columns: Any) -> pa.RecordBatch:
    with open_log(tmp_path) as log:
        log.append_batch(events, **columns)
        (batch,) = log.read_batches()
    batch.validate(full=True)
    return batch


def test_a_batch_has_the_whole_schema_and_the_constants_of_its_log(tmp_path: Path) -> None:
    batch = rows_of(tmp_path, [b"a", b"b"])
    assert batch.schema.equals(arrow_schema(EVENTS), check_metadata=True)
    channel = ChannelName(CHANNEL)
    assert batch.column("channel").to_pylist() == [CHANNEL] * 2
    assert unsigned(batch.column("chash64").to_numpy()).tolist() == [channel.hash] * 2
    assert batch.column("chash").to_pylist() == [channel.wire_hash] * 2
    assert len(set(batch.column("log_id").to_pylist())) == 1
    assert batch.column("seq").to_pylist() == batch.column("pub_seq").to_pylist() == [0, 1]
    assert batch.column("ts").cast(pa.int64()).to_pylist() == [NOW // 1000] * 2


def test_every_column_given_is_the_column_read(tmp_path: Path) -> None:
    given_columns = {
        "pub_seq": np.array([7, 9]),
        "origin": np.array([2**64 - 1, 3], np.uint64),
        "ts_ns": np.array([1_999, -1]),
        "recv_ts_ns": np.array([5_000, 6_000]),
        "session_id": np.array([2**63, 1], np.uint64),
        "stream_id": np.array([1, 2], np.uint64),
        "packet_seq": np.array([3, 4], np.uint64),
        "event_index": np.array([0, 1], np.uint16),
        "src": np.array([2**32 - 1, 0], np.uint32),
        "dst": np.array([1, 2], np.uint32),
        "ttl": np.array([255, 0], np.uint8),
        "hops": np.array([1, 2], np.uint8),
        "flags": np.array([3, 4], np.uint8),
        "decision": np.ma.array([5, 0], mask=[False, True]),
    }
    batch = rows_of(tmp_path, [b"a", b"b"], **given_columns)
    for name, values in given_columns.items():
        bits = 64 if batch.schema.field(name).type == pa.int64() else 32
        read = [None if value is None else value % (1 << bits) for value in batch.column(name).to_pylist()]
        assert read == [None if value is None else value % (1 << bits) for value in values.tolist()], name
    assert batch.column("ts").cast(pa.int64()).to_pylist() == [1, -1], "rounded down, also before 1970"


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        (None, [None, None]),
        ({"k": b"v"}, [[("k", b"v")]] * 2),
        ([None, {"a": b"1", "b": b""}], [None, [("a", b"1"), ("b", b"")]]),
        ([{}, None], [[], None]),
    ],
)
def test_headers_are_maps(tmp_path: Path, headers: Any, read: Any) -> None:
    assert rows_of(tmp_path, [b"a", b"b"], headers=headers).column("headers").to_pylist() == read


def test_payloads_and_arrays_share_the_memory_of_the_mapped_file(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    with open_log(tmp_path) as log:
        log.append_batch([bytes(1 << 20)] * 4, ts_ns=np.arange(4))
        batches = list(log.read_batches(columns=["payload", "ts_ns"]))
        assert pa.total_allocated_bytes() - before < 1 << 16
        assert sum(batch.nbytes for batch in batches) > 4 << 20


def test_columns_come_in_the_order_asked_for_and_text_may_be_plain(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
        (batch,) = log.snapshot().batches(columns=["payload", "seq", "channel"], dictionaries=False)
    assert batch.schema.names == ["payload", "seq", "channel"]
    assert batch.schema.field("channel").type == pa.string()
    assert batch.to_pylist() == [{"payload": b"x", "seq": 0, "channel": CHANNEL}]


def test_unknown_columns_are_named_together_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown column colour; choose from channel, seq"):
        wanted(["seq", "colour"])
    assert wanted().names == tuple(column.name for column in EVENTS)


def test_without_pyarrow_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "has_arrow", lambda: False)
    with pytest.raises(LogError, match="pip install"):
        require_arrow()


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=9), st.integers(0, 8))
def test_arrow_payloads_are_seen_in_place(events: list[bytes], start: int) -> None:
    array = pa.array(events, pa.large_binary()).slice(min(start, len(events)))
    offsets, data = from_binary(array)
    assert [bytes(data[a:b]) for a, b in pairwise(offsets)] == array.to_pylist()


def test_unknown_times_are_null_in_both_columns(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch([b"a", b"b"], ts_ns=None)
        log.append_batch([b"c", b"d"], ts_ns=np.ma.array([0, 5_000], mask=[True, False]))
        for _ in range(2):  # hot, then sealed
            rows = [row for batch in log.read_batches(columns=["ts", "ts_ns"]) for row in batch.to_pylist()]
            assert [row["ts_ns"] for row in rows] == [None, None, None, 5_000]
            assert [row["ts"] is None for row in rows] == [True, True, True, False]
            log.seal()
