"""Fair shares, in virtual terms: whatever one peer and one outsider send, an honest stream goes on.

Work is counted in the microseconds that engine/session/work.py charges; processor time is measured by bench/bench_hostile.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from meshbus.engine.base.packets import PacketBatch
from meshbus.engine.services import SERVICES
from meshbus.engine.session.work import EXCESS_SHARE, PACKET_US
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENTS, MAX_PAYLOAD, Flags, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Header
from meshbus.wire.messages.history import Read, encode_history
from meshbus.wire.messages.manifest import encode_manifest
from meshbus.wire.messages.presence import Probe, encode_presence
from meshbus.wire.messages.reflex import ReflexRequest, encode_reflex
from meshbus.wire.messages.reliable import FIRST_SEQUENCE, Ack, Base, encode_reliable
from meshbus.wire.messages.request import Request, encode_request
from tests.engine.fleet import CHANNEL, meet, numbered, subscribed

TURNS, TURN_S = 20, 0.05
"""A second of attack, after the burst."""
COSTS = {row.id: row.cost_us for row in SERVICES if row.id is not None}


class Handled:
    """Counts the messages that a node hands to the service of a subprotocol."""

    def __init__(self, node: FakeNode, subprotocol_id: int) -> None:
        self.count = 0
        reception = node.engine.reception
        handle = reception.handlers[subprotocol_id]

        def counted(*given: object) -> None:
            self.count += 1
            handle(*given)  # type: ignore[arg-type]

        reception.handlers[subprotocol_id] = counted


class Crowd:
    """Alice publishes to Bob without a loss; Mallory is a peer of Bob, and an outsider sends junk."""

    def __init__(self) -> None:
        self.net = FakeNet(3)
        self.alice, self.bob, self.mallory = (self.net.create(name) for name in ("alice", "bob", "mallory"))
        meet(self.alice, self.bob, self.mallory)
        subscribed(self.bob, self.alice)
        work = self.bob.engine.peers.require(self.mallory.node_id).work
        while work.afford(10 * PACKET_US, self.net.clock.now) or work.afford(1.0, self.net.clock.now):
            pass  # the burst is tested in session/test_work.py
        self._rng = random.Random(1)

    def publish(self, first: int) -> list[bytes]:
        events = numbered(20, 200, first=first)
        self.alice.publish(CHANNEL, events, reliable=True)
        return events

    def attack(
        self, make: Callable[[FakeNode, int], tuple[Header, Sequence[bytes]]], number: int, packets: int
    ) -> None:
        """Let Bob drain packets of Mallory and as much junk of the outsider, in one batch."""
        link = self.mallory.engine.peers.require(self.bob.node_id).link
        batch = []
        for place in range(packets):
            header, messages = make(self.mallory, number * packets + place)
            payload = pack_frames(messages)
            batch.append((self.mallory.name, link.sealer.seal(header, payload)))
            batch.append(("outsider", self._rng.randbytes(100)))
        out = self.bob.engine.receive(PacketBatch.of(batch), self.net.clock.now)
        self.net.carry_out(self.bob, out)


def full(message: bytes) -> list[bytes]:
    return [message] * min(MAX_EVENTS, MAX_PAYLOAD // (FRAME_PREFIX_BYTES + len(message)))


def plain(subprotocol_id: int, messages: Sequence[bytes]) -> tuple[Header, Sequence[bytes]]:
    return Header(subprotocol_id=subprotocol_id, stream_id=subprotocol_id, event_count=len(messages)), messages


def carried(subprotocol_id: int, number: int, messages: Sequence[bytes]) -> tuple[Header, Sequence[bytes]]:
    sequence = FIRST_SEQUENCE + 1000 + number
    header = Header(
        subprotocol_id=subprotocol_id,
        stream_id=99,
        sequence=sequence,
        flags=int(Flags.RELIABLE),
        event_count=len(messages),
    )
    return header, messages


def manifest(mallory: FakeNode, _number: int) -> tuple[Header, Sequence[bytes]]:
    return plain(Subprotocol.NEGOTIATION, full(encode_manifest(mallory.engine.registry.manifest())))


ATTACKS: dict[str, tuple[int, Callable[[FakeNode, int], tuple[Header, Sequence[bytes]]]]] = {
    "reflex requests": (
        Subprotocol.REFLEX,
        lambda _, _n: plain(Subprotocol.REFLEX, full(encode_reflex(ReflexRequest()))),
    ),
    "clock probes": (Subprotocol.PRESENCE, lambda _, _n: plain(Subprotocol.PRESENCE, full(encode_presence(Probe(1))))),
    "manifests": (Subprotocol.NEGOTIATION, manifest),
    "nothing": (Subprotocol.MEMBERSHIP, lambda _, _n: plain(Subprotocol.MEMBERSHIP, [b""] * MAX_EVENTS)),
    "acknowledgements": (
        Subprotocol.RELIABLE,
        lambda _, _n: plain(
            Subprotocol.RELIABLE, full(encode_reliable(Ack(stream_id=5, cumulative=FIRST_SEQUENCE, free=0)))
        ),
    ),
    "stream bases": (
        Subprotocol.RELIABLE,
        lambda _, n: plain(
            Subprotocol.RELIABLE,
            [
                encode_reliable(Base(stream_id=n * 250 + k, sequence=FIRST_SEQUENCE, pub_seq=1, start=True))
                for k in range(250)
            ],
        ),
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_peer_gets_its_share_and_an_honest_stream_goes_on(name: str) -> None:
    subprotocol_id, make = ATTACKS[name]
    crowd = Crowd()
    handled = Handled(crowd.bob, subprotocol_id)
    sent: list[bytes] = []
    for turn in range(TURNS):
        sent += crowd.publish(20 * turn)
        crowd.attack(make, turn, 10)
        crowd.net.run(for_s=TURN_S)
    crowd.net.run(for_s=2)
    assert crowd.bob.payloads(CHANNEL) == sent
    # What Mallory got, in seconds of work: her burst, and her share of the time. Honest messages are few.
    spent_s = handled.count * COSTS[subprotocol_id] / 1e6
    assert spent_s <= EXCESS_SHARE * (TURNS * TURN_S) * 1.2, f"{handled.count} messages were handled"
    assert crowd.bob.engine.counters.get("drop", "peer_share") > handled.count
    assert crowd.bob.engine.counters.get("drop", "unreadable") >= TURNS
    # Nobody else was affected.
    assert {crowd.alice.node_id, crowd.mallory.node_id} <= {peer.node_id for peer in crowd.bob.engine.peers}


@pytest.mark.parametrize("kind", ["requests", "reads", "events on new streams"])
def test_work_on_streams_has_a_share_too(kind: str) -> None:
    crowd = Crowd()
    bob = crowd.bob.engine
    bob.requests.responder.serve(ChannelName("ask"))
    sent: list[bytes] = []

    def make(_mallory: FakeNode, number: int) -> tuple[Header, Sequence[bytes]]:
        match kind:
            case "requests":
                message = Request(req=number, deadline_ms=1, channel=ChannelName("ask"), payload=b"")
                return carried(Subprotocol.REQUEST, number, [encode_request(message)] * 100)
            case "reads":
                read = Read(req=number, channel=ChannelName(CHANNEL), since=0, max_bytes=1)
                return carried(Subprotocol.HISTORY, number, [encode_history(read)] * 150)
            case _:
                return Header(stream_id=number | PUBLISH_STREAM_BIT, origin_hash=1, event_count=1), [b"unasked"]

    start = encode_reliable(Base(stream_id=99, sequence=FIRST_SEQUENCE + 1000, pub_seq=None, start=True))
    crowd.attack(lambda _mallory, _number: plain(Subprotocol.RELIABLE, [start]), 0, 1)
    for turn in range(TURNS):
        sent += crowd.publish(20 * turn)
        crowd.attack(make, turn, 600 if kind == "events on new streams" else 20)
        crowd.net.run(for_s=TURN_S)
    crowd.net.run(for_s=2)
    assert crowd.bob.payloads(CHANNEL) == sent
    assert bob.counters.get("drop", "peer_share") > 1_000
