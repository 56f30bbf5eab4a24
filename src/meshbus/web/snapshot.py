"""The state of a node as one document for the live page; nothing else decides what the page shows.

Everything is read from the node at one moment. A value that the node does not know is None. Each table has at most
`MAX_ROWS` rows, those that need attention or carry most first, and the document says how many are left out, so that its size
is bounded however large the mesh is. Texts of others are cut, and what cannot be printed is replaced. The types are
web/document.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from meshbus.config.spelling import Endpoint
from meshbus.engine.routes.boundary import NOWHERE
from meshbus.engine.routes.proximity import GraphNode
from meshbus.engine.session.peer import Peer
from meshbus.names.subnet import SubnetId
from meshbus.node.daemons.daemoninfo import DaemonInfo
from meshbus.node.driving.driver import Driver
from meshbus.node.node import Node
from meshbus.node.peers.info import PeerInfo, is_gateway
from meshbus.node.peers.redial import DialInfo, DialState
from meshbus.node.replicas.replicastatus import ReplicaStatus
from meshbus.policy.reason import Reason
from meshbus.web.document import (
    About,
    ChannelRow,
    ConsumerRow,
    DaemonRow,
    Document,
    Flow,
    LogRow,
    LossRow,
    MemberRow,
    NodeRow,
    NodeState,
    PeerRow,
    ReplicaRow,
    Who,
)
from meshbus.web.health import why_not_ready
from meshbus.web.logstate import ConsumerLag, LogState

MAX_ROWS = 200
"""Rows of each table. Our choice: what a person looks through; the counts by state are of all nodes."""
MAX_NAMED = 4
"""Publishers of a channel, and inputs of a daemon, that a row names."""
MAX_TEXT = 200
"""Characters of a text that somebody else wrote."""
MAX_BYTES = 2 << 20
"""The largest document: what all tables take when they are full of the longest texts."""

_URGENCY = (
    NodeState.FAILED,
    NodeState.AWAY,
    NodeState.SILENT,
    NodeState.SUSPECTED,
    NodeState.HERE,
    NodeState.ALIVE,
    NodeState.HEARD,
)
"""The states in the order in which people should see them."""

NameOf = Callable[[int], str | None]
Row = TypeVar("Row")


def take(node: Node, logs: Iterable[LogState], lags: Iterable[ConsumerLag], wall_ns: int) -> Document:
    """Return the state of a node; `logs` and `lags` were read from its disk."""
    counters, config, name_of = node.counters, node.config, node.name_of
    nodes = sorted(_nodes(node), key=_by_urgency)
    cut = _Cut()
    return Document(
        at_ms=wall_ns // 1_000_000,
        uptime_s=round(node.uptime_s, 3),
        about=_about(node),
        problems=tuple(_text(problem) for problem in why_not_ready(node)[:MAX_NAMED]),
        states=dict(Counter(str(row.state) for row in nodes)),
        sent=_flow(counters["sent"]["events"], counters["sent"]["bytes"]),
        received=_flow(counters["received"]["events"], counters["received"]["bytes"]),
        forwarded=counters.get("transit", {}).get("forwarded", 0),
        nodes=cut("nodes", nodes),
        peers=cut("peers", sorted(_peers(node), key=_by_urgency)),
        channels=cut("channels", sorted(_channels(node), key=_by_volume)),
        losses=_losses(counters),
        logs=None if config.log_dir is None else cut("logs", map(_log, logs)),
        replicas=cut("replicas", (_replica(status, name_of) for status in node.replicas())),
        consumers=None if config.log_dir is None else cut("consumers", _consumers(lags, wall_ns)),
        daemons=(
            None
            if config.daemons_dir is None
            else cut("daemons", (_daemon(info, name_of) for info in node.daemons.list()))
        ),
        left_out=cut.left_out,
    )


class _Cut:
    """Keeps the first rows of each table, and counts the others."""

    def __init__(self) -> None:
        self.left_out: dict[str, int] = {}

    def __call__(self, table: str, rows: Iterable[Row]) -> tuple[Row, ...]:
        found = tuple(rows)
        if len(found) > MAX_ROWS:
            self.left_out[table] = len(found) - MAX_ROWS
        return found[:MAX_ROWS]


def _about(node: Node) -> About:
    return About(
        node_id=_hex(node.node_id),
        name=node.config.name,
        address=node.address,
        subnet=str(node.config.subnet),
        gateway=node.mesh.is_gateway,
        nat=str(node.mesh.nat.nat),
    )


def _nodes(node: Node) -> Iterable[NodeRow]:
    """Yield every node that this node knows of."""
    engine, now = node.live.engine, Driver.now()
    announced = engine.directory.known(now)
    heard = {one.node_id: one for one in engine.mesh.graph}
    peers = {peer.node_id: peer for peer in engine.peers}
    away = {dial.node_id for dial in node.dialing if dial.state is not DialState.CONNECTED}
    for node_id in {node.node_id, *announced, *heard, *peers, *away}:
        own, peer, found = node_id == node.node_id, peers.get(node_id), heard.get(node_id)
        yield NodeRow(
            node_id=_hex(node_id),
            name=node.name_of(node_id),
            state=NodeState.HERE if own else _state(peer, node_id in away, found, now, node.config.session_timeout_s),
            subnet=_subnet(engine.mesh.boundary.subnet_of(node_id, now)),
            gateway=node.mesh.is_gateway if own else is_gateway(announced.get(node_id)),
            path=None if peer is None else _path(relayed=bool(peer.link.route)),
            hops=0 if own else None if found is None else found.hops,
            latency_ms=None if found is None or not found.latency_us else round(found.latency_us / 1000, 3),
            via=None if own else _via(node, node_id, now),
        )


def _state(peer: Peer | None, away: bool, heard: GraphNode | None, now: float, timeout_s: float) -> NodeState:
    if peer is not None:
        return NodeState(peer.health)
    if away:
        return NodeState.AWAY
    return NodeState.SILENT if heard is not None and now - heard.seen_at > timeout_s else NodeState.HEARD


def _via(node: Node, node_id: int, now: float) -> Who | None:
    hop = node.live.engine.mesh.table.lookup(node_id, now)
    neighbor = None if hop is None else node.live.engine.peers.by_address(hop)
    return None if neighbor is None or neighbor.node_id == node_id else _who(neighbor.node_id, node.name_of)


def _peers(node: Node) -> Iterable[PeerRow]:
    """Yield the peers of a node, and those that it dials; one that has failed still has a session while it is dialed."""
    dials = {dial.node_id: dial for dial in node.dialing if dial.state is not DialState.CONNECTED}
    for info in node.peers:
        yield _peer(info, dials.pop(info.node_id, None), node.name_of(info.node_id))
    for node_id, dial in dials.items():
        yield PeerRow(
            node_id=_hex(node_id),
            name=node.name_of(node_id),
            state=NodeState.AWAY,
            address=dial.address,
            path=None,
            profile=None,
            dialect=None,
            **_tries(dial),
        )


def _peer(info: PeerInfo, dial: DialInfo | None, name: str | None) -> PeerRow:
    host, port = info.address[:2]  # type: ignore[index]
    return PeerRow(
        node_id=_hex(info.node_id),
        name=name,
        state=NodeState(info.health),
        address=str(Endpoint(host, port)),
        path=_path(relayed=info.relayed),
        profile=info.profile,
        dialect=None if info.dialect is None else str(info.dialect),
        **_tries(dial),
    )


def _tries(dial: DialInfo | None) -> dict[str, Any]:
    if dial is None:
        return {"tries": None, "next_try_s": None, "problem": None}
    return {"tries": dial.tries, "next_try_s": dial.next_try_s, "problem": _maybe(dial.last_error)}


def _channels(node: Node) -> Iterable[ChannelRow]:
    for info in node.channels():
        yield ChannelRow(
            channel=info.channel,
            publishes=info.published,
            subscribed=info.subscribed,
            subscribers=info.subscribers,
            publishers=len(info.publishers),
            publisher_names=tuple(_who(one, node.name_of) for one in info.publishers[:MAX_NAMED]),
            published=_flow(info.published_events, info.published_bytes),
            received=_flow(info.received_events, info.received_bytes),
        )


def _losses(counters: dict[str, dict[str, int]]) -> tuple[LossRow, ...]:
    """Return what was lost, by reason; each has happened at least once."""
    return tuple(
        LossRow(kind=reason.what, why=reason.why, count=count, sentence=reason.sentence)
        for reason in {reason.counter: reason for reason in Reason}.values()
        if (count := counters.get(reason.what, {}).get(reason.why, 0))
    )


def _log(log: LogState) -> LogRow:
    stats = log.stats
    return LogRow(
        log=log.kind,
        channel=log.channel,
        first_seq=log.first_seq,
        next_seq=log.next_seq,
        unsynced=max(log.next_seq - log.durable_seq, 0),
        appended=stats.appended,
        appended_bytes=stats.appended_bytes,
        refused=stats.refused,
        failures=stats.upkeep_failures + stats.copy_failures,
        waits=_maybe(stats.waits),
    )


def _replica(status: ReplicaStatus, name_of: NameOf) -> ReplicaRow:
    return ReplicaRow(
        channel=status.channel,
        role=status.role,
        leader=None if status.leader is None else _who(status.leader, name_of),
        epoch=status.epoch,
        tail=status.tail,
        committed=status.committed,
        silence_s=status.lag_s,
        waits=_maybe(status.waiting),
        members=tuple(
            MemberRow(node_id=_hex(one.node_id), name=one.name, connected=one.connected, lag=one.lag)
            for one in status.members
        ),
    )


def _consumers(lags: Iterable[ConsumerLag], wall_ns: int) -> list[ConsumerRow]:
    """Return the consumers, those that are furthest behind first."""
    found = [
        ConsumerRow(
            consumer=_text(lag.consumer),
            log=lag.kind,
            channel=lag.channel,
            lag=lag.events,
            age_s=max(wall_ns - lag.at_ns, 0) / 1e9,
        )
        for lag in lags
    ]
    return sorted(found, key=lambda row: (-row.lag, row.consumer, row.channel))


def _daemon(info: DaemonInfo, name_of: NameOf) -> DaemonRow:
    return DaemonRow(
        origin=_hex(info.origin),
        name=_maybe(info.name),
        state=str(info.state),
        node=None if info.node is None else _who(info.node, name_of),
        inputs=tuple(one.channel for one in info.inputs[:MAX_NAMED]),
        output=info.output,
        processed=info.processed,
        moves=info.moves,
        errors=info.errors,
        problem=_maybe(info.error),
    )


def _by_urgency(row: NodeRow | PeerRow) -> tuple[int, str, str]:
    return _URGENCY.index(row.state), row.name or "~", row.node_id  # those without a name last


def _by_volume(row: ChannelRow) -> tuple[int, str]:
    return -((row.published.events or 0) + (row.received.events or 0)), row.channel


def _flow(events: int | None, nbytes: int | None) -> Flow:
    return Flow(events=events, bytes=nbytes)


def _path(*, relayed: bool) -> str:
    return "relayed" if relayed else "direct"


def _subnet(subnet: int) -> str | None:
    return None if subnet == NOWHERE else str(SubnetId(subnet))


def _who(node_id: int, name_of: NameOf) -> Who:
    return Who(_hex(node_id), name_of(node_id))


def _hex(number: int) -> str:
    return f"{number:016x}"


def _maybe(text: str | None) -> str | None:
    return _text(text) if text else None


def _text(text: str) -> str:
    """Return a text of somebody else as it is safe to show: not long, and on one line."""
    cut = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
    return "".join(letter if letter.isprintable() else " " for letter in cut)
