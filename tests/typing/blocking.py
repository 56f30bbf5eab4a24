"""A program that uses the blocking twins, right and wrong; see test_typing.py. It is checked, never run."""

from typing import assert_type

from meshbus import Event, EventBatch, PublishReport, sync
from meshbus.edge import sync as edge
from meshbus.node.peers.info import PeerInfo


def right(key: bytes) -> None:
    with sync.Node.open(psk=b"Z" * 32, ephemeral=True) as node:
        assert_type(node, sync.Node)
        assert_type(node.connect("10.0.0.7:9000", public_key=key, routed=False), PeerInfo)
        assert_type(node.look(lambda inner: inner.mesh.nat.nat.value), str)
        with node.publisher("sensors/lidar", reliable=True) as publisher:
            assert_type(publisher.publish(memoryview(b"x")), PublishReport)
            assert_type(publisher.publish_once(None, writer="w", batch=1), int)
        with node.subscribe("sensors/", since="first") as subscription:
            for event in subscription:
                assert_type(event, Event)
            assert_type(subscription.next_batch(timeout_s=1), EventBatch | None)
        with node.respond("planner/plan", lambda question: question):
            assert_type(node.request(7, "planner/plan", b"?"), bytes)
    with edge.Pub(high_water=10, insecure=True) as pub, edge.Sub() as sub:
        sub.connect(pub.bind("tcp://127.0.0.1:*"), timeout_s=1)
        assert_type(pub.publish("topic", b"body"), int)
        assert_type(sub.receive(timeout_s=1), tuple[bytes, ...])


def wrong(node: sync.Node) -> None:
    sync.Node.open(ephemeral="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.connect("10.0.0.7:9000", key=b"")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.subscribe("a", when="full")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    node.publisher("a", on_failure=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    node.respond("a", answer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    edge.Pub(high_watermark=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    edge.Pub().publish(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    edge.Sub().receive("soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def answer(question: bytes) -> bytes:
    return question
