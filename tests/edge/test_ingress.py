"""Messages of applications wait in bounded queues, and a slow channel does not delay another."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from meshbus.config.edge import EdgeEntry
from meshbus.edge import ingress as subject
from meshbus.edge.ingress import Ingress
from meshbus.edge.queue import HIGH_WATER
from meshbus.edge.refusals import Refusal, Refusals
from meshbus.edge.topics import TopicMap
from meshbus.engine.base.counters import Counters
from meshbus.node.node import Node
from meshbus.policy.reason import Reason
from tests.edge.apps import until

QUICK: dict[str, Any] = {"psk": "5a" * 32, "ephemeral": True, "handshake_timeout_s": 1.0}


class IngressRig:
    """The ingress of one node, without endpoints."""

    def __init__(self, node: Node) -> None:
        self.refused: list[Refusal] = []
        self.counters = Counters()
        self.tasks: list[asyncio.Future[None]] = []
        topics = TopicMap(EdgeEntry(publishers="tcp://127.0.0.1:*", channels_in=("",)))
        refusals = Refusals(self.counters, self.refused.append)
        self.ingress = Ingress(node, topics, self.counters, refusals, self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def idle(self) -> None:
        await asyncio.gather(*self.tasks)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with Node.open(**QUICK) as node, Node.open(**QUICK) as reader:
        await reader.connect(node.address, public_key=node.public_key)
        await until(lambda: reader.peers and reader.peers[0].profile)
        yield node, reader


async def test_messages_become_events_in_order(nodes: tuple[Node, Node]) -> None:
    node, reader = nodes
    rig = IngressRig(node)
    sent = [b"%d" % number for number in range(600)]
    async with reader.subscribe("a/") as subscription:
        for event in sent:
            rig.ingress.take((b"a/b", event))
        got: list[bytes] = []
        while len(got) < len(sent):
            batch = await subscription.next_batch()
            assert batch is not None
            got += batch.payloads()
    assert got == sent
    await rig.idle()
    assert rig.counters.snapshot() == {"publish": {"sent": 600}}


async def test_a_channel_queue_is_bounded_in_messages(nodes: tuple[Node, Node]) -> None:
    rig = IngressRig(nodes[0])
    for _ in range(HIGH_WATER + 5):  # nothing is taken away before the loop turns
        rig.ingress.take((b"a", b""))
    rig.ingress.take((b"b", b""))
    assert [(one.topic, one.reason) for one in rig.refused] == [("a", "behind")]
    await rig.idle()
    assert rig.counters.snapshot() == {"publish": {"nobody": HIGH_WATER + 1}, "refuse_publish": {"behind": 5}}
    rig.ingress.take((b"a", b""))
    await rig.idle()
    assert rig.counters.get("publish", "nobody") == HIGH_WATER + 2


async def test_all_channel_queues_are_bounded_in_bytes(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_BYTES", 25)
    rig = IngressRig(nodes[0])
    for topic in (b"a", b"b", b"c"):
        rig.ingress.take((topic, b"x" * 10))
    assert [(one.topic, one.reason) for one in rig.refused] == [("c", "behind")]
    await rig.idle()
    rig.ingress.take((b"c", b"x" * 25))
    await rig.idle()
    assert rig.counters.get("publish", "nobody") == 3


async def test_made_up_topics_are_bounded(nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_CHANNELS", 2)
    rig = IngressRig(nodes[0])
    for topic in (b"a", b"b", b"c", b"a"):
        rig.ingress.take((topic, b""))
    assert [(one.topic, one.reason) for one in rig.refused] == [("c", "too_many_channels")]
    assert rig.counters.get(*Reason.REFUSE_PUBLISH_TOO_MANY_CHANNELS.counter) == 1
    await rig.idle()
    assert rig.counters.get("publish", "nobody") == 3


async def test_subscribers_that_did_not_get_it_are_reported(nodes: tuple[Node, Node]) -> None:
    node, reader = nodes
    rig = IngressRig(node)
    async with reader.subscribe("a"):
        rig.ingress.take((b"a", b"1"))
        await rig.idle()
        (queue,) = rig.ingress._queues.values()
        node.live.engine.peers.remove(reader.node_id)  # it leaves, and the roster does not know yet
        rig.ingress.take((b"a", b"2"))
        await rig.idle()
    assert not queue.waiting
    assert [(one.topic, one.reason) for one in rig.refused] == [("a", "peer")]
