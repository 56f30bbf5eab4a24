"""Announced addresses: the NAT type and the address that other nodes announce, and a neighbor that knows them.

The announcements are signed and were verified in engine/directory/directory.py. So the content is what the node claims,
not a proven fact: an address may be stale, or belong to another host. Code that sends to it must limit what it sends.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.peer import Peer
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.address import Address, parse_address
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.subprotocol import capability_tag

MAX_NODES = 65_536
"""As many as the index of announcements holds (policy/discovery.py)."""
MAX_AGE_S = 86_400.0
"""Longest lifetime, whatever ttl an announcement has. Our choice: one day, as in engine/directory/directory.py."""

_MESHBUS = capability_tag(Subprotocol.NEGOTIATION)


BOUNDS = (
    Bound(
        name="announced_addresses",
        what="addresses that nodes announced",
        by=By.PEER,
        per_node=MAX_NODES,
        full="the oldest goes",
        counter=forgotten("announced_addresses"),
    ),
)


class AnnouncedAddress(msgspec.Struct, frozen=True):
    """The content of a node's latest announcement."""

    nat: Nat
    reflex: Address | None
    entity_id: bytes
    meshbus: bool
    """Whether it is a meshbus node, so that its Noise key follows from its entity key."""
    neighbor: int | None
    """A peer of ours that got the announcement directly from the node, so that it has a session with it."""
    version: int
    expires_at: float


class AnnouncedAddresses:
    """The latest announced address of each node."""

    __slots__ = ("_nodes",)

    def __init__(self, counters: Counters) -> None:
        self._nodes: BoundedMap[int, AnnouncedAddress] = BoundedMap(
            MAX_NODES, counters.forgetting("announced_addresses")
        )

    def __len__(self) -> int:
        return len(self._nodes)

    def heard(self, sender: Peer, announcement: Announcement, now: float) -> None:
        """Record an accepted announcement and the peer that forwarded it; ignore unsigned and older ones."""
        before = self.get(announcement.node_id, now)
        if announcement.signature is None or (before is not None and announcement.version < before.version):
            return
        # One hop: the sender has a session with the node. Other copies do not change which neighbor does.
        hops = announcement.hop_count
        known = sender.node_id if hops == 1 else None if before is None else before.neighbor
        text = announcement.reflex_addr
        found = AnnouncedAddress(
            Nat.of_tags(announcement.tags),
            None if text is None else parse_address(text),
            announcement.entity_id,
            _MESHBUS in announcement.tags,
            known,
            announcement.version,
            now + min(announcement.ttl_secs, MAX_AGE_S),
        )
        self._nodes.put(announcement.node_id, found)

    def get(self, node_id: int, now: float) -> AnnouncedAddress | None:
        """Return the latest announced address of a node, or None if there is none or it has expired."""
        found = self._nodes.get(node_id)
        return None if found is None or now > found.expires_at else found
