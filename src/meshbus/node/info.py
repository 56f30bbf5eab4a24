"""What a node tells about its peers: plain values, safe to keep."""

from __future__ import annotations

import msgspec

from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.peer import Health, Peer
from meshbus.names.subnet import SubnetId


class PeerInfo(msgspec.Struct, frozen=True):
    """What is known about one peer."""

    node_id: int
    address: object
    health: Health
    subnet: SubnetId
    tags: tuple[str, ...]
    profile: bool
    """Whether it speaks the meshbus profile with us."""
    session_id: int
    relayed: bool
    """Whether packets for it go by way of others."""
    nat: Nat
    """The kind of NAT that it announces to be behind."""


def info_of(peer: Peer) -> PeerInfo:
    """Say what is known about a peer now."""
    tags = tuple(sorted(peer.claims.capabilities.tags))
    return PeerInfo(
        peer.node_id,
        peer.link.address,
        peer.health,
        peer.claims.subnet,
        tags,
        bool(peer.negotiated.compatible),
        peer.link.session_id,
        bool(peer.link.route),
        Nat.of_tags(tags),
    )
