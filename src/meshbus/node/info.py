"""What a node tells about its peers: plain values, safe to keep."""

from __future__ import annotations

import msgspec

from meshbus.engine.peer import Health, Peer
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


def info_of(peer: Peer) -> PeerInfo:
    """Say what is known about a peer now."""
    return PeerInfo(
        peer.node_id,
        peer.link.address,
        peer.health,
        peer.claims.subnet,
        tuple(sorted(peer.claims.capabilities.tags)),
        bool(peer.negotiated.compatible),
        peer.link.session_id,
    )
