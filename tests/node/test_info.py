"""What a node tells about a peer."""

from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.peer import Health, PeerClaims
from meshbus.names.subnet import SubnetId
from meshbus.node.info import info_of
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.route import RouteHeader
from tests.engine.streams.test_outbox import OutboxRig


def test_a_peer_as_a_value() -> None:
    peer = OutboxRig().peer
    plain = info_of(peer)
    assert (plain.node_id, plain.address, plain.health, plain.profile) == (5, "there", Health.ALIVE, False)
    assert (plain.relayed, plain.nat) == (False, Nat.UNKNOWN)
    peer.claims = PeerClaims(bytes(32), CapabilitySet(("gpu", "nat:cone")), SubnetId.parse("3.7"))
    peer.negotiated = NegotiatedSet(frozenset({0x4D01}))
    told = info_of(peer)
    assert (told.subnet, told.tags, told.profile) == (SubnetId.parse("3.7"), ("gpu", "nat:cone"), True)
    assert told.nat is Nat.CONE
    peer.link.follow("a neighbor", RouteHeader(src_id=1, dest_id=5))
    assert info_of(peer).relayed
