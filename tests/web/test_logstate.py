"""Logs and consumers of a node, as metrics need them."""

from pathlib import Path

from meshbus.log.consumers import publish_consumer
from meshbus.log.status import LogStats
from meshbus.node.node import Node
from meshbus.web.logstate import ConsumerLag, LogState, consumer_lags, open_logs


async def test_a_node_without_logs_has_none() -> None:
    async with Node.open(psk="5a" * 32, ephemeral=True) as node:
        assert open_logs(node) == []


def test_the_lag_of_each_consumer_is_found(tmp_path: Path) -> None:
    for name, seq in (("spark", 3), ("audit", 10), ("ahead", 99)):
        publish_consumer(tmp_path, name, {"published:a": seq, "received:b": seq}, 0)
    logs = [LogState(kind, channel, 0, 10, 10, LogStats()) for kind, channel in (("published", "a"), ("received", "c"))]
    assert list(consumer_lags(tmp_path, logs)) == [
        ConsumerLag(name, "published", "a", lag, 0) for name, lag in (("ahead", 0), ("audit", 0), ("spark", 7))
    ]
