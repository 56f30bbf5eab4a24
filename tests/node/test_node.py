"""Live nodes on loopback: connect, publish, subscribe, refuse, restart, close."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
import pytest

from meshbus.engine.base.notices import Matched, SessionUp, Subscribed
from meshbus.engine.channels.publish import OnFailure
from meshbus.errors import (
    ChannelError,
    ConfigError,
    HandshakeError,
    LocalProtocolError,
    PartialDelivery,
    PeerError,
    Timeout,
)
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.nodename import NAME_KEY
from meshbus.node import node as node_module
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.node import Node
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.patience import PATIENCE_S

PSK = "5a" * 32
QUICK: dict[str, Any] = {"psk": PSK, "ephemeral": True, "handshake_timeout_s": 0.2, "membership_ack_timeout_s": 1.0}


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    """A publisher, and a subscriber connected to it."""
    async with Node.open(**QUICK) as publisher, Node.open(**QUICK) as subscriber:
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        yield publisher, subscriber


async def until(holds: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until something holds that nobody tells us about."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - it happens in another node
            await asyncio.sleep(0.01)


async def take(subscription: object, count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in subscription.batches():  # type: ignore[attr-defined]
            got += batch.payloads()
            if len(got) >= count:
                return got
    return got


async def test_one_address_and_one_key_are_enough(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    assert [peer.node_id for peer in subscriber.peers] == [publisher.node_id]
    async with subscriber.subscribe("sensors/lidar") as subscription:
        assert publisher.roster.members("sensors/lidar")
        report = await publisher.publisher("sensors/lidar").publish(b"hello")
        assert (report.attempted, report.delivered, report.errors) == (1, 1, ())
        assert await take(subscription, 1) == [b"hello"]


@pytest.mark.parametrize("reliable", [False, True])
async def test_batches_of_any_sizes_arrive_whole_and_in_order(nodes: tuple[Node, Node], reliable: bool) -> None:
    publisher, subscriber = nodes
    events = [bytes([n % 251]) * (n * 37 % 8105) for n in range(600)]
    async with subscriber.subscribe("mixed/sizes") as subscription:
        report = await publisher.publisher("mixed/sizes", reliable=reliable).publish_batch(pa.array(events))
        assert report.all_delivered
        assert await take(subscription, len(events)) == events


async def test_a_publish_without_subscribers_is_a_report_not_an_error(nodes: tuple[Node, Node]) -> None:
    publisher, _ = nodes
    report = await publisher.publisher("sensors/lidar").publish(b"hello")
    assert report.is_empty
    assert report.all_delivered


async def test_events_that_no_subscription_takes_are_counted(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    await subscriber.subscribe_channel(publisher.node_id, "sensors/lidar")
    await publisher.publisher("sensors/lidar").publish_batch([b"a", b"b"])
    what, why = Reason.NOBODY_LISTENS.counter
    await until(lambda: subscriber.counters.get(what, {}).get(why) == 2)


async def test_leaving_ends_the_subscription_at_the_publisher(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("sensors/lidar"):
        pass
    await until(lambda: not publisher.roster.members("sensors/lidar"))


async def test_later_peers_are_asked_too() -> None:
    async with AsyncExitStack() as stack:
        publisher, subscriber = [await stack.enter_async_context(Node.open(**QUICK)) for _ in range(2)]
        subscription = await stack.enter_async_context(subscriber.subscribe("sensors/lidar"))
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with asyncio.timeout(PATIENCE_S):
            async for notice in publisher.notices():
                if isinstance(notice, Subscribed):
                    break
        await publisher.publisher("sensors/lidar").publish(b"late but there")
        assert await take(subscription, 1) == [b"late but there"]


async def test_refusals_carry_the_reason(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName("secret"), require_token=True))
    registry.insert(ChannelConfig(name=ChannelName("gpu/only"), subscribe_caps=CapabilityFilter(require_tags=("gpu",))))
    publisher.set_channel_configs(registry)
    for channel, reason in (("secret", "unauthorized"), ("gpu/only", "unauthorized"), ("nowhere", "unknown_channel")):
        with pytest.raises(ChannelError, match=reason) as refused:
            async with subscriber.subscribe(channel):
                pass
        assert refused.value.reason == reason
    with pytest.raises(PeerError, match="unknown"):
        await subscriber.subscribe_channel(12345, "secret")


async def test_a_node_that_cannot_start_frees_its_port() -> None:
    twice = [{"name": "sensors/lidar"}, {"name": "sensors/lidar"}]
    with UdpSocket.bind("127.0.0.1", 0) as chosen:
        port = chosen.address[1]
    for _ in range(2):  # the second would find the port taken
        with pytest.raises(ConfigError, match="configured twice"):
            await Node.open(psk=PSK, ephemeral=True, bind=f"127.0.0.1:{port}", channels=twice).start()
    UdpSocket.bind("127.0.0.1", port).close()


async def test_a_token_of_the_publisher_opens_the_channel() -> None:
    import os
    import time

    identity = Identity.generate(os.urandom)
    async with Node.open(**QUICK) as subscriber:
        node = Node(Node.open(**QUICK).config, identity=identity)
        async with node as publisher:
            registry = ChannelConfigRegistry()
            registry.insert(ChannelConfig(name=ChannelName("secret"), require_token=True))
            publisher.set_channel_configs(registry)
            now = time.time_ns() / 1e9
            tokens = [
                PermissionToken.issue(identity, who, scope, "secret", ttl_s=60, now=now, entropy=os.urandom)
                for who, scope in ((identity.entity_id, Scope.PUBLISH), (subscriber.public_key, Scope.SUBSCRIBE))
            ]
            publisher.add_token(tokens[0])
            subscriber.add_token(tokens[1])
            await subscriber.connect(publisher.address, public_key=publisher.public_key)
            await until(lambda: len(publisher.find_nodes()) == 2)
            async with subscriber.subscribe("secret") as subscription:
                await publisher.publisher("secret").publish(b"between us")
                assert await take(subscription, 1) == [b"between us"]


async def test_the_errors_of_wrong_keys_and_of_no_answer() -> None:
    stranger = Identity.generate(lambda n: bytes(range(n)))
    async with Node.open(**QUICK) as node, Node.open(**{**QUICK, "psk": "00" * 32}) as other:
        for address, key in ((other.address, other.public_key), ("127.0.0.1:9", stranger.entity_id)):
            with pytest.raises(HandshakeError, match=r"mesh key|no program listens"):
                await node.connect(address, public_key=key)
        with pytest.raises(LocalProtocolError, match="public key"):
            await node.connect(other.address, public_key="zz")
        assert other.counters["drop"]


async def test_an_oversize_event_is_refused_and_nothing_is_sent(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("sensors/lidar") as subscription:
        sender = publisher.publisher("sensors/lidar")
        with pytest.raises(LocalProtocolError, match="max_event_bytes is 16777216"):
            await sender.publish_batch([b"fine", bytes((16 << 20) + 1)])
        await sender.publish(b"next")
        assert await take(subscription, 1) == [b"next"]


async def test_a_publisher_without_credit_reports_backpressure(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("flood", max_events=10, when_full="block") as subscription:
        sender = publisher.publisher("flood", wait_s=0.0, on_failure=OnFailure.COLLECT)
        reports = [await sender.publish_batch([bytes(4000)] * 20) for _ in range(60)]
        assert any(error.code == "backpressure" for report in reports for error in report.errors)
        with pytest.raises(PartialDelivery):
            await publisher.publisher("flood", wait_s=0.0).publish_batch([bytes(4000)] * 400)
        assert subscription.stats.dropped == 0


@pytest.mark.parametrize("prefix", ["sensors/", ""])
async def test_a_prefix_subscription_includes_present_and_future_channels(
    nodes: tuple[Node, Node], prefix: str
) -> None:
    publisher, subscriber = nodes
    await until(lambda: all(peer.profile for peer in subscriber.peers))
    lidar = publisher.publisher("sensors/lidar")
    async with subscriber.subscribe(prefix) as subscription:
        assert publisher.roster.members("sensors/lidar")
        await lidar.publish(b"1")
        assert await take(subscription, 1) == [b"1"]
        radar = publisher.publisher("sensors/radar")  # appears later
        await until(lambda: publisher.roster.members("sensors/radar"))
        await radar.publish(b"2")
        assert await take(subscription, 1) == [b"2"]
        if prefix:
            assert (await publisher.publisher("other").publish(b"3")).is_empty
    await until(lambda: not publisher.roster.members("sensors/lidar"))


async def test_a_prefix_reaches_peers_that_agree_on_the_profile_later() -> None:
    async with Node.open(**QUICK) as publisher, Node.open(**QUICK) as subscriber:
        sender = publisher.publisher("sensors/lidar")
        async with subscriber.subscribe("sensors/") as subscription:
            await subscriber.connect(publisher.address, public_key=publisher.public_key)
            await until(lambda: publisher.roster.members("sensors/lidar"))
            await sender.publish(b"hello")
            assert await take(subscription, 1) == [b"hello"]


async def test_requests_are_answered_and_failures_reported(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    await until(lambda: all(peer.profile for peer in subscriber.peers))

    async def plan(question: bytes) -> bytes:
        if not question:
            raise ValueError("nothing to plan")
        return question.upper()

    async with publisher.respond("planner/plan", plan):
        assert await subscriber.request(publisher.node_id, "planner/plan", b"left") == b"LEFT"
        with pytest.raises(ChannelError, match="nothing to plan"):
            await subscriber.request(publisher.node_id, "planner/plan", b"")
        with pytest.raises(ChannelError, match="already has a responder"):
            async with publisher.respond("planner/plan", plan):
                pass


async def test_a_request_without_a_responder_is_an_error(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    await until(lambda: all(peer.profile for peer in subscriber.peers))
    with pytest.raises(ChannelError, match=r"no_responder|unknown_channel"):
        await subscriber.request(publisher.node_id, "planner/plan", b"?", timeout_s=2)


async def test_a_restarted_node_uses_its_port_and_its_subscribers_return() -> None:
    import os

    identity = Identity.generate(os.urandom)
    async with Node.open(**QUICK) as subscriber:
        first = Node(Node.open(**QUICK).config, identity=identity)
        await first.start()
        address = first.address
        await subscriber.connect(address, public_key=first.public_key)
        subscription = subscriber.subscribe("sensors/lidar")
        await subscription.__aenter__()
        await first.close()
        async with Node(Node.open(**{**QUICK, "bind": address}).config, identity=identity) as second:
            assert second.address == address
            await subscriber.connect(address, public_key=second.public_key)
            await until(lambda: second.roster.members("sensors/lidar"))
            await second.publisher("sensors/lidar").publish(b"again")
            assert await take(subscription, 1) == [b"again"]
        await subscription.close()


async def test_notices_report_what_happens(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with asyncio.timeout(PATIENCE_S):
        async for notice in publisher.notices():
            if isinstance(notice, SessionUp):
                assert notice.node_id == subscriber.node_id
                break


async def test_ipv6_works_the_same() -> None:
    quick = {**QUICK, "bind": "[::1]:0"}
    async with Node.open(**quick) as publisher, Node.open(**quick) as subscriber:
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with subscriber.subscribe("six") as subscription:
            await publisher.publisher("six").publish(b"6")
            assert await take(subscription, 1) == [b"6"]


async def echo(question: bytes) -> bytes:
    return question


async def test_closing_the_last_publisher_removes_the_channel_from_prefix_subscribers(
    nodes: tuple[Node, Node],
) -> None:
    publisher, subscriber = nodes
    await until(lambda: all(peer.profile for peer in subscriber.peers))
    vanished: list[object] = []
    subscriber.watch(lambda notice: vanished.extend(notice.removed) if isinstance(notice, Matched) else None)
    async with subscriber.subscribe("sensors/") as subscription:
        first = publisher.publisher("sensors/lidar")
        async with publisher.publisher("sensors/lidar") as second:
            await until(lambda: publisher.roster.members("sensors/lidar"))
            await first.close()
            await first.close()
            await second.publish(b"still here")
            assert await take(subscription, 1) == [b"still here"]
            assert vanished == []
        await until(lambda: vanished == [ChannelName("sensors/lidar")])
        assert publisher.roster.members("sensors/lidar") == []
    for closed in (first, second):
        with pytest.raises(LocalProtocolError, match="the publisher of 'sensors/lidar' is closed"):
            await closed.publish(b"too late")
    late = publisher.publisher("sensors/lidar")
    await publisher.close()
    await late.close()
    with pytest.raises(LocalProtocolError, match="is closed"):
        await late.publish_batch([b"too late"])


async def test_a_publisher_outlives_its_node_without_publishing(nodes: tuple[Node, Node]) -> None:
    publisher, _ = nodes
    sender = publisher.publisher("sensors/lidar")
    await publisher.close()
    with pytest.raises(LocalProtocolError, match="the node is not open"):
        await sender.publish(b"too late")


async def test_using_a_node_that_is_not_open_is_an_error() -> None:
    node = Node.open(**QUICK)
    subscription = node.subscribe("a")
    for call in (lambda: node.publisher("a"), lambda: node.peers, lambda: node.respond("a", echo)):
        with pytest.raises(LocalProtocolError, match="not open"):
            call()
    for waiting in (node.connect("127.0.0.1:9", public_key=b""), subscription.__aenter__(), node.request(1, "a", b"")):
        with pytest.raises(LocalProtocolError, match="not open"):
            await waiting
    await subscription.close()
    await node.close()
    async with node:
        with pytest.raises(ConfigError, match="is used by another"):
            await Node.open(**{**QUICK, "bind": node.address}).start()


@pytest.mark.parametrize("reliable", [False, True])
async def test_counters_count_traffic_the_same_on_both_sides(nodes: tuple[Node, Node], reliable: bool) -> None:
    publisher, subscriber = nodes
    await until(
        lambda: publisher.peers and publisher.peers[0].profile and subscriber.peers and subscriber.peers[0].profile
    )
    async with subscriber.subscribe("sensors/lidar") as subscription, subscriber.inbox() as inbox:
        lidar = publisher.publisher("sensors/lidar", reliable=reliable)
        await lidar.publish_batch([bytes(size) for size in range(1, 400)])  # of mixed sizes, so that some are padded
        await lidar.publish(bytes(1000))
        publisher.send(subscriber.node_id, b"hello", b"again")
        await take(subscription, 400)
        await take(inbox, 2)
        traffic = {"events": 402, "bytes": sum(range(1, 400)) + 1000 + 10}
        assert publisher.counters["sent"] == traffic
        assert subscriber.counters["received"] == traffic
        assert publisher.counters["received"] == subscriber.counters["sent"] == {"events": 0, "bytes": 0}


async def test_counters_have_plain_words_as_keys_and_a_healthy_mesh_has_no_drops(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("sensors/lidar", max_events=1) as subscription, subscriber.inbox() as inbox:
        await publisher.publisher("sensors/lidar").publish_batch([b"1", b"2"])
        await publisher.publisher("sensors/lidar").publish(b"3")
        await until(lambda: publisher.peers)  # from its first packet on
        for _ in range(3):
            publisher.send(subscriber.node_id, b"hello")
            await take(inbox, 1)
            await asyncio.sleep(0.02)  # a grant comes after 5 ms
        await take(subscription, 3)
        for node in nodes:
            counters = node.counters
            assert "drop" not in counters
            assert all(type(word) is str for what, counts in counters.items() for word in (what, *counts))
            assert not any("sensors" in word for counts in counters.values() for word in counts)
        assert subscriber.counters["slow_consumer"]["subscription"] >= 1


async def test_a_publish_that_waits_for_credit_ends_with_an_error_when_its_node_closes(
    nodes: tuple[Node, Node],
) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("flood", max_events=1, when_full="block"):
        sender = publisher.publisher("flood", wait_s=600.0)
        stuck = asyncio.ensure_future(sender.publish_batch([bytes(4000)] * 4000))
        await asyncio.sleep(0.2)
        assert not stuck.done()
        await publisher.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(LocalProtocolError, match="the node was closed"):
                await stuck


async def test_two_concurrent_closes_both_return_and_both_wait_for_the_end(nodes: tuple[Node, Node]) -> None:
    _, subscriber = nodes
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(subscriber.subscribe("sensors/lidar"))
        await asyncio.gather(subscriber.close(), subscriber.close(), subscriber.close())
    await subscriber.close()


async def test_a_peer_that_closed_is_gone_at_once(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    await until(lambda: all(peer.profile for node in nodes for peer in node.peers))
    await publisher.close()
    await until(lambda: not subscriber.peers)


async def test_a_node_that_closes_right_after_it_connected_says_goodbye() -> None:
    async with Node.open(**QUICK) as base:
        for _ in range(5):
            async with Node.open(**QUICK) as rover:
                await rover.connect(base.address, public_key=base.public_key)
            await until(lambda: not base.peers)


async def test_a_prefix_subscription_right_after_connect_is_live_when_it_was_entered() -> None:
    async with Node.open(**QUICK) as publisher, Node.open(**QUICK) as subscriber:
        lidar = publisher.publisher("sensors/lidar")
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with subscriber.subscribe("sensors/") as subscription:
            assert subscription.publishers == (publisher.node_id,)
            assert (await lidar.publish(b"first")).delivered == 1
            assert await take(subscription, 1) == [b"first"]


async def test_who_holds_a_chain_is_known_to_the_others(nodes: tuple[Node, Node]) -> None:
    holder, other = nodes
    holder.announce_chain("alarms/fire", tip=3)
    holder.announce_chain(0x1234)
    await until(lambda: other.find_chain_holders(0x1234) == [holder.node_id])
    assert other.find_chain_holders("alarms/fire") == holder.find_chain_holders("alarms/fire") == [holder.node_id]
    other.announce_chain("alarms/fire")
    assert other.find_chain_holders("alarms/fire") == [other.node_id, holder.node_id]
    holder.withdraw_chain(0x1234)
    assert holder.find_chain_holders(0x1234) == []
    with pytest.raises(ConfigError, match="64 bits"):
        holder.announce_chain(-1)
    with pytest.raises(ChannelError):
        holder.find_chain_holders("not a channel!")


async def test_names_of_nodes_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "MAX_NAMES", 2)
    async with Node.open(**QUICK) as node:
        capabilities = CapabilitySet((), {NAME_KEY: "somebody"})
        monkeypatch.setattr(node.live.engine.directory, "capabilities_of", lambda _: capabilities)
        for node_id in range(1, 6):
            node._learn_name(node_id)
        assert len(node._names) == 2
        assert node.counters["forget"]["node_names"] == 3


async def test_a_bind_address_whose_name_takes_long_to_look_up_does_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turned, real = threading.Event(), UdpSocket.bind

    def slow(host: str, port: int, **options: Any) -> UdpSocket:
        assert turned.wait(PATIENCE_S), "the loop stood still while the name was looked up"
        return real("127.0.0.1", port, **options)

    monkeypatch.setattr(UdpSocket, "bind", slow)
    node = Node.open(psk=bytes(32), ephemeral=True, bind="localhost:0")
    starting = asyncio.ensure_future(node.start())
    await asyncio.sleep(0)
    turned.set()
    await starting
    await node.close()


async def test_a_peer_is_pinged_by_id_and_by_name() -> None:
    async with Node.open(psk=PSK, ephemeral=True, name="hub") as hub, Node.open(psk=PSK, ephemeral=True) as leaf:
        await leaf.connect(hub.address, public_key=hub.public_key)
        assert 0 < await leaf.ping(hub.node_id) < PATIENCE_S
        async with asyncio.timeout(PATIENCE_S):
            while leaf.name_of(hub.node_id) is None:  # noqa: ASYNC110 - the name comes with the announcement
                await asyncio.sleep(0.01)
        assert 0 < await leaf.ping("hub", timeout_s=PATIENCE_S) < PATIENCE_S
        assert leaf.uptime_s > 0
        with pytest.raises(LocalProtocolError, match="no node, or more than one, announced the name 'rover'"):
            await leaf.ping("rover")
        with pytest.raises(PeerError):
            await leaf.ping(7)
        hub.live.driver.close()  # it no longer answers
        with pytest.raises(Timeout, match=r"ping of [0-9a-f]{16}: no answer within 0\.05 s"):
            await leaf.ping(hub.node_id, timeout_s=0.05)
