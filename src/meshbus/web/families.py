"""Metrics of a node as families of Prometheus: names, help and labels by its conventions.

Everything is read from the node when somebody asks, so nothing is counted twice and a packet costs nothing. Labels are
bounded: peers are counted by state and never named, and channels, consumers and daemons beyond the bounds below share the
label `(other)` or are left out. A value that the node does not know is left out, never 0.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from meshbus.engine.base.tally import Volume
from meshbus.engine.session.peer import Health
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonState
from meshbus.node.driving.timings import Histogram
from meshbus.node.node import Node
from meshbus.node.peers.redial import DialState
from meshbus.node.replicas.replicastatus import ReplicaStatus
from meshbus.policy.reason import Reason
from meshbus.web.logstate import ConsumerLag, LogState

LABELED_CHANNELS = 100
"""Channels with a label of their own, each way. Our choice: what a dashboard can show; `meshbus top` has more."""
LABELED_LOGS = 200
LABELED_LAGS = 500
"""Pairs of consumer and log."""
LABELED_DAEMONS = 100
OTHER = "(other)"
"""The label of everything beyond a bound; no channel can have this name."""
_MESSAGES = ("drop", "refuse", "refuse_publish", "refuse_subscribe")

Families: TypeAlias = Iterator[Metric]


def families(node: Node, logs: Iterable[LogState], lags: Iterable[ConsumerLag]) -> Families:
    """Yield the metrics of a node; `logs` and `lags` were read from its disk."""
    yield from _node(node)
    yield from _traffic(node)
    yield from _losses(node.counters)
    timings = node.live.timings
    if timings is not None:
        yield _histogram(
            "meshbus_turn_duration_seconds", "Time that one read of datagrams kept the node busy.", timings.turn
        )
        yield _histogram(
            "meshbus_delivery_latency_seconds",
            "Time from publishing an event to its arrival here, by the clocks of both nodes.",
            timings.delivery,
        )
        yield _histogram(
            "meshbus_request_duration_seconds", "Time from a request of this node to its reply.", timings.request
        )
    yield from _replicas(node.replicas())
    yield from _logs(list(islice(logs, LABELED_LOGS)), list(islice(lags, LABELED_LAGS)))
    if node.config.daemons_dir is not None:
        yield from _daemons(node.daemons.list())


def _node(node: Node) -> Families:
    about = {"name": node.config.name or "", "node_id": f"{node.node_id:016x}", "subnet": str(node.config.subnet)}
    yield InfoMetricFamily("meshbus_node", "What this node is.", value=about)
    yield GaugeMetricFamily(
        "meshbus_start_time_seconds",
        "When the node was opened, in seconds since 1970.",
        value=time.time_ns() / 1e9 - node.uptime_s,
    )
    peers = GaugeMetricFamily("meshbus_peers", "Nodes with a session, by health and path.", labels=("health", "path"))
    states = Counter((str(peer.health), "relayed" if peer.relayed else "direct") for peer in node.peers)
    for health in Health:
        for path in ("direct", "relayed"):
            peers.add_metric((str(health), path), states[str(health), path])
    yield peers
    away = sum(dial.state is not DialState.CONNECTED for dial in node.dialing)
    yield GaugeMetricFamily("meshbus_peers_away", "Configured peers without a session.", value=away)
    subscribers = sum(len(node.roster.members(channel)) for channel in node.roster)
    yield GaugeMetricFamily(
        "meshbus_subscribers", "Subscriptions of other nodes to channels of this one.", value=subscribers
    )


def _traffic(node: Node) -> Families:
    counters = node.counters
    for way, what in (("sent", "sent, once for each receiver"), ("received", "received")):
        for unit in ("events", "bytes"):
            yield CounterMetricFamily(
                f"meshbus_{way}_{unit}", f"{unit.capitalize()} that were {what}.", value=counters[way][unit]
            )
    for way, tally in (("published", node.live.engine.publications.tally), ("received", node.live.received)):
        events = CounterMetricFamily(f"meshbus_channel_{way}_events", f"Events {way}, by channel.", labels=("channel",))
        size = CounterMetricFamily(f"meshbus_channel_{way}_bytes", f"Bytes {way}, by channel.", labels=("channel",))
        for volume in _bounded(tally):
            events.add_metric((volume.channel or OTHER,), volume.events)
            size.add_metric((volume.channel or OTHER,), volume.bytes)
        yield from (events, size)


def _bounded(volumes: Iterable[Volume]) -> Iterator[Volume]:
    """Yield the first channels, which stay the first, and then all others as one."""
    events = nbytes = 0
    for number, volume in enumerate(volumes):
        if number < LABELED_CHANNELS and volume.channel is not None:
            yield volume
        else:
            events, nbytes = events + volume.events, nbytes + volume.bytes
    if events:
        yield Volume(None, events, nbytes)


def _losses(counters: dict[str, dict[str, int]]) -> Families:
    """Yield what was dropped and refused, every reason from the start, and what else was counted."""
    dropped = CounterMetricFamily(
        "meshbus_dropped", "What was dropped, by reason (docs/reasons.md).", labels=("reason",)
    )
    refused = CounterMetricFamily(
        "meshbus_refused", "What was refused, by kind and reason (docs/reasons.md).", labels=("kind", "reason")
    )
    for kind, why in sorted({reason.counter for reason in Reason}):
        count = counters.get(kind, {}).get(why, 0)
        if kind == "drop":
            dropped.add_metric((why,), count)
        elif kind in _MESSAGES:
            refused.add_metric((kind, why), count)
    others = CounterMetricFamily(
        "meshbus_incidents", "What else was counted, by kind and reason.", labels=("kind", "reason")
    )
    for kind, counts in sorted(counters.items()):
        if kind not in {*_MESSAGES, "sent", "received"}:
            for why, count in sorted(counts.items()):
                others.add_metric((kind, why), count)
    yield from (dropped, refused, others)


def _histogram(name: str, about: str, histogram: Histogram) -> Metric:
    seen, buckets = 0, list[tuple[str, float]]()
    for edge, count in zip((*map(str, histogram.edges), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((edge, seen))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=histogram.total)


def _replicas(replicas: Iterable[ReplicaStatus]) -> Families:
    """Yield the state of replicated channels, all of which somebody has configured."""
    leads = GaugeMetricFamily("meshbus_replica_leader", "Whether this node leads the channel.", labels=("channel",))
    takes = GaugeMetricFamily(
        "meshbus_replica_available", "Whether the channel takes appends for a majority.", labels=("channel",)
    )
    lag = GaugeMetricFamily(
        "meshbus_replica_lag_events",
        "Events that the slowest member has not confirmed, at the leader.",
        labels=("channel",),
    )
    silence = GaugeMetricFamily(
        "meshbus_replica_silence_seconds",
        "How long the slowest member, or the leader, was not heard.",
        labels=("channel",),
    )
    waiting = GaugeMetricFamily(
        "meshbus_replica_uncommitted_events",
        "Events in the own log that a majority does not have yet.",
        labels=("channel",),
    )
    for one in replicas:
        label = (one.channel,)
        leads.add_metric(label, one.role == "leader")
        takes.add_metric(label, one.waiting is None)
        waiting.add_metric(label, max(one.tail - one.committed, 0))
        known = [member.lag for member in one.members if member.lag is not None]
        if known:
            lag.add_metric(label, max(known))
        if one.lag_s is not None:
            silence.add_metric(label, one.lag_s)
    yield from (leads, takes, lag, silence, waiting)


def _logs(logs: list[LogState], lags: list[ConsumerLag]) -> Families:
    labels = ("log", "channel")
    appended = CounterMetricFamily(
        "meshbus_log_appended_events", "Events appended to a log since it was opened.", labels=labels
    )
    size = CounterMetricFamily("meshbus_log_appended_bytes", "Bytes written for them.", labels=labels)
    kept = GaugeMetricFamily("meshbus_log_retained_events", "Events that a log holds.", labels=labels)
    unsynced = GaugeMetricFamily(
        "meshbus_log_unsynced_events", "Events that are not known to be on disk.", labels=labels
    )
    refused = CounterMetricFamily("meshbus_log_refused_appends", "Appends that the disk refused.", labels=labels)
    failed = CounterMetricFamily(
        "meshbus_log_upkeep_failures", "Failed attempts to seal, compact, expire or copy.", labels=labels
    )
    for log in logs:
        label = (log.kind, log.channel)
        appended.add_metric(label, log.stats.appended)
        size.add_metric(label, log.stats.appended_bytes)
        kept.add_metric(label, log.next_seq - log.first_seq)
        unsynced.add_metric(label, max(log.next_seq - log.durable_seq, 0))
        refused.add_metric(label, log.stats.refused)
        failed.add_metric(label, log.stats.upkeep_failures + log.stats.copy_failures)
    behind = GaugeMetricFamily(
        "meshbus_consumer_lag_events", "Events of a log that a consumer has not read.", labels=("consumer", *labels)
    )
    for lag in lags:
        behind.add_metric((lag.consumer, lag.kind, lag.channel), lag.events)
    yield from (appended, size, kept, unsynced, refused, failed, behind)


def _daemons(daemons: Iterable[DaemonInfo]) -> Families:
    found = list(daemons)
    states = Counter(daemon.state for daemon in found)
    counted = GaugeMetricFamily("meshbus_daemons", "Daemons that this node knows, by state.", labels=("state",))
    for state in DaemonState:
        counted.add_metric((str(state),), states[state])
    done = CounterMetricFamily(
        "meshbus_daemon_processed_events", "Events processed here since the start.", labels=("daemon",)
    )
    errors = CounterMetricFamily(
        "meshbus_daemon_errors", "Failures here since the start of the node.", labels=("daemon",)
    )
    for daemon in found[:LABELED_DAEMONS]:
        label = (daemon.name or f"{daemon.origin:016x}",)
        errors.add_metric(label, daemon.errors)
        if daemon.processed is not None:
            done.add_metric(label, daemon.processed)
    yield from (counted, done, errors)
