"""Joining: which tokens are presented, who is asked and waited for, and what became of it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from meshbus.engine.session.peer import Health
from meshbus.errors import ChannelError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.channels.joining import Joiner
from meshbus.node.channels.subscribers import Subscribers, SubscriptionSpec
from meshbus.node.channels.subscription import SubscriptionRefusal
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.node import Node
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.registry import NegotiatedSet
from meshbus.policy.tokens import TokenCache
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain
from tests.node.test_node import QUICK, take, until
from tests.patience import PATIENCE_S

MEMBERSHIP, INTEREST = Subprotocol.MEMBERSHIP, Subprotocol.INTEREST


def test_only_matching_tokens_are_presented() -> None:
    issuer, me = (Identity.generate(os.urandom) for _ in range(2))

    def token(channel: str, scope: Scope, subject: Identity) -> PermissionToken:
        now = time.time_ns() / 1e9
        return PermissionToken.issue(issuer, subject.entity_id, scope, channel, ttl_s=60, now=now, entropy=os.urandom)

    good = token("a", Scope.SUBSCRIBE, me)
    others = [token("b", Scope.SUBSCRIBE, me), token("a", Scope.PUBLISH, me), token("a", Scope.SUBSCRIBE, issuer)]
    live: Live = SimpleNamespace(engine=SimpleNamespace(identity=me, tokens=TokenCache()))  # type: ignore[assignment]
    joiner = Joiner(live, Subscribers(), [*((one,) for one in others), (good,)])
    assert joiner.tokens_for(SubscriptionSpec("a")) == [encode_chain((good,))]
    assert joiner.tokens_for(SubscriptionSpec("a", token=b"mine")) == [b"mine"]
    assert joiner.tokens_for(SubscriptionSpec("c")) == [b""]
    assert joiner.tokens_for(SubscriptionSpec("a/")) == [b""], "an interest is judged channel by channel"


def test_tokens_for_a_prefix_are_presented_for_all_below_it_and_only_to_peers_that_know_them() -> None:
    issuer, me = (Identity.generate(os.urandom) for _ in range(2))

    def token(channel: str, scope: Scope = Scope.SUBSCRIBE) -> PermissionToken:
        now = time.time_ns() / 1e9
        return PermissionToken.issue(issuer, me.entity_id, scope, channel, ttl_s=60, now=now, entropy=os.urandom)

    wide, exact = token("a/"), token("a/b")
    spoken = {1: frozenset({Subprotocol.SECURE}), 2: frozenset[int]()}
    peers = {node_id: SimpleNamespace(negotiated=NegotiatedSet(agreed)) for node_id, agreed in spoken.items()}
    live: Live = SimpleNamespace(engine=SimpleNamespace(identity=me, peers=peers, tokens=TokenCache()))  # type: ignore[assignment]
    joiner = Joiner(live, Subscribers(), [(wide,), (exact,), (token("a/", Scope.PUBLISH),)])
    both = [encode_chain((wide,)), encode_chain((exact,))]
    assert joiner.tokens_for(SubscriptionSpec("a/b")) == joiner.tokens_for(SubscriptionSpec("a/b"), 1) == both
    for unknown in (2, 3):
        assert joiner.tokens_for(SubscriptionSpec("a/b"), unknown) == both[1:]
        assert joiner.tokens_for(SubscriptionSpec("a/c"), unknown) == [b""]
    for topic in ("a/", "a/b/", "a/c", "a/b/c/d"):
        assert joiner.tokens_for(SubscriptionSpec(topic), 1) == both[:1]
    for topic in ("a", "", "b/", "ab/", "ab/c"):
        assert joiner.tokens_for(SubscriptionSpec(topic), 1) == [b""]


@pytest.fixture
async def three() -> AsyncIterator[tuple[Node, Node, Node]]:
    """Two publishers, and a subscriber connected to both."""
    async with AsyncExitStack() as stack:
        one, other, subscriber = [await stack.enter_async_context(Node.open(**QUICK)) for _ in range(3)]
        for publisher in (one, other):
            await subscriber.connect(publisher.address, public_key=publisher.public_key)
        await until(lambda: all(peer.profile for peer in subscriber.peers))
        yield one, other, subscriber


def closed(*channels: str) -> ChannelConfigRegistry:
    """Return policies under which only holders of a token may subscribe."""
    registry = ChannelConfigRegistry()
    for channel in channels:
        registry.insert(ChannelConfig(name=ChannelName(channel), require_token=True))
    return registry


async def test_a_subscription_to_one_publisher_stays_free_of_another_that_was_joined_too(
    three: tuple[Node, Node, Node],
) -> None:
    one, other, subscriber = three
    async with (
        subscriber.subscribe("sensors/lidar", publisher=one.node_id) as only,
        subscriber.subscribe("sensors/lidar") as every,
    ):
        await other.publisher("sensors/lidar").publish(b"of the other")
        assert await take(every, 1) == [b"of the other"]
        await one.publisher("sensors/lidar").publish(b"of the one")
        assert await take(only, 1) == [b"of the one"]
        assert only.stats.received == 1
    await until(lambda: not one.roster.members("sensors/lidar") and not other.roster.members("sensors/lidar"))


async def test_the_end_of_a_subscription_keeps_what_another_wants_from_the_same_publisher(
    three: tuple[Node, Node, Node],
) -> None:
    one, other, subscriber = three
    async with subscriber.subscribe("sensors/lidar", publisher=one.node_id):
        async with subscriber.subscribe("sensors/lidar"):
            assert other.roster.members("sensors/lidar")
        await until(lambda: not other.roster.members("sensors/lidar"))
        assert one.roster.members("sensors/lidar") == [subscriber.node_id]


async def test_a_later_peer_is_asked_although_an_older_subscription_names_another_publisher() -> None:
    async with Node.open(**QUICK) as one, Node.open(**QUICK) as late, Node.open(**QUICK) as subscriber:
        await subscriber.connect(one.address, public_key=one.public_key)
        async with (
            subscriber.subscribe("sensors/lidar", publisher=one.node_id),
            subscriber.subscribe("sensors/lidar") as every,
        ):
            await subscriber.connect(late.address, public_key=late.public_key)
            await until(lambda: late.roster.members("sensors/lidar"))
            await late.publisher("sensors/lidar").publish(b"late")
            assert await take(every, 1) == [b"late"]


async def test_a_refusal_of_one_of_two_publishers_is_in_the_result(three: tuple[Node, Node, Node]) -> None:
    one, other, subscriber = three
    other.set_channel_configs(closed("sensors/lidar"))
    async with subscriber.subscribe("sensors/lidar") as subscription:
        assert subscription.refused == (SubscriptionRefusal(other.node_id, "sensors/lidar", "unauthorized"),)
        await one.publisher("sensors/lidar").publish(b"accepted")
        assert await take(subscription, 1) == [b"accepted"]
        other.set_channel_configs(None)
        await subscriber.subscribe_channel(other.node_id, "sensors/lidar")
        assert not subscription.refused


async def test_a_refused_channel_under_a_prefix_is_in_the_result(three: tuple[Node, Node, Node]) -> None:
    one, other, subscriber = three
    other.set_channel_configs(closed("sensors/lidar"))
    one.publisher("sensors/lidar")
    other.publisher("sensors/lidar")
    async with subscriber.subscribe("sensors/") as subscription:
        assert subscription.refused == (SubscriptionRefusal(other.node_id, "sensors/lidar", "unauthorized"),)


async def test_subscribe_does_not_wait_for_a_peer_without_heartbeats(three: tuple[Node, Node, Node]) -> None:
    one, other, subscriber = three
    other.live.driver.close()  # as if its process had stopped: no goodbye, no answer
    subscriber.live.engine.peers.require(other.node_id).health = Health.SUSPECTED
    loop = asyncio.get_running_loop()
    for topic in ("sensors/lidar", "sensors/"):
        began = loop.time()
        async with subscriber.subscribe(topic) as subscription:
            assert loop.time() - began < subscriber.config.membership_ack_timeout_s, "it was not waited for"
            assert SubscriptionRefusal(other.node_id, topic, "silent") in subscription.refused
    with pytest.raises(PeerError, match="heartbeats are missing"):
        async with subscriber.subscribe("sensors/lidar", publisher=other.node_id):
            pass
    await one.publisher("sensors/lidar").publish(b"x")


async def test_a_publisher_that_leaves_is_not_waited_for() -> None:
    patient = {**QUICK, "membership_ack_timeout_s": 60.0}
    async with Node.open(**patient) as subscriber, Node.open(**patient) as publisher:
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        await until(lambda: publisher.peers and publisher.peers[0].profile and subscriber.peers[0].profile)
        publisher.live.engine.reception.handlers.pop(0x0A00)  # it never answers a subscribe
        entering = asyncio.ensure_future(subscriber.subscribe("sensors/lidar").__aenter__())
        await asyncio.sleep(0.05)
        assert not entering.done()
        await publisher.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((PeerError, ChannelError), match="left"):
                await entering
        assert subscriber.peers == []


def deaf(node: Node) -> Any:
    """Make a node drop every subscribe, as if it were lost on the way; return what handles them."""
    return node.live.engine.reception.handlers.pop(MEMBERSHIP)


async def test_a_subscribe_that_was_lost_is_sent_again_for_as_long_as_the_peer_is_there(
    three: tuple[Node, Node, Node],
) -> None:
    one, other, subscriber = three
    handler = deaf(other)
    async with subscriber.subscribe("sensors/lidar") as subscription:
        assert subscription.publishers == (one.node_id,)
        assert [refusal.reason for refusal in subscription.refused] == ["timeout"]
        other.live.engine.reception.handlers[MEMBERSHIP] = handler
        await until(lambda: subscription.publishers == (one.node_id, other.node_id), 30.0)
        assert not subscription.refused
        assert other.roster.members("sensors/lidar") == [subscriber.node_id]


async def test_a_peer_that_let_a_request_time_out_is_waited_for_again_after_its_next_heartbeat(
    three: tuple[Node, Node, Node],
) -> None:
    one, other, subscriber = three
    other.live.driver.close()  # as if its process had stopped: no goodbye, no answer
    peer = subscriber.live.engine.peers.require(other.node_id)
    reasons = []
    for topic in ("sensors/lidar", "sensors/radar"):
        async with subscriber.subscribe(topic) as subscription:
            assert subscription.publishers == (one.node_id,)
            reasons += [refusal.reason for refusal in subscription.refused]
    assert reasons == ["timeout", "silent"], "only the first one waited"
    peer.heard_at = Driver.now()
    async with subscriber.subscribe("sensors/sonar") as subscription:
        assert [refusal.reason for refusal in subscription.refused] == ["timeout"]


async def test_the_answers_of_a_publisher_that_left_are_forgotten(three: tuple[Node, Node, Node]) -> None:
    one, other, subscriber = three
    other.set_channel_configs(closed("sensors/lidar"))
    async with subscriber.subscribe("sensors/lidar") as subscription:
        assert (subscription.publishers, len(subscription.refused)) == ((one.node_id,), 1)
        await one.close()
        await other.close()
        await until(lambda: not subscriber.peers)
        assert (subscription.publishers, subscription.refused) == ((), ())


async def test_an_unsubscribe_does_not_count_as_accepted(three: tuple[Node, Node, Node]) -> None:
    one, other, subscriber = three
    async with subscriber.subscribe("sensors/lidar") as subscription:
        assert set(subscription.publishers) == {one.node_id, other.node_id}
        await subscriber.unsubscribe_channel(one.node_id, "sensors/lidar")
        assert subscription.publishers == (other.node_id,)


async def test_an_interest_that_was_not_answered_is_repeated_for_as_long_as_the_peer_is_there(
    three: tuple[Node, Node, Node],
) -> None:
    one, other, subscriber = three
    handler = other.live.engine.reception.handlers.pop(INTEREST)
    async with subscriber.subscribe("sensors/") as subscription:
        assert subscription.publishers == (one.node_id,)
        assert [refusal.reason for refusal in subscription.refused] == ["timeout"]
        other.live.engine.reception.handlers[INTEREST] = handler
        await until(lambda: set(subscription.publishers) == {one.node_id, other.node_id}, 30.0)


async def test_a_peer_that_recovers_is_asked_for_what_it_never_answered(three: tuple[Node, Node, Node]) -> None:
    one, other, subscriber = three
    subscriber.live.engine.peers.require(other.node_id).health = Health.FAILED
    handler = deaf(other)
    async with subscriber.subscribe("sensors/lidar") as subscription:
        assert [refusal.reason for refusal in subscription.refused] == ["silent"]
        other.live.engine.reception.handlers[MEMBERSHIP] = handler
        await until(lambda: subscription.publishers == (one.node_id, other.node_id), 30.0)
