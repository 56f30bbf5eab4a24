"""The node subscribes to what applications want, and every event is passed on once, however demands change."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from meshbus.config.edge import EdgeEntry
from meshbus.edge import egress as subject
from meshbus.edge.egress import Egress
from meshbus.edge.pub import Part, Pub
from meshbus.edge.refusals import Refusal, Refusals
from meshbus.edge.topics import TopicMap
from meshbus.edge.zmtp.protocol import Interest
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Acked, Matched
from meshbus.names.channel import ChannelName
from meshbus.node.node import Node
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.wire.messages.membership import AckReason
from tests.edge.apps import until

QUICK: dict[str, Any] = {
    "psk": "5a" * 32,
    "ephemeral": True,
    "handshake_timeout_s": 1.0,
    "membership_ack_timeout_s": 0.2,
}


class Recorder(Pub):
    """An endpoint that keeps what is published on it."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[Part, ...]] = []

    def publish_batch(self, messages: Iterable[Sequence[Part]]) -> int:
        """Keep the messages."""
        self.got += map(tuple, messages)
        return 0


class EgressRig:
    """The egress of one node, without a socket."""

    def __init__(self, node: Node, *channels: str) -> None:
        self.refused: list[Refusal] = []
        self.endpoint = Recorder()
        self.tasks: list[asyncio.Future[None]] = []
        topics = TopicMap(EdgeEntry(subscribers="tcp://127.0.0.1:*", channels_out=channels))
        counters = Counters()
        refusals = Refusals(counters, self.refused.append)
        self.egress = Egress(node, topics, counters, refusals, self._spawn, self.endpoint)
        self._unwatch = node.watch(self.egress.on_notice)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def want(self, prefix: bytes) -> None:
        await self.egress.change(Interest(prefix, subscribe=True))

    async def unwant(self, prefix: bytes) -> None:
        await self.egress.change(Interest(prefix, subscribe=False))

    def entered(self, *topics: str) -> bool:
        demands = self.egress._demands
        return all(topic in demands and demands[topic].entered for topic in topics)

    async def close(self) -> None:
        self._unwatch()
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with Node.open(**QUICK) as publisher, Node.open(**QUICK) as node:
        await node.connect(publisher.address, public_key=publisher.public_key)
        await until(lambda: node.peers[0].profile)
        yield publisher, node


async def test_each_event_is_passed_on_once_while_demands_change(nodes: tuple[Node, Node]) -> None:
    publisher, node = nodes
    rig, chance = EgressRig(node, ""), random.Random(7)
    pub = publisher.publisher("a/b/c", reliable=True)
    demands = {b"": "", b"a/": "a/", b"a/b": "a/", b"a/b/": "a/b/", b"a/b/c": "a/b/"}
    held = b""
    await rig.want(held)
    await until(lambda: rig.entered(""))
    sent = 0
    for _ in range(60):
        other = chance.choice([prefix for prefix in demands if prefix != held])
        await rig.want(other)
        for _ in range(chance.randrange(4)):
            await pub.publish(b"%d" % sent)
            sent += 1
        await until(lambda demand=demands[other]: rig.entered(demand))  # type: ignore[misc]
        for _ in range(chance.randrange(3)):
            await pub.publish(b"%d" % sent)
            sent += 1
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        await rig.unwant(held)
        held = other
    await until(lambda: len(rig.endpoint.got) >= sent)
    assert rig.endpoint.got == [(b"a/b/c", b"%d" % number) for number in range(sent)]
    await rig.unwant(held)
    await until(lambda: not publisher.roster.members("a/b/c"))
    assert rig.egress.demands == []
    await until(lambda: not rig.egress._demands)
    await rig.close()


