"""Unproved peers: nodes behind a relay that got a session without proving that it is theirs.

A 0.23 node cannot send through a relay (mesh.md §2.2), so its session is believed because a neighbor relayed the
handshake. Whoever has the mesh key can begin such sessions in any name, and a relay that forwards them does not know
better. So each relay and the node have room for a few; a newer one takes the place of the oldest. They never take the
place of a peer that proved itself (session/peer.py bounds those).
"""

from __future__ import annotations

from collections import OrderedDict

from meshbus.engine.base.packets import Address, place_of
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import PeerTable
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

MAX_PER_RELAY = 32
"""Unproved peers behind one neighbor. Our choice: 0.23 nodes that can only listen are rare."""
MAX_UNPROVED = 256
"""Unproved peers in all. Our choice: eight full relays, and with 13 KB for each little memory."""


BOUNDS = (
    Bound(
        name="unproved_peers",
        what="peers behind relays that were never heard",
        by=By.MEMBER,
        per_node=MAX_UNPROVED,
        per={"relay": MAX_PER_RELAY},
        full="the oldest goes",
        counter=Reason.EVICT_UNPROVED_PEER,
    ),
)


class UnprovedPeers:
    """The unproved peers of a node, oldest first."""

    def __init__(self, peers: PeerTable) -> None:
        self._peers = peers
        self._links: OrderedDict[int, Link] = OrderedDict()
        """By node id; an entry whose peer is gone, proved or has another session by now means nothing."""
        self._relays: dict[Address, OrderedDict[int, None]] = {}
        self._relay_of: dict[int, Address] = {}

    def __len__(self) -> int:
        return len(self._links)

    def add(self, node_id: int, link: Link) -> int | None:
        """Add a peer, and return the one that has to go for it, if any."""
        self._forget(node_id)
        relay = place_of(link.address)
        behind = self._relays.get(relay, ())
        goes = None
        if len(behind) >= MAX_PER_RELAY:
            goes = self._oldest(next(iter(behind)))
        elif len(self._links) >= MAX_UNPROVED:
            goes = self._oldest(next(iter(self._links)))
        self._links[node_id] = link
        self._relays.setdefault(relay, OrderedDict())[node_id] = None
        self._relay_of[node_id] = relay
        return goes

    def _oldest(self, node_id: int) -> int | None:
        """Forget an entry, and return its node if it is still an unproved peer."""
        link = self._forget(node_id)
        peer = self._peers.get(node_id)
        return node_id if peer is not None and peer.link is link and not link.proved else None

    def _forget(self, node_id: int) -> Link | None:
        link = self._links.pop(node_id, None)
        if link is not None:
            relay = self._relay_of.pop(node_id)
            behind = self._relays[relay]
            del behind[node_id]
            if not behind:
                del self._relays[relay]
        return link
