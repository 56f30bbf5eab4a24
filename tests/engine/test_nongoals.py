"""What channels do not do, shown by counting packets on the wire: no multicast, no history, no atomic fan-out."""

from __future__ import annotations

import pytest

from meshbus.engine.channels.publish import OnFailure
from meshbus.names.channel import ChannelName
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import Flags, Subprotocol
from meshbus.wire.header import Header
from tests.engine.fleet import CHANNEL, Wiretap, meet, numbered, subscribed

STREAM = ChannelName(CHANNEL).stream_id
KNOWN_FLAGS = int(Flags.RELIABLE | Flags.PRIORITY)


def hub_with(count: int, *, profile: bool) -> tuple[FakeNet, FakeNode, list[FakeNode]]:
    net = FakeNet()
    hub = net.create("hub", profile=profile)
    nodes = [net.create(f"node{n}", profile=profile) for n in range(count)]
    for node in nodes:
        meet(hub, node)
    net.run(for_s=10)  # until nobody repeats anything
    return net, hub, nodes


def is_publication(header: Header) -> bool:
    return header.subprotocol_id == Subprotocol.EVENTS and header.stream_id == STREAM


@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("reliable", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_publish_is_one_packet_for_each_subscriber_and_none_for_others(
    count: int, reliable: bool, profile: bool
) -> None:
    net, hub, nodes = hub_with(count + 2, profile=profile)
    subscribers, others = nodes[:count], nodes[count:]
    for subscriber in subscribers:
        subscribed(subscriber, hub)
    subscribed(others[0], hub, "another/channel")
    tap = Wiretap(net)
    report = hub.publish(CHANNEL, [b"one", b"two"], reliable=reliable).report()
    assert (report.attempted, report.delivered) == (count, count)
    net.run(for_s=1)
    sent = [(source, dest) for source, dest, header in tap.packets if is_publication(header)]
    assert sorted(sent) == sorted(("hub", subscriber.name) for subscriber in subscribers)
    assert [node.payloads(CHANNEL) for node in subscribers] == [[b"one", b"two"]] * count
    for other in others:
        assert other.events == []
        assert tap.headers(hub, other) == []


@pytest.mark.parametrize("reliable", [False, True])
def test_the_header_is_the_one_of_the_wire_with_no_new_bits(reliable: bool) -> None:
    net, hub, (one,) = hub_with(1, profile=True)
    subscribed(one, hub)
    tap = Wiretap(net)
    for _ in range(20):
        hub.publish(CHANNEL, numbered(50, 200), reliable=reliable)
        net.run(for_s=0.2)
    headers = [header for header in tap.data(hub, one) if is_publication(header)]
    assert headers
    for header in headers:
        assert header.flags & ~KNOWN_FLAGS == 0
        assert bool(header.flags & Flags.RELIABLE) == reliable
        assert header.channel_hash == STREAM & 0xFFFF
        assert header.origin_hash == hub.engine.identity.origin_hash
        assert (header.hop_count, header.frag_flags) == (0, 0), "the fragment fields hold the publisher's time"
    sizes = {len(p.datagram) for p in tap.datagrams if p.source == "hub"}
    assert max(sizes) <= 8192


def test_a_late_subscriber_gets_no_earlier_event() -> None:
    net, hub, (early, late) = hub_with(2, profile=True)
    subscribed(early, hub)
    for reliable in (False, True):
        hub.publish(CHANNEL, [b"before"], reliable=reliable)
    net.run(for_s=1)
    subscribed(late, hub)
    for reliable in (False, True):
        hub.publish(CHANNEL, [b"after"], reliable=reliable)
    net.run(for_s=1)
    assert early.payloads(CHANNEL) == [b"before", b"before", b"after", b"after"]
    assert late.payloads(CHANNEL) == [b"after", b"after"]


def test_nothing_is_kept_for_a_channel_without_subscribers() -> None:
    net, hub, (one,) = hub_with(1, profile=True)
    tap = Wiretap(net)
    assert hub.publish(CHANNEL, numbered(1000), reliable=True).report().is_empty
    net.run(for_s=1)
    assert tap.data() == []
    subscribed(one, hub)
    net.run(for_s=1)
    assert one.events == []


def test_subscribers_do_not_learn_of_each_other() -> None:
    net, hub, (one, other) = hub_with(2, profile=True)
    subscribed(one, hub)
    tap = Wiretap(net)
    subscribed(other, hub)
    assert tap.headers(hub, one) == []
    assert tap.messages(Subprotocol.MEMBERSHIP) == 2  # the question and its answer


def test_partial_delivery_is_reported_leg_by_leg() -> None:
    net, hub, nodes = hub_with(4, profile=False)
    for node in nodes:
        subscribed(node, hub)
    slow, gone = nodes[1], nodes[2]
    with slow.turn() as (engine, now, _out):
        engine.streams.hold(hub.node_id, STREAM, now, held=True)
    hub.publish(CHANNEL, numbered(58, 1000), wait_s=0, on_failure=OnFailure.COLLECT)
    net.run(for_s=1)
    hub.engine.peers.remove(gone.node_id)  # as if it had vanished a moment ago
    tap = Wiretap(net)
    report = hub.publish(CHANNEL, [bytes(8000)], wait_s=0).report()
    assert (report.attempted, report.delivered) == (4, 2)
    assert {error.node_id: error.code for error in report.errors} == {
        slow.node_id: "backpressure",
        gone.node_id: "peer",
    }
    for error in report.errors:
        assert error.message
    net.run(for_s=1)
    assert sorted(dest for _, dest, header in tap.packets if is_publication(header)) == ["node0", "node3"]  # type: ignore[type-var]
    for node in (nodes[0], nodes[3]):
        assert node.payloads(CHANNEL)[-1] == bytes(8000)
    assert bytes(8000) not in slow.payloads(CHANNEL)


def test_a_lost_packet_stays_lost_without_the_reliable_flag() -> None:
    net, hub, (one,) = hub_with(1, profile=True)
    subscribed(one, hub)
    net.partition(["hub"], ["node0"])
    hub.publish(CHANNEL, [b"lost"])
    net.heal()
    hub.publish(CHANNEL, [b"next"])
    net.run(for_s=10)
    assert one.payloads(CHANNEL) == [b"next"]
    assert hub.engine.counters.total("retransmit") == 0
