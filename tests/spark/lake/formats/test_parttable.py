"""What no format does by itself: rows that are reduced. What all formats promise is in test_contract.py."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.lake.formats.made import FORMATS, RUNS, open_table, read


def sums(rows: pa.Table) -> pa.Table:
    (first, *_), (*_, last) = rows.to_pylist(), rows.to_pylist()
    totals = {name: sum(rows[name].to_pylist()) for name in ("events", "reordered")}
    return pa.Table.from_pylist([first | {"last": last["last"]} | totals], rows.schema)


def test_rows_that_can_be_reduced_are_reduced(tmp_path: Path) -> None:
    for kind in FORMATS:
        table = open_table(RUNS, tmp_path / kind, kind)
        for batch in range(3):
            rows = {"kind": ["log"], "channel": ["a"], "log_id": [b"x" * 16], "origin": [None], "session_id": [None]}
            numbered = {"first": [batch * 10], "last": [batch * 10 + 9], "events": [10], "reordered": [batch]}
            staged = table.stage()
            pq.write_table(pa.table({**rows, **numbered}), staged / "part.parquet")
            table.commit("events", batch, batch, staged)
        assert table.compact("events", fewest=3, merge=sums, keep=0) == 3
        (row,) = read(table)
        assert (row["first"], row["last"], row["events"], row["reordered"]) == (0, 29, 30, 3)
        assert row["log_id"] == b"x" * 16
