"""The metrics of a node: right numbers, names by the conventions, and few labels however large the mesh."""

import asyncio
import re
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from meshbus.engine.base.tally import Tally
from meshbus.engine.replicas.records import Acks
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer
from meshbus.log.consumers import publish_consumer
from meshbus.log.status import LogStats
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonState
from meshbus.node.node import Node
from meshbus.node.replicas.replicastatus import ReplicaMemberStatus, ReplicaStatus
from meshbus.web.families import LABELED_CHANNELS, LABELED_DAEMONS, OTHER, _daemons, _replicas, families
from meshbus.web.logstate import ConsumerLag, LogState, consumer_lags, open_logs
from meshbus.wire.keys import Role, derive_keys
from tests.patience import PATIENCE_S

PSK = "5a" * 32
WEB = {"bind": "127.0.0.1:0"}
MOST_SERIES = 1500
"""Time series of one node with everything at its bound, besides logs and lags."""


def samples(found: list[Metric]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(sample.name, tuple(sample.labels.values())): sample.value for family in found for sample in family.samples}


def of(node: Node, **more: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    return samples(list(families(node, more.get("logs", []), more.get("lags", []))))


async def test_traffic_latency_and_requests_are_counted() -> None:
    async with (
        Node.open(psk=PSK, ephemeral=True, name="hub", web=WEB) as hub,
        Node.open(psk=PSK, ephemeral=True, web=WEB) as leaf,
    ):
        await leaf.connect(hub.address, public_key=hub.public_key)
        async with (
            leaf.subscribe("sensors/a") as subscription,
            hub.respond("plan", _same),
            asyncio.timeout(PATIENCE_S),
        ):
            await hub.publisher("sensors/a").publish_batch([b"12", b"345"])
            events = aiter(subscription)
            for _ in range(2):
                await anext(events)
            await leaf.request(hub.node_id, "plan", b"x", timeout_s=PATIENCE_S)
            sent, got = of(hub), of(leaf)
    assert sent["meshbus_channel_published_events_total", ("sensors/a",)] == 2
    assert sent["meshbus_channel_published_bytes_total", ("sensors/a",)] == 5
    assert sent["meshbus_sent_events_total", ()] == 2
    assert sent["meshbus_peers", ("alive", "direct")] == 1
    assert sent["meshbus_subscribers", ()] == 1
    assert got["meshbus_received_bytes_total", ()] == 5
    assert got["meshbus_channel_received_events_total", ("sensors/a",)] == 2
    assert got["meshbus_request_duration_seconds_count", ()] == 1
    assert got["meshbus_turn_duration_seconds_count", ()] > 0
    assert (
        got["meshbus_delivery_latency_seconds_bucket", ("+Inf",)] == got["meshbus_delivery_latency_seconds_count", ()]
    )
    assert ("meshbus_dropped_total", ("bad_tag",)) in sent  # every reason is there before it happens


async def test_names_follow_the_conventions() -> None:
    async with Node.open(psk=PSK, ephemeral=True, web=WEB) as node:
        found = list(families(node, [], []))
    units = ("_seconds", "_bytes", "_events", "_total", "_info")
    plain = {"meshbus_peers", "meshbus_peers_away", "meshbus_subscribers", "meshbus_daemons"}
    for family in found:
        assert re.fullmatch(r"meshbus_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name in plain or any(unit in sample.name for unit in units) or family.type != "gauge", sample
            assert family.type != "counter" or sample.name.endswith("_total")


async def test_a_thousand_peers_and_channels_make_few_series() -> None:
    async with Node.open(psk=PSK, ephemeral=True, web=WEB) as node:
        few = len(of(node))
        keys = derive_keys(bytes(32), Role.INITIATOR)
        for number in range(1000):
            peer = Peer(number + 1, Link(keys, Role.INITIATOR, ("10.0.0.1", number + 1), 0.0), 0.0)
            node.live.engine.peers._by_id[peer.node_id] = peer
        for number in range(3000):
            node.live.received.add(f"sensors/{number}", 1, 10)
            node.live.engine.publications.tally.add(f"sensors/{number}", 1, 10)
        many = of(node)
        node.live.engine.peers._by_id.clear()
    assert sum(value for (name, _), value in many.items() if name == "meshbus_peers") == 1000
    assert len(many) - few == 4 * (LABELED_CHANNELS + 1)
    assert len(many) < MOST_SERIES
    assert many["meshbus_channel_received_events_total", (OTHER,)] == 3000 - LABELED_CHANNELS
    assert not [labels for _, labels in many if any(re.fullmatch(r"[0-9a-f]{16}", label) for label in labels[:1])]


def test_counts_of_channels_never_go_back() -> None:
    from meshbus.web.families import _bounded

    tally = Tally()
    before: dict[str | None, int] = {}
    for number in range(2000):
        tally.add(f"c/{number % 1500}", 1, 1)
        if number % 97 == 0:
            now = {volume.channel: volume.events for volume in _bounded(tally)}
            assert all(now[channel] >= count for channel, count in before.items())
            before = now


def test_replication_lag_is_left_out_if_it_is_not_known() -> None:
    members = tuple(ReplicaMemberStatus(node, None, True, lag=lag) for node, lag in ((1, 0), (2, 7), (3, None)))
    status = ReplicaStatus(
        channel="alarms",
        role="leader",
        epoch=3,
        leader=1,
        members=members,
        tail=12,
        committed=10,
        lag_s=0.5,
        acks=Acks.MAJORITY,
    )
    found = samples(list(_replicas([status])))
    assert found["meshbus_replica_lag_events", ("alarms",)] == 7
    assert found["meshbus_replica_uncommitted_events", ("alarms",)] == 2
    assert found["meshbus_replica_available", ("alarms",)] == 1
    follower = ReplicaStatus(
        channel="alarms",
        role="replica",
        epoch=3,
        leader=1,
        members=members[2:],
        tail=0,
        committed=0,
        lag_s=None,
        acks=Acks.MAJORITY,
        waiting="no leader",
    )
    found = samples(list(_replicas([follower])))
    assert found["meshbus_replica_available", ("alarms",)] == 0
    assert ("meshbus_replica_lag_events", ("alarms",)) not in found
    assert ("meshbus_replica_silence_seconds", ("alarms",)) not in found


async def test_logs_and_their_consumers(tmp_path: Path) -> None:
    channels = [{"prefix": "sensors/", "log": "published"}]
    async with Node.open(psk=PSK, ephemeral=True, log_dir=tmp_path, channels=channels, web=WEB) as node:
        publisher = node.publisher("sensors/a")
        await publisher.publish_batch([b"1", b"2", b"3"])
        publish_consumer(tmp_path, "spark", {"published:sensors/a": 1}, 0)
        logs = open_logs(node)
        lags = list(consumer_lags(tmp_path, logs))
        found = of(node, logs=logs, lags=lags)
    assert lags == [ConsumerLag("spark", "published", "sensors/a", 2, 0)]
    assert found["meshbus_log_appended_events_total", ("published", "sensors/a")] == 3
    assert found["meshbus_log_retained_events", ("published", "sensors/a")] == 3
    assert found["meshbus_consumer_lag_events", ("spark", "published", "sensors/a")] == 2


def test_daemons_are_counted_by_state_and_named_within_bounds() -> None:
    daemons = [
        DaemonInfo(origin=number, name=None, state=DaemonState.FAILED, node=1, errors=2) for number in range(300)
    ]
    found = samples(list(_daemons(daemons)))
    assert found["meshbus_daemons", ("failed",)] == 300
    assert found["meshbus_daemons", ("running",)] == 0
    assert sum(name == "meshbus_daemon_errors_total" for name, _ in found) == LABELED_DAEMONS
    assert not [name for name, _ in found if name == "meshbus_daemon_processed_events_total"]  # not known


def test_a_log_state_holds_what_a_log_reports() -> None:
    assert LogState("published", "a", 0, 1, 1, LogStats()).stats.appended == 0


async def _same(payload: bytes) -> bytes:
    return payload
