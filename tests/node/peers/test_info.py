"""What a node tells about a peer."""

import pytest

from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.peer import Health, PeerClaims
from meshbus.names.subnet import SubnetId
from meshbus.node.node import Node
from meshbus.node.peers.info import info_of, is_gateway, name_in
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.route import RouteHeader
from tests.engine.streams.test_outbox import OutboxRig
from tests.node.test_node import QUICK, until


def test_the_fields_of_a_peer() -> None:
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


@pytest.mark.parametrize(
    ("metadata", "name"), [({"name": "west-rover"}, "west-rover"), ({}, None), ({"name": "\x1b[2Jrover"}, None)]
)
def test_only_printable_names_are_shown(metadata: dict[str, str], name: str | None) -> None:
    peer = OutboxRig().peer
    peer.claims = PeerClaims(bytes(32), CapabilitySet(metadata=metadata))
    assert info_of(peer).name == name_in(peer.claims.capabilities) == name


async def test_the_name_of_a_node_is_announced_and_remembered() -> None:
    async with Node.open(**QUICK, name="west-rover") as rover, Node.open(**QUICK) as base:
        assert base.name_of(rover.node_id) is None
        await base.connect(rover.address, public_key=rover.public_key)
        await until(lambda: base.name_of(rover.node_id) == "west-rover")
        assert base.peers[0].name == "west-rover"
        await until(lambda: rover.peers and rover.peers[0].profile)
        assert rover.peers[0].name is None
        assert rover.name_of(rover.node_id) == "west-rover"
        rover.announce(CapabilitySet(("gpu",)))
        assert rover.live.engine.announcer.capabilities.metadata["name"] == "west-rover"
        await rover.close()
        await until(lambda: not base.peers)
        assert base.name_of(rover.node_id) == "west-rover"


async def test_a_gateway_announces_that_it_is_one() -> None:
    async with Node.open(**QUICK, gateway=True) as gate, Node.open(**QUICK) as leaf:
        await leaf.connect(gate.address, public_key=gate.public_key)

        def said(node: Node, other: Node) -> bool | None:
            return is_gateway(node.live.engine.directory.capabilities_of(other.node_id))

        await until(lambda: said(leaf, gate))
        assert said(leaf, gate) is True
        assert said(gate, leaf) is None
    assert is_gateway(CapabilitySet(metadata={"gateway": "perhaps"})) is False
    assert is_gateway(None) is None
