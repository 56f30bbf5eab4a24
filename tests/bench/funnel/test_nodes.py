"""The nodes of the chain: what one says that it published, the other one logs."""

from pathlib import Path

from bench.funnel.nodes import nodes
from tests.spark.world import rows_of_logs


def test_a_node_logs_every_event_that_the_other_says_it_published(tmp_path: Path) -> None:
    with nodes(tmp_path) as publisher:
        first, more = publisher.publish_first(), publisher.publish(2_000.0, 0.5)
        rows = rows_of_logs(tmp_path)
    assert first == 400
    assert more.events <= 1_000
    assert len(rows) == first + more.events
    assert all(row["session_id"] is not None and row["ts_ns"] is not None for row in rows)
