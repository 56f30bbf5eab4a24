"""Handshake messages through a relay: inside sessions if both sides negotiated it, otherwise behind a routing header."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.packets import Address, Output
from meshbus.engine.routes.relay import HandshakeRelay
from meshbus.engine.services import SERVICES
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Established
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import replaced, rig
from meshbus.wire.constants import HANDSHAKE_TTL, ROUTE_BYTES, Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.handshake import decode_routed_handshake
from meshbus.wire.header import Buffer
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.relay import RelayedHandshake, decode_relay, encode_relay
from meshbus.wire.seal import Opener
from tests.vectors import load

OBSERVED: dict[str, Any] = load("mesh")["routed_handshake"]
SELF, ASKER, TARGET, PLAIN, FAR = 1, 2, 3, 4, 9


class HandshakeRecorder(Handshakes):
    """Keeps the routed messages for this node instead of reading them."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.taken: list[tuple[Address, bytes]] = []

    def receive_routed(self, source: Address, datagram: Buffer, now: float, out: Output) -> list[Established]:
        self.taken.append((source, bytes(datagram)))
        return []


class RelayRig:
    """One relay with three peers, one of which does not support this subprotocol."""

    def __init__(self) -> None:
        engine = rig(node_id=SELF, table=replaced(SERVICES, Handshakes, HandshakeRecorder))
        self.counters, self.peers, self.table = engine.counters, engine.peers, engine.mesh.table
        self.relay = engine.services[HandshakeRelay]
        self.taken = engine.services[HandshakeRecorder].taken
        self.openers: dict[Address, Opener] = {}
        for node_id in (ASKER, TARGET, PLAIN):
            secret, name = bytes([node_id]) * 32, f"at {node_id}"
            peer = self.peers.establish(
                node_id, Link(derive_keys(secret, Role.INITIATOR), Role.INITIATOR, name, 0.0), 0.0
            )
            self.openers[name] = Opener(derive_keys(secret, Role.RESPONDER))
            self.table.install(node_id, name, 0.0)
            if node_id != PLAIN:
                peer.negotiated = NegotiatedSet(frozenset({Subprotocol.HANDSHAKE_RELAY}))
        self.table.learn(FAR, f"at {PLAIN}", 3, 0.0)

    def peer(self, node_id: int) -> Peer:
        return self.peers.require(node_id)

    def take(self, sender: int, relayed: RelayedHandshake) -> Output:
        out = Output()
        self.relay.receive(self.peer(sender), encode_relay(relayed), 0.0, out)
        return out

    def inside(self, out: Output) -> list[tuple[Address, RelayedHandshake]]:
        """Return the messages that were sent inside sessions."""
        found = []
        for train in out.trains:
            header, payload = self.openers[train.address].open(bytes(train.data))
            assert header.subprotocol_id == Subprotocol.HANDSHAKE_RELAY
            found += [(train.address, decode_relay(event)) for event in unpack_frames(payload, header.event_count)]
        return found

    def drops(self) -> dict[str, int]:
        return self.counters.snapshot().get("drop", {})


def test_our_own_message_goes_inside_the_session_with_the_relay() -> None:
    setup, out = RelayRig(), Output()
    setup.relay.carry(f"at {TARGET}", b"noise", SELF, FAR, out)
    assert setup.inside(out) == [(f"at {TARGET}", RelayedHandshake(FAR, SELF, b"noise"))]


@pytest.mark.parametrize("address", [f"at {PLAIN}", "nobody", f"at {TARGET}"])
def test_our_own_message_is_routed_without_an_agreement(address: str) -> None:
    setup, out = RelayRig(), Output()
    receiver = TARGET if address == f"at {TARGET}" else FAR  # the receiver is its own relay
    setup.relay.carry(address, b"noise", SELF, receiver, out)
    (train,) = out.trains
    route, message = decode_routed_handshake(bytes(train.data))
    assert (train.address, route.ttl, route.dest_id, route.src_id, message) == (
        address, HANDSHAKE_TTL, receiver, SELF, b"noise"
    )  # fmt: skip


def test_a_message_is_passed_on_inside_the_session_with_its_receiver() -> None:
    setup = RelayRig()
    relayed = RelayedHandshake(TARGET, ASKER, b"noise")
    assert setup.inside(setup.take(ASKER, relayed)) == [(f"at {TARGET}", relayed)]
    assert setup.counters.get("relay", "inside") == 1


@pytest.mark.parametrize(("dest", "address"), [(PLAIN, f"at {PLAIN}"), (FAR, f"at {PLAIN}")])
def test_a_message_continues_with_a_routing_header_where_needed(dest: int, address: str) -> None:
    setup = RelayRig()
    (train,) = setup.take(ASKER, RelayedHandshake(dest, ASKER, b"noise")).trains
    route, message = decode_routed_handshake(bytes(train.data))
    assert (train.address, route.dest_id, route.src_id, message) == (address, dest, ASKER, b"noise")
    assert (route.ttl, route.hop_count) == (HANDSHAKE_TTL - 1, 1), "its receiver must know that it came through a relay"
    assert setup.counters.get("relay", "routed") == 1


def test_a_message_for_us_is_taken_as_a_routed_one() -> None:
    setup = RelayRig()
    setup.take(TARGET, RelayedHandshake(SELF, FAR, b"noise"))
    ((source, datagram),) = setup.taken
    route, message = decode_routed_handshake(datagram)
    assert (source, route.hop_count, route.src_id, message) == (f"at {TARGET}", 1, FAR, b"noise")
    assert len(datagram) == ROUTE_BYTES + 68 + 5


def test_no_peer_can_send_in_the_name_of_another() -> None:
    setup = RelayRig()
    assert setup.take(ASKER, RelayedHandshake(TARGET, PLAIN, b"noise")).trains == []
    assert setup.drops() == {"relay_source": 1}


def test_what_leads_nowhere_or_cannot_be_read_is_counted() -> None:
    setup = RelayRig()
    assert setup.take(ASKER, RelayedHandshake(0x777, ASKER, b"noise")).trains == []
    setup.relay.receive(setup.peer(ASKER), bytes(7), 0.0, Output())
    assert setup.drops() == {"relay_malformed": 1, "relay_no_route": 1}


def test_a_relay_of_the_other_implementation_could_read_along() -> None:
    """Why handshakes are better sent inside sessions: the keys follow from the handshake hash and the mesh key."""
    keys = derive_keys(bytes.fromhex(OBSERVED["handshake_hash"]), Role.INITIATOR)
    assert keys.session_id == OBSERVED["session_id"]
    assert (keys.tx_key.hex(), keys.rx_key.hex()) == (OBSERVED["initiator_tx_key"], OBSERVED["initiator_rx_key"])
