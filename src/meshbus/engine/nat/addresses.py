"""Where other nodes say they are, from their signed announcements: kind of NAT, address, and who knows them.

Everything here was announced by the node itself, signed and checked in engine/directory/directory.py. That makes it the node's own
word, not the truth: an address may be stale, or somebody else's. What is sent there is bounded by whoever sends it.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.directory.reachability import Nat
from meshbus.engine.session.peer import Peer
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.address import Address, parse_address
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.subprotocol import capability_tag

MAX_NODES = 65_536
"""As many as the index of announcements holds."""
MAX_AGE_S = 86_400.0
"""However long an announcement claims to hold."""

_MESHBUS = capability_tag(Subprotocol.NEGOTIATION)


class AnnouncedAddress(msgspec.Struct, frozen=True):
    """What one node said last."""

    nat: Nat
    reflex: Address | None
    entity_id: bytes
    meshbus: bool
    """Whether it speaks the meshbus profile, so that its keys follow from one."""
    neighbor: int | None
    """A peer of ours that has heard it without a detour."""
    version: int
    expires_at: float


class AnnouncedAddresses:
    """The last word of each node."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: BoundedMap[int, AnnouncedAddress] = BoundedMap(MAX_NODES)

    def __len__(self) -> int:
        return len(self._nodes)

    def heard(self, sender: Peer, announcement: Announcement, now: float) -> None:
        """Note an announcement that was believed, and which peer passed it on; unsigned and old ones say nothing."""
        before = self.get(announcement.node_id, now)
        if announcement.signature is None or (before is not None and announcement.version < before.version):
            return
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
        """Return what a node said, unless that is too old."""
        found = self._nodes.get(node_id)
        return None if found is None or now > found.expires_at else found
