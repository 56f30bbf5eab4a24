"""What a node reports about its peers: plain values that are safe to keep."""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Health, Peer
from meshbus.names.nodename import NAME_KEY, is_node_name
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilitySet
from meshbus.wire.constants import Subprotocol

GATEWAY_KEY = "gateway"
"""The key of the announced metadata by which a gateway tells that it is one. A label, like a name: nothing is decided by it."""
_ID_DIGITS = 16


class PeerInfo(msgspec.Struct, frozen=True):
    """The state of one peer at one moment."""

    node_id: int
    address: object
    health: Health
    subnet: SubnetId
    tags: tuple[str, ...]
    profile: bool
    """Whether both sides have agreed on the meshbus profile."""
    session_id: int
    relayed: bool
    """Whether packets for it go through other nodes."""
    nat: Nat
    """The kind of NAT that it announces."""
    name: str | None = None
    """The name that it announces."""
    dialect: Level | None = None
    """Which form of the net-mesh wire it was seen to use in this session; None while nothing has shown it."""
    secure: bool = False
    """Whether only the two nodes have the keys of the session."""


def info_of(peer: Peer) -> PeerInfo:
    """Return the current state of a peer."""
    tags = tuple(sorted(peer.claims.capabilities.tags))
    return PeerInfo(
        peer.node_id,
        peer.link.address,
        peer.health,
        peer.claims.subnet,
        tags,
        bool(peer.negotiated.compatible - {Subprotocol.SECURE}),
        peer.link.session_id,
        bool(peer.link.route),
        Nat.of_tags(tags),
        name_in(peer.claims.capabilities),
        peer.dialect.level,
        peer.link.epoch > 0,
    )


def node_named(text: str, names: Mapping[int, str], revoked: Container[int] = ()) -> int | None:
    """Return the node that a text means: its id in 16 hex digits, or its name if exactly one of these nodes has it.

    Of several, those that are revoked do not count: a machine that came back with another key has its name to itself.
    """
    if len(text) == _ID_DIGITS and all(digit in "0123456789abcdef" for digit in text.lower()):
        return int(text, 16)
    found = [node for node, name in names.items() if name == text]
    if len(found) > 1:
        found = [node for node in found if node not in revoked]
    return found[0] if len(found) == 1 else None


def name_in(capabilities: CapabilitySet) -> str | None:
    """Return the name that a node announced; None if it has none, or one that would not be safe to show."""
    name = capabilities.metadata.get(NAME_KEY)
    return name if name is not None and is_node_name(name) else None


def is_gateway(capabilities: CapabilitySet | None) -> bool | None:
    """Return whether a node announced that it is a gateway; None if it said nothing about it."""
    said = None if capabilities is None else capabilities.metadata.get(GATEWAY_KEY)
    return None if said is None else said == "true"