async def test_what_the_oldest_demand_passed_on_is_not_passed_on_again(nodes: tuple[Node, Node]) -> None:
    publisher, node = nodes
    rig = EgressRig(node, "")
    async with node.subscribe("a/b") as tap:
        await publisher.publisher("a/b").publish(b"1")
        batch = await tap.next_batch()
    assert batch is not None
    for prefix, topic in ((b"", ""), (b"a/", "a/")):
        await rig.want(prefix)
        await until(lambda topic=topic: rig.entered(topic))  # type: ignore[misc]
    old, young = (rig.egress._demands[topic].subscription for topic in ("", "a/"))
    assert old is not None
    assert young is not None
    old.feed(batch)
    young.feed(batch)
    taken = await old.next_batch()
    assert taken is batch
    rig.egress._forward(rig.egress._demands[""], taken)
    await rig.unwant(b"")  # between the turns of the two
    young.feed(batch)
    await until(lambda: not young.stats.pending)
    assert rig.endpoint.got == [(b"a/b", b"1"), (b"a/b", b"1")]  # each time it came once
    await rig.close()


async def test_demand_that_ends_while_the_mesh_is_asked_leaves_nothing_behind(nodes: tuple[Node, Node]) -> None:
    publisher, node = nodes
    publisher.publisher("a/b")
    rig = EgressRig(node, "a/", "c")
    for prefix in (b"a/", b"c"):
        await rig.want(prefix)
        await asyncio.sleep(0)  # asked, and not answered yet
        await rig.unwant(prefix)
        await rig.want(prefix)
        await rig.unwant(prefix)
    await until(lambda: not rig.egress._demands)
    await until(lambda: not publisher.roster.members("a/b") and not publisher.roster.members("c"))
    await rig.want(b"a/")
    await until(lambda: publisher.roster.members("a/b"))
    await rig.close()
    await until(lambda: not publisher.roster.members("a/b"))


async def test_closing_while_the_mesh_is_asked_takes_the_question_back(nodes: tuple[Node, Node]) -> None:
    publisher, node = nodes
    publisher.publisher("a/b")
    rig = EgressRig(node, "a/")
    await rig.want(b"a/")
    await asyncio.sleep(0)
    await rig.close()
    assert node.live.engine.following.followed(publisher.node_id) == {}
    await until(lambda: not publisher.roster.members("a/b"))


async def test_the_number_of_prefixes_requested_from_the_mesh_is_limited(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_DEMANDS", 2)
    rig = EgressRig(nodes[1], "")
    for prefix in (b"a/", b"b/", b"c/", b"a/x"):
        await rig.want(prefix)
    assert rig.egress.demands == ["a/", "b/"]
    assert [(one.topic, one.reason) for one in rig.refused] == [("c/", "too_many_prefixes")]
    await rig.close()


async def test_a_missing_publisher_is_reported_and_asked_again(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, node = nodes
    monkeypatch.setattr(subject, "RETRY_S", 0.01)
    publisher.set_channel_configs(ChannelConfigRegistry())  # no channel is known, so all are refused
    rig = EgressRig(node, "a")
    await rig.want(b"a")
    await until(lambda: rig.refused)
    assert [(one.topic, one.reason) for one in rig.refused] == [("a", "unknown_channel")]
    publisher.set_channel_configs(None)
    await until(lambda: publisher.roster.members("a"))
    await rig.close()


async def test_refusals_that_concern_no_application_are_not_reported(nodes: tuple[Node, Node]) -> None:
    rig = EgressRig(nodes[1], "a/")
    await rig.want(b"a/")
    no = AckReason.UNAUTHORIZED
    rig.egress.on_notice(Matched(1, 7, refused=((ChannelName("b/c"), no), (ChannelName("a/c"), no))))
    rig.egress.on_notice(Acked(1, 7, ChannelName("b/c"), accepted=False, reason=no))
    rig.egress.on_notice(Acked(1, 7, ChannelName("a/d"), accepted=False, reason=AckReason.UNKNOWN_CHANNEL))
    assert [(one.topic, one.reason) for one in rig.refused] == [("a/c", "unauthorized")]
    await rig.close()
