"""A reliable channel over a network that loses a third of everything, and what must be true of it."""

from __future__ import annotations

from typing import Any

from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Flags
from tests.engine.fleet import CHANNEL, Wiretap, meet, numbered, subscribed

BAD = FakePath(loss=0.3, duplication=0.1, reordering=0.2, latency_s=0.002, jitter_s=0.004)
PACKETS = 5000


def bad_pair(seed: int, **settings: Any) -> tuple[FakeNet, FakeNode, FakeNode]:
    """Make a publisher and a subscriber that met on a good network, which then turned bad."""
    net = FakeNet(seed)
    publisher, subscriber = net.create("publisher", **settings), net.create("subscriber")
    meet(publisher, subscriber)
    subscribed(subscriber, publisher)
    net.path = BAD
    return net, publisher, subscriber


def assert_exactly_once_and_in_order(seed: int, packets: int = PACKETS) -> FakeNet:
    """Publish one event per packet, in calls of different sizes, and compare everything that arrives."""
    size = 64
    net, publisher, subscriber = bad_pair(seed, max_payload=size + 4)
    tap = Wiretap(net)
    events = numbered(packets, size)
    calls = []
    start = 0
    while start < packets:
        count = (seed + start) % 97 + 1
        calls.append(publisher.publish(CHANNEL, events[start : start + count], reliable=True, wait_s=1e6))
        start += count
    net.run_until(lambda: subscriber.received >= packets, timeout_s=3600)
    net.run(for_s=10)  # nothing comes twice, and nothing comes late
    assert subscriber.payloads(CHANNEL) == events
    assert all(call.report().all_delivered for call in calls)
    first = subscriber.events[0].pub_seq
    assert first is not None
    numbers = [event.pub_seq for batch in subscriber.events for event in batch]
    assert numbers == list(range(first, first + packets))

    headers = tap.data(publisher, subscriber)
    assert len({header.sequence for header in headers}) >= packets
    assert {header.flags for header in headers} == {int(Flags.RELIABLE)}
    for node in (publisher, subscriber):
        assert node.engine.counters.get("fail", "reliable_stream") == 0
    assert publisher.engine.counters.get("retransmit", "gap") + publisher.engine.counters.get(
        "retransmit", "timeout"
    ) >= 0.2 * len(set(headers))
    assert subscriber.engine.counters.get("drop", "duplicate") > 0
    assert subscriber.engine.counters.get("drop", "replayed") > 0
    return net
