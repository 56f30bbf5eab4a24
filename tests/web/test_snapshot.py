"""The document of the live page is what the node counts: equal numbers, names, and null for what it does not know."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from meshbus.config import NodeConfig
from meshbus.engine.replicas.records import Acks
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, Peer
from meshbus.errors import ChannelError
from meshbus.log.consumers import publish_consumer
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonInput, DaemonState
from meshbus.node.node import Node
from meshbus.node.replicas.replicastatus import ReplicaMemberStatus, ReplicaStatus
from meshbus.policy.reason import Reason
from meshbus.web import snapshot
from meshbus.web.document import ConsumerRow, Document, LossRow, NodeState, encode
from meshbus.web.logstate import ConsumerLag, LogState, read_logs
from meshbus.web.snapshot import MAX_BYTES, MAX_NAMED, MAX_ROWS, MAX_TEXT, take
from meshbus.wire.keys import Role, derive_keys
from tests.node.test_node import until
from tests.patience import PATIENCE_S

PSK = "5a" * 32
AWAY = {"address": "127.0.0.1:9", "public_key": "11" * 32, "node_id": "01"}


def node(**settings: Any) -> Node:
    return Node.open(NodeConfig.load(None, {}, psk=PSK, ephemeral=True, **settings))


def look(opened: Node) -> Document:
    found = take(opened, [], [], 5_000_000_000)
    assert msgspec.json.decode(encode(found), type=Document) == found
    return found


async def look_until(opened: Node, holds: Callable[[Document], object]) -> Document:
    """Look until something holds that nobody tells us about."""
    await until(lambda: holds(look(opened)))
    return look(opened)


def states(found: Document) -> dict[str | None, NodeState]:
    return {row.name: row.state for row in found.nodes}


async def test_a_node_alone() -> None:
    async with node(name="hub", gateway=True, subnet="3.7") as opened:
        found = look(opened)
        assert (found.at_ms, found.about.name, found.about.address) == (5000, "hub", opened.address)
        assert (found.about.subnet, found.about.gateway) == ("3.7", True)
        assert states(found) == {"hub": NodeState.HERE}
        assert (found.nodes[0].subnet, found.nodes[0].gateway, found.nodes[0].hops) == ("3.7", True, 0)
        assert (found.logs, found.consumers, found.daemons) == (None, None, None)  # it keeps and runs none
        assert (found.peers, found.channels, found.losses, found.replicas) == ((), (), (), ())
        assert found.problems == ()
        assert found.sent.events_per_s is None
        assert found.forwarded == 0


async def test_what_is_passed_on_for_others_is_counted_in_packets() -> None:
    async with node(name="relay") as relay, node(name="west") as west, node(name="east") as east:
        for end in (west, east):
            await end.connect(relay.address, public_key=relay.public_key)
        await west.connect(None, public_key=east.public_key)
        async with west.subscribe("sensors/a") as subscription, asyncio.timeout(PATIENCE_S):
            await east.publisher("sensors/a").publish(b"1")
            await anext(aiter(subscription))
            found = await look_until(relay, lambda found: found.forwarded > 0)
        assert found.forwarded <= relay.counters["transit"]["forwarded"]  # which may have passed on more meanwhile
        assert found.sent.events == 0


async def test_numbers_are_those_of_the_counters() -> None:
    async with node(name="hub") as hub, node(name="leaf") as leaf:
        await leaf.connect(hub.address, public_key=hub.public_key)
        async with leaf.subscribe("sensors/a") as subscription, asyncio.timeout(PATIENCE_S):
            await hub.publisher("sensors/a").publish_batch([b"12", b"345"])
            events = aiter(subscription)
            for _ in range(2):
                await anext(events)
            sent = await look_until(hub, lambda found: states(found).get("leaf") is NodeState.ALIVE)
            got = await look_until(leaf, lambda found: states(found).get("hub") is NodeState.ALIVE)
        (channel,) = sent.channels
        assert (channel.channel, channel.publishes, channel.subscribers) == ("sensors/a", True, 1)
        assert (channel.published.events, channel.published.bytes) == (2, 5)
        assert (sent.sent.events, sent.sent.bytes) == (2, 5)
        assert (got.received.events, got.received.bytes) == (2, 5)
        assert got.channels[0].received.events == 2
        assert got.channels[0].subscribed
        assert [who.name for who in got.channels[0].publisher_names] in ([], ["hub"])  # announced a moment later
        (peer,) = got.peers
        assert (peer.name, peer.state, peer.path, peer.address) == ("hub", NodeState.ALIVE, "direct", hub.address)
        assert peer.tries is None
        assert got.states == {"here": 1, "alive": 1}


async def test_a_denial_is_told_with_its_sentence() -> None:
    channels = [{"name": "secret", "require_token": True}]
    async with node(channels=channels) as hub, node() as leaf:
        await leaf.connect(hub.address, public_key=hub.public_key)
        hub.publisher("secret")
        try:
            async with leaf.subscribe("secret", publisher=hub.node_id):
                raise AssertionError("it was accepted")
        except ChannelError:
            pass
        found = look(hub)
        denials = {row.why: row for row in found.losses if row.kind == "refuse"}
        counted = hub.counters["refuse"]
    assert {why: row.count for why, row in denials.items()} == counted
    reasons = {reason.counter: reason.sentence for reason in Reason}
    assert all(row.sentence == reasons["refuse", why] for why, row in denials.items())
    assert {"token", "unpinned"} & set(denials)


async def test_the_topology_has_subnets_gateways_and_ways() -> None:
    rules = [
        {"match_tags": ["zone:west"], "target_subnet": "3.7"},
        {"match_tags": ["zone:east"], "target_subnet": "3.8"},
    ]
    subnets = {"subnet_rules": rules}
    async with (
        node(name="gate", gateway=True, subnet="3", peer_subnets=["3.7", "3.8"], **subnets) as gate,
        node(name="west", subnet="3.7", tags=["zone:west"], heartbeat_s=0.1, **subnets) as west,
        node(name="east", subnet="3.8", tags=["zone:east"], heartbeat_s=0.1, **subnets) as east,
    ):
        for one in (west, east):
            await one.connect(gate.address, public_key=gate.public_key)

        def complete(found: Document) -> bool:
            rows = {row.name: row for row in found.nodes}
            east, gate = rows.get("east"), rows.get("gate")
            known = east is not None and None not in {east.via, east.subnet, east.hops}
            return known and gate is not None and gate.gateway is not None

        rows = {row.name: row for row in (await look_until(west, complete)).nodes}
    assert (rows["east"].state, rows["east"].subnet, rows["east"].path) == (NodeState.HEARD, "3.8", None)
    assert rows["east"].via is not None
    assert (rows["east"].via.name, rows["east"].hops, rows["east"].gateway) == ("gate", 2, None)
    assert (rows["gate"].gateway, rows["gate"].via, rows["gate"].path) == (True, None, "direct")


async def test_a_peer_that_is_away_is_first_and_says_why() -> None:
    async with node(peers=[AWAY], handshake_timeout_s=0.1) as opened:
        found = await look_until(opened, lambda found: found.peers[0].problem is not None)
        assert [row.state for row in found.nodes] == [NodeState.AWAY, NodeState.HERE]
        (peer,) = found.peers
        assert (peer.state, peer.address, peer.path, peer.profile) == (NodeState.AWAY, "127.0.0.1:9", None, None)
        assert peer.tries
        assert found.problems == ("no session with any of 1 configured peers",)


async def test_states_follow_the_failure_detector_and_the_worst_come_first() -> None:
    async with node() as opened:
        for number, health in enumerate((Health.ALIVE, Health.SUSPECTED, Health.FAILED), 1):
            opened.live.engine.peers._by_id[number] = _peer(number, health)
        found = look(opened)
        opened.live.engine.peers._by_id.clear()
    assert [row.state for row in found.peers] == [NodeState.FAILED, NodeState.SUSPECTED, NodeState.ALIVE]
    assert found.states == {"failed": 1, "suspected": 1, "here": 1, "alive": 1}


def test_a_node_without_a_session_is_silent_after_the_session_timeout() -> None:
    from meshbus.engine.routes.proximity import Abilities, GraphNode
    from meshbus.wire.pingwave import Health as WaveHealth

    heard = GraphNode(1, "there", 2, 0, 1, 0, WaveHealth.HEALTHY, Abilities(), seen_at=100.0)
    assert snapshot._state(None, False, heard, 130.0, 30.0) is NodeState.HEARD
    assert snapshot._state(None, False, heard, 130.1, 30.0) is NodeState.SILENT
    assert snapshot._state(None, True, heard, 100.0, 30.0) is NodeState.AWAY
    assert snapshot._state(None, False, None, 100.0, 30.0) is NodeState.HEARD


async def test_logs_and_consumers(tmp_path: Path) -> None:
    channels = [{"prefix": "sensors/", "log": "published"}]
    async with node(log_dir=tmp_path, channels=channels) as opened:
        await opened.publisher("sensors/a").publish_batch([b"1", b"2", b"3"])
        publish_consumer(tmp_path, "spark", {"published:sensors/a": 1}, 2_000_000_000)
        logs, lags = await read_logs(opened)
        found = take(opened, logs, lags, 5_000_000_000)
    assert found.logs is not None
    (log,) = found.logs
    assert (log.log, log.channel, log.appended, log.first_seq, log.next_seq) == ("published", "sensors/a", 3, 0, 3)
    assert (log.refused, log.failures, log.waits) == (0, 0, None)
    assert found.consumers == (ConsumerRow(consumer="spark", log="published", channel="sensors/a", lag=2, age_s=3.0),)


def test_replicas_and_daemons() -> None:
    members = tuple(
        ReplicaMemberStatus(number, None, number < 3, lag=lag) for number, lag in ((1, 0), (2, 7), (3, None))
    )
    status = ReplicaStatus(
        channel="alarms",
        role="leader",
        epoch=3,
        leader=1,
        members=members,
        tail=12,
        committed=10,
        lag_s=None,
        acks=Acks.MAJORITY,
        waiting="no majority",
    )
    row = snapshot._replica(status, {1: "west"}.get)
    assert row.leader is not None
    assert (row.leader.name, row.waits, row.silence_s) == ("west", "no majority", None)
    assert [(one.lag, one.connected) for one in row.members] == [(0, True), (7, True), (None, False)]
    info = DaemonInfo(origin=1, name="counter", state=DaemonState.FAILED, node=2, errors=2, error="it\nbroke")
    daemon = snapshot._daemon(info, {2: "east"}.get)
    assert daemon.node is not None
    assert (daemon.name, daemon.state, daemon.node.name, daemon.processed) == ("counter", "failed", "east", None)
    assert (daemon.errors, daemon.problem) == (2, "it broke")


def test_texts_of_others_are_cut_and_printable() -> None:
    assert snapshot._text("a\x1b[2Jb\n") == "a [2Jb "
    assert len(snapshot._text("x" * 5000)) == MAX_TEXT


async def test_a_document_has_a_largest_size_however_large_the_mesh_is(tmp_path: Path) -> None:
    longest = "c" * 255
    channels = [f"{number:04}/{longest[5:]}" for number in range(600)]
    async with node(name="n" * 63, log_dir=tmp_path, daemons_dir=tmp_path / "d") as opened:
        engine = opened.live.engine
        for number in range(1, 1001):
            engine.peers._by_id[number] = _peer(number, Health.FAILED)
            opened._names.put(number, "n" * 63)
        for channel in channels:
            opened.live.received.add(channel, 1 << 50, 1 << 50)
            engine.publications.tally.add(channel, 1 << 50, 1 << 50)
        logs = [LogState("published", channel, 1 << 50, 1 << 51, 1 << 50, _stats()) for channel in channels]
        lags = [ConsumerLag("\x00" * 500, "published", channel, 1 << 50, 0) for channel in channels]
        found = take(opened, logs, lags, 5_000_000_000)
        engine.peers._by_id.clear()
    assert found.left_out == {"nodes": 801, "peers": 800, "channels": 400, "logs": 400, "consumers": 400}
    assert found.states == {"failed": 1000, "here": 1}
    everything = msgspec.structs.replace(
        found,
        losses=tuple(
            LossRow(kind=one.what, why=one.why, count=1 << 50, per_s=1e12, sentence=one.sentence) for one in Reason
        ),
        replicas=tuple(snapshot._replica(_replicated(channel), lambda _: "n" * 63) for channel in channels[:MAX_ROWS]),
        daemons=tuple(snapshot._daemon(_daemon(channel), lambda _: "n" * 63) for channel in channels[:MAX_ROWS]),
        peers=tuple(msgspec.structs.replace(row, problem="ä" * MAX_TEXT, tries=9) for row in found.peers),
    )
    assert MAX_BYTES // 2 < len(encode(everything)) <= MAX_BYTES


def _peer(number: int, health: Health) -> Peer:
    link = Link(derive_keys(bytes(32), Role.INITIATOR), Role.INITIATOR, ("10.0.0.1", number), 0.0)
    peer = Peer(number, link, 0.0)
    peer.health = health
    return peer


def _stats() -> Any:
    from meshbus.log.status import LogStats

    return LogStats(
        appended=1 << 50, appended_bytes=1 << 50, refused=1 << 50, upkeep_failures=1 << 50, waits="ä" * 5000
    )


def _replicated(channel: str) -> ReplicaStatus:
    members = tuple(ReplicaMemberStatus(number, "n" * 63, True, 1 << 50, 1 << 50) for number in range(16))
    return ReplicaStatus(
        channel=channel,
        role="candidate",
        epoch=1 << 50,
        leader=1,
        members=members,
        tail=1 << 50,
        committed=1 << 50,
        lag_s=1e9,
        acks=Acks.MAJORITY,
        waiting="ä" * 5000,
    )


def _daemon(channel: str) -> DaemonInfo:
    inputs = tuple(DaemonInput(channel, None, 1 << 50) for _ in range(2 * MAX_NAMED))
    return DaemonInfo(
        origin=1 << 60,
        name="ä" * 5000,
        state=DaemonState.ARRIVING,
        node=1,
        inputs=inputs,
        output=channel,
        processed=1 << 50,
        error="ä" * 5000,
    )
