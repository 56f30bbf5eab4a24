"""A program that uses the asynchronous node, right and wrong; see test_typing.py. It is checked, never run."""

from pathlib import Path
from typing import assert_type

import meshbus
from meshbus import (
    ChannelPublisher,
    Event,
    EventBatch,
    Node,
    NodeConfig,
    OnFailure,
    PublishConfig,
    PublishReport,
    Subscription,
    WhenFull,
)
from meshbus.node.peers.info import PeerInfo


async def right(key: bytes) -> None:
    async with Node.open(psk="5a" * 32, ephemeral=True, tags=["lidar"], heartbeat_s=1) as node:
        assert_type(node, Node)
        assert_type(node.node_id, int)
        assert_type(node.peers, list[PeerInfo])
        assert_type(await node.connect("10.0.0.7:9000", public_key=key), PeerInfo)
        assert_type(await node.connect(public_key="ab" * 32, node_id=7, profile="plain"), PeerInfo)
        publisher = node.publisher("sensors/lidar", wait_s=0.5, on_failure=OnFailure.COLLECT)
        assert_type(publisher, ChannelPublisher)
        assert_type(await publisher.publish("text"), PublishReport)
        assert_type(await publisher.publish_batch([b"a", b"b"]), PublishReport)
        async with node.publisher("sensors/radar", PublishConfig(reliable=True)) as radar:
            assert_type(radar, ChannelPublisher)
        async with node.subscribe("sensors/", when_full=WhenFull.FAIL, max_events=10) as subscription:
            assert_type(subscription, Subscription)
            async for event in subscription:
                assert_type(event, Event)
                assert_type(event.payload, bytes)
            async for batch in subscription.batches():
                assert_type(batch, EventBatch)
            assert_type(await subscription.next_batch(), EventBatch | None)
        assert_type(await node.request(7, "planner/plan", b"?", timeout_s=2), bytes)
        async with node.respond("planner/plan", echo):
            pass
    Node.open(NodeConfig.load("node.toml"))
    Node.open(Path("node.toml"), log_dir=Path("logs"), channels=[{"name": "a", "log": "published"}])


async def wrong(node: Node) -> None:
    Node.open(psks="5a" * 32)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Node.open(heartbeat_s="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.connect("10.0.0.7:9000")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await node.connect("10.0.0.7:9000", b"key")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.publisher("a", wait=0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.publisher("a", wait_s="0.5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await node.publisher("a").publish(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.subscribe("a", "group")  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    node.subscribe("a", since=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with node.subscribe("a"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    node.respond("a", plain_echo)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.node_id = 7  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    meshbus.Nodes.open()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def echo(question: bytes) -> bytes:
    return question


def plain_echo(question: bytes) -> bytes:
    return question
