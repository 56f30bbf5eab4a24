"""Records as rows of a log, and back."""

from __future__ import annotations

import numpy as np

from meshbus.log.columns import pack_events
from meshbus.log.event import LogEvent
from meshbus.node.replicas.replicarecords import records_of, rows_of
from meshbus.wire.record import Record, pack_record
from tests.wire.test_recordcolumn import column


def test_records_become_payloads_and_columns() -> None:
    same = [pack_record(Record(text, 3, 9)) for text in (b"a", b"")]
    payloads, columns = rows_of(same)
    assert payloads == [b"a", b""]
    assert columns["origin"] == 9
    assert columns["ts_ns"] == 3, "one moment is one number"
    assert "headers" not in columns
    mixed = [*same, pack_record(Record(b"c", 4, (1 << 64) - 1, {"k": b"v"}))]
    payloads, columns = rows_of(mixed)
    assert payloads == [b"a", b"", b"c"]
    assert list(np.asarray(columns["origin"])) == [9, 9, -1]
    assert list(np.asarray(columns["ts_ns"])) == [3, 3, 4]
    assert columns["headers"] == [None, None, {"k": b"v"}]


def test_records_of_a_batch_become_the_same_payloads_and_columns() -> None:
    same = [pack_record(Record(text, 3, 9)) for text in (b"a", b"b")]
    payloads, columns = rows_of(column(same))
    assert [bytes(part) for part in pack_events(payloads)] == [bytes(part) for part in pack_events([b"a", b"b"])]
    assert columns["origin"] == 9
    assert columns["ts_ns"] == 3, "one moment is one number"
    mixed = [*same, pack_record(Record(b"c", 4, 8, {"k": b"v"}))]
    assert rows_of(column(mixed))[0] == rows_of(mixed)[0] == [b"a", b"b", b"c"]


def test_rows_become_the_same_records() -> None:
    events = [LogEvent(0, b"a", 3, 9, 0, None), LogEvent(1, b"c", None, (1 << 64) - 1, 1, {"k": b"v"})]
    assert records_of(events) == (
        pack_record(Record(b"a", 3, 9)),
        pack_record(Record(b"c", 0, (1 << 64) - 1, {"k": b"v"})),
    )
