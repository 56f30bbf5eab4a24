"""Our own announcement (0x0C00): what this node can do, signed, told to every peer and again before it expires.

Rules of this file:

* Every announcement has a higher version than all before it, also those of an earlier life of this node: versions are
  unix milliseconds, or one more than the last where the clock stands still or went back. Milliseconds, because they
  stay exact in tools that read JSON numbers as doubles.
* A change is broadcast at once, but never two broadcasts within `min_interval_s`: what comes too soon is sent when the
  interval is over, in its latest form.
* A new session, and a peer that came back, is told at once. A peer that may already know the current version is told
  a new one, because it ignores versions it knows even when it has forgotten what they said.
* Datagrams get lost and nobody acknowledges an announcement, so the first copies on a session are repeated; the
  receiver drops the copies it does not need.

What other nodes announce is heard in engine/directory/directory.py.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import NAT_TAG, NatStatus, initial_status
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.policy.capability import CapabilitySet
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.capability import Announcement, encode_announcement

REPEATS_S = (0.5, 2.0, 5.0)
"""When a new session is told again, in seconds after it came up."""
MAX_TOLD = 65_536
"""Nodes of which we remember what they were told."""

MAX_VERSION = 0xFFFFFFFFFFFFFFFF

_MS = 1_000_000

Wall = Callable[[float], int]
"""Gives unix nanoseconds for a monotonic reading."""


class Announcer(Service):
    """Tells the peers what this node can do."""

    def __init__(self, context: Context) -> None:
        self.config = context.settings.announce
        self.current: Announcement | None = None
        """The announcement in force; None before the first."""
        self._identity = context.identity
        self._peers = context.peers
        self._index = context.index
        self._registry = context.registry
        self._wall = context.wall
        self._content = CapabilitySet()
        self._nat = initial_status(context.settings.nat)
        self._message = b""
        self._version = 0
        self._broadcast_at: float | None = None
        self._due: float | None = None
        self._deferred = False
        """What is due is the current version, held back by the interval."""
        self._told: BoundedMap[int, int] = BoundedMap(MAX_TOLD)
        """The newest version that was sent to a node."""
        self._repeats: list[tuple[float, int, int]] = []
        """A heap: when, to which node, in which session."""

    @property
    def capabilities(self) -> CapabilitySet:
        """What was announced last, with the tags that the node adds itself."""
        return CapabilitySet() if self.current is None else CapabilitySet(self.current.tags, self.current.metadata)

    def announce(self, capabilities: CapabilitySet, now: float, out: Output) -> int:
        """Announce these capabilities from now on, and give the version.

        Raises LocalProtocolError, and changes nothing, when they do not fit one packet.
        """
        self._issue(capabilities, self._nat, now)
        self._broadcast_or_defer(now, out)
        return self._version

    def set_nat(self, nat: NatStatus, now: float, out: Output) -> None:
        """Return how and where this node is reached; announced when it changes something that was announced."""
        if nat != self._nat and self.current is not None:
            self._issue(self._content, nat, now)
            self._broadcast_or_defer(now, out)
        self._nat = nat

    def refresh(self, now: float, out: Output) -> None:
        """Announce again, as after a change of the registry; nothing before the first announcement."""
        if self.current is not None:
            self.announce(self._content, now, out)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Announce to a peer that had failed: it has dropped what it knew of us."""
        self.peer_up(peer, now, out)

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Announce to a peer with a new session."""
        if self.current is None:
            return
        if self._told.get(peer.node_id) == self._version:
            self._issue(self._content, self._nat, now)
        self._tell(peer, out)
        for delay in REPEATS_S:
            heappush(self._repeats, (now + delay, peer.node_id, peer.link.session_id))

    def surpass(self, version: int, now: float, out: Output) -> None:
        """Go beyond a version of ours that peers still hold from an earlier life of this node.

        The caller has checked that it is signed by us.
        """
        if self._version < version < MAX_VERSION and self.current is not None:
            self._version = version
            self.refresh(now, out)

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do."""
        repeat = self._repeats[0][0] if self._repeats else None
        return min((time for time in (self._due, repeat) if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send what is due."""
        while self._repeats and self._repeats[0][0] <= now:
            _, node_id, session_id = heappop(self._repeats)
            peer = self._peers.get(node_id)
            if peer is not None and peer.link.session_id == session_id:
                self._tell(peer, out)
        if self._due is not None and self._due <= now:
            if not self._deferred:
                self._issue(self._content, self._nat, now)
            self._broadcast(now, out)

    def _issue(self, content: CapabilitySet, nat: NatStatus, now: float) -> None:
        """Make and sign the next version; all or nothing."""
        announced = self._enriched(content, nat)
        wall_ns = self._wall(now)
        version = max(self._version + 1, wall_ns // _MS)
        announcement = Announcement(
            node_id=self._identity.node_id,
            entity_id=self._identity.entity_id,
            version=version,
            timestamp_ns=wall_ns,
            ttl_secs=self.config.ttl_s,
            tags=tuple(announced.tags),
            metadata=dict(announced.metadata),
            reflex_addr=None if nat.reflex is None else str(nat.reflex),
        ).sign(self._identity)
        self._message = encode_announcement(announcement)
        self.current, self._version = announcement, version
        self._content, self._nat = content, nat
        self._index.apply(self._identity.node_id, announced, version, self.config.ttl_s, now)

    def _enriched(self, content: CapabilitySet, nat: NatStatus) -> CapabilitySet:
        plain = content.without_tags([tag for tag in content.tags if tag.startswith(NAT_TAG)])
        told = plain.with_tags([NAT_TAG + nat.nat])
        return self._registry.enrich_capabilities(told) if self.config.enrich else told

    def _broadcast_or_defer(self, now: float, out: Output) -> None:
        opens = now if self._broadcast_at is None else self._broadcast_at + self.config.min_interval_s
        if now >= opens:
            self._broadcast(now, out)
        else:
            self._due, self._deferred = opens, True

    def _broadcast(self, now: float, out: Output) -> None:
        for peer in self._peers:
            self._tell(peer, out)
            self._broadcast_at = now  # a broadcast that nobody heard holds nothing back
        self._due, self._deferred = now + max(self.config.ttl_s / 2, self.config.min_interval_s), False

    def _tell(self, peer: Peer, out: Output) -> None:
        peer.send_message(Subprotocol.CAPABILITY, self._message, out)
        self._told.put(peer.node_id, self._version)
