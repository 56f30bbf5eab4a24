"""Tap: reports of packets for this node and for others, how they arrived, and what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from meshbus.engine.routes import tap
from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.engine.settings import LivenessConfig
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED, Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath, Passage
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.datagram import DatagramKind
from meshbus.wire.header import HEADER_DTYPE, unpack_header
from tests.engine.fleet import CHANNEL, numbered, pair, subscribed

HANDSHAKE_OR_HEARTBEAT = 0x30


def record(node: FakeNode) -> list[Passed]:
    told: list[Passed] = []
    node.engine.mesh.tap.recorder = InColumns(told.append)
    return told


def rows(told: list[Passed]) -> Iterator[tuple[bytes, bytes, int, int, int]]:
    """Return header, routing header, fate, reason and previous hop of each packet."""
    for passed in told:
        count = len(passed.headers)
        hops = passed.previous_hops.tolist() * (count if len(passed.previous_hops) == 1 else 1)
        routes = [b""] * count if passed.routes is None else [route.tobytes() for route in passed.routes]
        yield from zip(
            [header.tobytes() for header in passed.headers],
            routes,
            passed.fates.tolist(),
            np.broadcast_to(passed.reasons, count).tolist(),
            hops,
            strict=True,
        )


def line() -> tuple[FakeNet, FakeNode, FakeNode, FakeNode]:
    """Return three nodes in a row, of which the outer two have a session through the middle one."""
    net = FakeNet(1)
    liveness = LivenessConfig(heartbeat_s=1.0, session_timeout_s=3.0)
    near, relay, far = (net.create(name, liveness=liveness) for name in ("near", "relay", "far"))
    net.set_path("near", "far", FakePath(loss=1.0))
    for one, other in ((near, relay), (relay, far)):
        one.connect(other)
    net.run(for_s=2)
    with near.turn() as (engine, now, out):
        engine.connect(far.node_id, None, far.engine.public_key, now, out)
    net.run_until(lambda: near.has_session_with(far))
    net.run(for_s=0.2)
    return net, near, relay, far


def carried(passages: list[Passage], source: str, dest: str) -> Counter[tuple[bytes, bytes]]:
    """Return headers and routing headers of what crossed a link: all sessions, without handshakes and heartbeats."""
    found: Counter[tuple[bytes, bytes]] = Counter()
    for passage in passages:
        if (passage.source, passage.dest) != (source, dest):
            continue
        routed = passage.kind is DatagramKind.ROUTED
        if not routed and passage.kind is not DatagramKind.NET:
            continue
        cut = ROUTE_BYTES if routed else 0
        header = passage.datagram[cut : cut + HEADER_BYTES]
        if not unpack_header(header).flags & HANDSHAKE_OR_HEARTBEAT:
            found[header, passage.datagram[:cut]] += 1
    return found


def test_a_line_of_three_records_what_its_links_carried() -> None:
    net, near, relay, far = line()
    subscribed(far, near)
    at_relay, at_far = record(relay), record(far)
    seen: list[Passage] = []
    net.taps.append(seen.append)
    events = numbered(3000, 100)
    near.publish(CHANNEL, events, reliable=True)
    net.run(for_s=1)
    near.publish(CHANNEL, [b"alone"])
    net.run(for_s=1)
    assert far.payloads() == [*events, b"alone"]

    arrived = Counter((header, route) for header, route, *_ in rows(at_far))
    assert arrived == carried(seen, "relay", "far")
    assert sum(bool(route) for _, route in arrived.elements()) > 30, "what came by the relay kept its routing header"
    assert {hop for *_, hop in rows(at_far)} == {relay.node_id}, "the neighbor, and not the other end of the session"
    assert {fate for _, _, fate, *_ in rows(at_far)} == {Fate.DELIVERED}

    forwarded = [row for row in rows(at_relay) if row[2] == Fate.FORWARDED]
    assert len(forwarded) == sum(len(passed.headers) for passed in at_relay if not passed.here)
    both = carried(seen, "near", "relay") + carried(seen, "far", "relay")
    assert Counter(row[:2] for row in rows(at_relay)) == both
    assert {hop for *_, hop in forwarded} == {near.node_id, far.node_id}
    for passed in at_relay:
        if not passed.here:
            other = near.node_id if passed.previous_hops[0] == far.node_id else far.node_id
            assert passed.next_hops.tolist() == [other]


def test_what_is_refused_has_its_reason() -> None:
    net, left, right = pair()
    subscribed(right, left)
    told = record(right)
    seen: list[Passage] = []
    net.taps.append(seen.append)
    left.publish(CHANNEL, numbered(300, 1000))
    net.run(for_s=0.1)
    packets = [p.datagram for p in seen if p.dest == right.name and len(p.datagram) > 500]
    assert len(packets) > 10
    told.clear()
    before = right.engine.counters.snapshot().get("drop", {})
    bad = [packet[:-1] + bytes([packet[-1] ^ 1]) for packet in packets]
    stranger = packets[0][:24] + bytes(8) + packets[0][32:]
    for train in (packets, bad, packets[:1], bad[:1], [stranger], [packets[0][:-1]]):
        for packet in train:
            net.inject(left.name, right.name, packet)
        net.run(for_s=0.1)
    reasons = Counter(reason for *_, reason, _ in rows(told) if reason)
    after = right.engine.counters.snapshot()["drop"]
    counted = {why: after[why] - before.get(why, 0) for why in after if after[why] != before.get(why, 0)}
    words = {RECORDED[reason].word: count for reason, count in reasons.items()}
    assert words.pop("malformed") == counted["bad_length"] == 1
    assert words == {why: counted[why] for why in ("bad_tag", "replayed", "unknown_session")}


@pytest.mark.parametrize("count", [1, 2000])
def test_a_publication_without_a_subscription_is_not_delivered(count: int) -> None:
    net, left, right = pair()
    subscribed(right, left)
    told = record(right)
    for channel in right.engine.joined.channels_of(left.node_id):
        right.engine.joined.remove(left.node_id, channel)
    left.publish(CHANNEL, numbered(count, 100))
    net.run(for_s=0.1)
    assert right.payloads() == []
    dropped = sum(
        int(passed.headers["event_count"][passed.reasons == Reason.NOT_SUBSCRIBED.code].sum()) for passed in told
    )
    assert dropped == right.engine.counters.get("drop", "not_subscribed") == count


def test_packets_of_several_sources_in_one_batch_keep_their_own() -> None:
    net, near, relay, far = line()
    subscribed(relay, near)
    subscribed(relay, far)
    seen: list[Passage] = []
    net.taps.append(seen.append)
    told = record(relay)
    for _ in range(3):
        near.publish(CHANNEL, numbered(100, 1000))
        far.publish(CHANNEL, numbered(100, 1000))
        net.run(for_s=0.1)
    expected: Counter[tuple[bytes, int]] = Counter()
    for node in (near, far):
        for (header, _), count in carried(seen, node.name, "relay").items():
            expected[header, node.node_id] += count
    assert Counter((header, hop) for header, *_, hop in rows(told)) == expected
    assert {hop for _, hop in expected} == {near.node_id, far.node_id}


def test_without_a_recorder_nothing_is_noted() -> None:
    net, left, right = pair()
    subscribed(right, left)
    noted: list[Any] = []
    tap = right.engine.mesh.tap
    tap.arrived = lambda *arguments: noted.append(arguments)  # type: ignore[method-assign]
    left.publish(CHANNEL, numbered(500, 100))
    net.run(for_s=0.1)
    assert len(right.payloads()) == 500
    assert noted == []
    assert HEADER_DTYPE.itemsize == HEADER_BYTES


def test_neighbors_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "MAX_HOPS", 3)
    net = FakeNet(1)
    hub, others = net.create("hub"), [net.create(f"other {number}") for number in range(8)]
    for other in others:
        other.connect(hub)
    net.run(for_s=3)
    known = hub.engine.mesh.tap
    hops = [int(known.hop(other.name)[0]) for other in others]
    assert hops == [other.node_id for other in others]
    assert len(known._hops) <= 3
