"""What a node tells about a peer."""

from meshbus.engine.peer import Health, PeerClaims
from meshbus.names.subnet import SubnetId
from meshbus.node.info import info_of
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.registry import NegotiatedSet
from tests.engine.test_outbox import Desk


def test_a_peer_as_a_value() -> None:
    peer = Desk().peer
    plain = info_of(peer)
    assert (plain.node_id, plain.address, plain.health, plain.profile) == (5, "there", Health.ALIVE, False)
    peer.claims = PeerClaims(bytes(32), CapabilitySet(("gpu", "arm")), SubnetId.parse("3.7"))
    peer.negotiated = NegotiatedSet(frozenset({0x4D01}))
    told = info_of(peer)
    assert (told.subnet, told.tags, told.profile) == (SubnetId.parse("3.7"), ("arm", "gpu"), True)
