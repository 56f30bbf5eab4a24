"""Events as objects: the same from blocks and from Parquet."""

from pathlib import Path

import numpy as np

from meshbus.log.event import COLUMNS, LogEvent, events_of_batch, events_of_rows
from tests.log.making import in_files, open_log

EXPECTED = [
    LogEvent(0, b"a", None, 2**64 - 1, None, None),
    LogEvent(1, b"bb", 11, 2**64 - 1, 5, {"k": b"v"}),
    LogEvent(2, b"", 12, 2**64 - 1, 6, {}),
]


def test_rows_and_batches_give_the_same_events(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(
            [event.payload for event in EXPECTED],
            ts_ns=np.ma.array([10, 11, 12], mask=[True, False, False]),
            origin=2**64 - 1,
            pub_seq=np.ma.array([0, 5, 6], mask=[True, False, False]),
            headers=[event.headers for event in EXPECTED],
        )
        (view,) = in_files(log).hot
        (rows,) = view.rows(0, 3)
        assert list(events_of_rows(rows, 0, 3)) == EXPECTED
        assert list(events_of_rows(rows, 1, 2)) == EXPECTED[1:2]
        (batch,) = log.read_batches(columns=COLUMNS)
        assert list(events_of_batch(batch)) == EXPECTED
