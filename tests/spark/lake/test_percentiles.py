"""Values count as often as there are rows that have them."""

import pyarrow as pa

from meshbus.spark.lake.grouping import Groups
from meshbus.spark.lake.percentiles import named_percentiles


def test_values_count_as_often_as_their_rows() -> None:
    rows = pa.table({"channel": [*"aaab"], "took": [9.0, 1.0, 5.0, None], "rows": [2, 98, 1, 4]})
    groups = Groups(rows, ["channel"])
    found = named_percentiles("latency", groups, rows["took"], rows["rows"])
    assert groups.keys["channel"].to_pylist() == ["a", "b"]
    assert [found[f"latency_p{share}_us"].to_pylist() for share in (50, 95, 99)] == [[1, None], [1, None], [9, None]]
