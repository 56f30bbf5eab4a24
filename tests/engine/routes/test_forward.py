"""Forwarding: allowed senders, next hops, queueing, and what a recorder gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshbus.engine.base.packets import Output, PacketBatch
from meshbus.engine.routes import forward
from meshbus.engine.routes.boundary import NOT_ASKED
from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.engine.session.link import Link
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.names.identity import Identity
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED, DropReason, Reason
from meshbus.testing.rig import rig
from meshbus.wire.constants import ROUTE_BYTES, Flags
from meshbus.wire.header import Header, pack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.revocation import Revocation, Revoked
from meshbus.wire.route import RouteFlags, RouteHeader, pack_route, unpack_route
from tests.vectors import load

CASES: list[dict[str, Any]] = load("mesh")["forwarding_cases"]
HANDSHAKE: dict[str, Any] = load("mesh")["routing_header"]["observed_routed_handshake"]
NODE = Identity.from_seed(bytes(32))
A, B, FAR, LOST = 0xA, 0xB, 0xFA, 0x105
"""Two neighbors, a node behind the second, and one that nobody knows."""


class ForwarderRig:
    """One forwarder between two neighbors."""

    def __init__(self, *, open_relay: bool = False) -> None:
        engine = rig(NODE, open_relay=open_relay)
        self.counters, self.peers, self.table = engine.counters, engine.peers, engine.mesh.table
        self.tap, self.forwarder = engine.mesh.tap, engine.mesh.forwarder
        self.revocations = engine.revocations
        for name, node_id in (("a", A), ("b", B)):
            link = Link(derive_keys(bytes([node_id]) * 32, Role.INITIATOR), Role.INITIATOR, name, 0.0)
            self.peers.establish(node_id, link, 0.0)
            self.table.install(node_id, name, 0.0)
        self.table.learn(FAR, "b", 3, 0.0)

    def forward(self, *packets: bytes, source: str = "a", now: float = 0.0) -> list[tuple[Any, bytes]]:
        """Receive packets in one batch; return what was sent."""
        batch = PacketBatch.of([(source, packet) for packet in packets])
        out = Output()
        self.forwarder.forward(source, batch.data, batch.starts, batch.lengths, 0, len(batch), now, out)
        return [(train.address, datagram) for train in out.trains for datagram in train.datagrams()]

    def drops(self) -> dict[str, int]:
        return self.counters.snapshot().get("drop", {})


def packet(dest: int = FAR, *, body: bytes = bytes(68), ttl: int = 8, **fields: int) -> bytes:
    fields.setdefault("src_id", A)
    return pack_route(RouteHeader(ttl=ttl, dest_id=dest, **fields)) + body


def expected_at_next_hop(datagram: bytes) -> bytes:
    """Return a packet without an inner hop limit as the next hop must receive it."""
    route = unpack_route(datagram)
    route = RouteHeader(
        ttl=route.ttl - 1,
        hop_count=min(route.hop_count + 1, 255),
        flags=route.flags,
        reserved=route.reserved,
        src_id=route.src_id,
        dest_id=route.dest_id,
    )
    return pack_route(route) + datagram[ROUTE_BYTES:]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.get("case", case.get("ttl_in"))))
def test_packets_are_forwarded_as_observed_or_more_strictly(case: dict[str, Any]) -> None:
    setup, given, source = ForwarderRig(), packet(), "a"
    stricter = ""
    match case.get("case"):
        case None | "hop_count 255 in":
            given = packet(ttl=case["ttl_in"], hop_count=case["hops_in"])
        case "flags 0xF5, reserved 0x7E in":
            given = packet(flags=0xF5, reserved=0x7E)
        case "src_id equals the forwarder's own id":
            given, stricter = packet(src_id=NODE.node_id & 0xFFFFFFFF), "transit_own"
        case "route to dest points back at the sender":
            source, stricter = "b", "transit_returning"
        case "no route":
            given = packet(LOST)
        case "total length 85 (< 18+68)":
            return  # not taken for a routed packet at all: tests/wire/test_datagram.py
        case "68 bytes of garbage as inner packet":
            given = packet(body=bytes(range(68)))
        case "sender address unknown to the forwarder":
            source, stricter = "nobody", "transit_stranger"
        case other:
            pytest.fail(f"what is {other}?")
    sent = setup.forward(given, source=source)
    expected = [("b", expected_at_next_hop(given))] if case["forwarded"] and not stricter else []
    assert sent == expected
    if stricter:
        assert setup.drops() == {stricter: 1}
    if source == "nobody":
        assert ForwarderRig(open_relay=True).forward(packet(), source=source) == [("b", expected_at_next_hop(packet()))]


def test_an_observed_handshake_is_passed_on_byte_for_byte() -> None:
    """Each packet is forwarded as the real relay forwarded it."""
    arrived = [bytes.fromhex(row["packet"]) for row in HANDSHAKE["packets"] if row["to"] == "B"]
    left = [bytes.fromhex(row["packet"]) for row in HANDSHAKE["packets"] if row["from"] == "B"]
    for given, expected in zip(arrived, left, strict=True):
        setup = ForwarderRig()
        setup.table.learn(unpack_route(given).dest_id, "b", 3, 0.0)
        assert setup.forward(given) == [("b", expected)]


def test_a_batch_is_cut_into_trains_by_next_hop_and_length() -> None:
    setup = ForwarderRig()
    sizes = (100, 100, 100, 90, 100, 100, 80, 80, 120)
    bodies = [pack_header(Header(sequence=n)) + bytes([n]) * (size - 68) for n, size in enumerate(sizes)]
    dests = [FAR, FAR, FAR, FAR, B, FAR, FAR, FAR, LOST]
    packets = [packet(dest, body=body) for dest, body in zip(dests, bodies, strict=True)]
    batch = PacketBatch.of([("a", one) for one in packets])
    out = Output()
    setup.forwarder.forward("a", batch.data, batch.starts, batch.lengths, 0, len(batch), 0.0, out)
    assert [(train.address, train.segment, len(train.data)) for train in out.trains] == [
        ("b", 118, 3 * 118 + 108),
        ("b", 118, 118),
        ("b", 118, 118 + 98),
        ("b", 98, 98),
    ]
    sent = [datagram for train in out.trains for datagram in train.datagrams()]
    assert sent == [expected_at_next_hop(one) for one in packets[:-1]]
    assert all(np.shares_memory(np.frombuffer(train.data, np.uint8), batch.data) for train in out.trains)
    assert setup.counters.get("transit", "forwarded") == 8
    assert setup.drops() == {"transit_no_route": 1}


def test_inner_hops_are_limited_without_a_gateway_too() -> None:
    setup = ForwarderRig()
    spent = pack_header(Header(hop_ttl=3, hop_count=3))
    left = pack_header(Header(hop_ttl=3, hop_count=2))
    sent = setup.forward(packet(body=spent), packet(body=left))
    assert [datagram[ROUTE_BYTES + 6] for _, datagram in sent] == [3]
    assert setup.drops() == {"transit_ttl_expired": 1}


def test_packets_wait_while_the_socket_is_full() -> None:
    setup = ForwarderRig()
    setup.forwarder.hold()
    bodies = [pack_header(Header(session_id=n % 2, stream_id=7)) for n in range(60)]
    urgent = [
        packet(body=pack_header(Header(session_id=9)), flags=RouteFlags.PRIORITY),
        packet(body=pack_header(Header(session_id=9, flags=Flags.PRIORITY))),
    ]
    assert setup.forward(*(packet(body=body) for body in bodies), *urgent) == []
    out = Output()
    setup.forwarder.release(out)
    order = [int.from_bytes(bytes(train.data)[18 + 24 : 18 + 32], "little") for train in out.trains]
    assert order == [9, 9, *[0] * 16, *[1] * 16, *[0] * 14, *[1] * 14]
    assert len(setup.forward(packet())) == 1, "nothing waits any more"


def test_a_full_queue_is_a_reason() -> None:
    setup = ForwarderRig()
    setup.forwarder.hold()
    setup.forwarder.queue.depth = 5
    for _ in range(2):
        setup.forward(*(packet() for _ in range(4)))
    assert setup.drops() == {"transit_crowded": 3}
    assert setup.counters.get("transit", "forwarded") == 5


def test_a_recorder_gets_what_happened_to_each_packet() -> None:
    setup = ForwarderRig()
    told: list[Passed] = []
    setup.tap.recorder = InColumns(told.append)
    packets = [packet(), packet(LOST), packet(ttl=0), packet(B)]
    setup.forward(*packets)
    setup.forward(packet(), source="nobody")
    *batches, stranger = told
    assert [(one.fates.item(0), one.reasons.item(0)) for one in batches] == [
        (Fate.FORWARDED, 0),
        (Fate.DROPPED, Reason.NO_ROUTE.code),
        (Fate.DROPPED, DropReason.TTL_EXPIRED),
        (Fate.FORWARDED, 0),
    ]
    assert [one.routes["ttl"].tolist() for one in batches if one.routes is not None] == [[8], [8], [0], [8]]
    assert [(one.previous_hops.item(0), one.next_hops.item(0)) for one in batches] == [(A, B), (A, 0), (A, B), (A, B)]
    assert {(one.sources, one.dests, one.guard) for one in batches} == {(None, None, None)}
    assert (stranger.previous_hops.item(0), stranger.reasons.item(0)) == (0, Reason.STRANGER.code)
    assert max(RECORDED) < NOT_ASKED


def test_a_recorder_gets_which_packets_found_no_room() -> None:
    setup = ForwarderRig()
    told: list[Passed] = []
    setup.tap.recorder = InColumns(told.append)
    setup.forwarder.hold()
    setup.forwarder.queue.depth = 5
    setup.forward(*(packet() for _ in range(8)))
    fates = [fate for one in told for fate in one.fates.tolist()]
    assert fates == [Fate.FORWARDED] * 5 + [Fate.DROPPED] * 3
    assert told[-1].reasons.tolist()[-1] == Reason.CROWDED.code


def test_a_decision_is_kept_while_its_inputs_do_not_change() -> None:
    setup = ForwarderRig()
    bodies = [pack_header(Header(stream_id=7, sequence=n)) for n in range(40)]
    for _ in range(3):
        assert len(setup.forward(*(packet(body=body) for body in bodies))) == 40
    assert len(setup.forwarder._decisions) == 1
    setup.table.install(FAR, "c", 1.0)
    assert {address for address, _ in setup.forward(packet(body=bodies[0]))} == {"c"}
    setup.table.withdraw(FAR, "c")
    setup.table.withdraw(FAR, "b")
    assert setup.forward(packet(body=bodies[0])) == []
    assert setup.drops() == {"transit_no_route": 1}


def test_a_decision_ends_with_the_route() -> None:
    setup = ForwarderRig()
    assert len(setup.forward(packet(), now=90.0)) == 1
    assert setup.forward(packet(), now=90.1) == []
    assert setup.forward(packet(), now=91.0) == []
    assert setup.drops() == {"transit_no_route": 2}


def test_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "MAX_DECISIONS", 8)
    setup = ForwarderRig()
    streams = [pack_header(Header(stream_id=n)) for n in range(50)]
    assert len(setup.forward(*(packet(body=body) for body in streams))) == 50
    assert len(setup.forwarder._decisions) == 8


def test_the_nonce_makes_no_difference() -> None:
    setup = ForwarderRig()
    bodies = [pack_header(Header(nonce=bytes([n]) * 12, session_id=n, sequence=n)) for n in range(20)]
    batch = PacketBatch.of([("a", packet(body=body)) for body in bodies])
    out = Output()
    setup.forwarder.forward("a", batch.data, batch.starts, batch.lengths, 0, 20, 0.0, out)
    assert len(out.trains) == 1


def test_packets_of_and_for_revoked_nodes_are_dropped_from_the_next_one_on() -> None:
    setup, bad = ForwarderRig(), Identity.from_seed(b"b" * 32)
    setup.table.learn(bad.node_id, "b", 3, 0.0)
    stream = PUBLISH_STREAM_BIT | 7
    of_bad = packet(body=pack_header(Header(origin_hash=bad.origin_hash, stream_id=stream)))
    publication, message = (
        packet(bad.node_id, body=pack_header(Header(origin_hash=5, stream_id=one))) for one in (stream, 7)
    )
    everything = (of_bad, publication, message)
    assert len(setup.forward(*everything)) == 3
    issuer = Identity.from_seed(bytes(range(32)))
    for what, left in ((Revoked.SUBSCRIBE, 2), (Revoked.PUBLISH, 1), (Revoked.NODE, 0)):
        setup.revocations.add(Revocation.sign(issuer, what, bad.entity_id, at=1, reason="stolen"))
        assert len(setup.forward(*everything)) == left, what
    assert setup.drops() == {"transit_revoked": 6}
    # Half of the id of a revoked node says nothing about the sender of a packet.
    assert len(setup.forward(packet(src_id=bad.node_id & 0xFFFFFFFF))) == 1
