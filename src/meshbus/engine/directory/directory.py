"""What other nodes announce (0x0C00): heard, checked, passed on, and kept for searches.

An announcement goes through these checks in this order, and the first that fails drops it with a counter:

    readable → its own node on its own link → not ours → not heard before → signed → few enough to check
    → signature good → node id derived from the entity → entity is the pinned one

Then it is passed on to the other peers, whatever its version, and kept when it is newer than what is there. What a
peer says about *itself* (signed, over its own link) also becomes its claims: entity, capabilities and subnet, by which
it is authorized. Claims follow the newest version only, so an old announcement played again changes nobody's subnet.

A session proves nothing about who is at its other end but that it holds the mesh key, so whoever claims a node id and
replays that node's announcement is taken for it; stronger sessions end that, not this file. An entity stays pinned to
its node id for as long as there is room, also over failures. Our own announcement is in engine/directory/announce.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import Announced, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.directory.announce import Announcer
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.engine.session.service import Context, Service
from meshbus.errors import LocalProtocolError, RemoteProtocolError
from meshbus.names.subnet import SubnetId
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.discovery import ScopeFilter
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.capability import Announcement, decode_announcement, encode_announcement

SEEN_S = 600.0
"""How long an announcement is known to be a repetition."""
MAX_SEEN = 131_072
MAX_PINS = 65_536
MAX_RATED = 65_536
"""Peers whose rate is remembered."""
SWEEP_S = 0.5
"""An entry is gone at most this long after its time is over."""
MAX_TTL_S = 86_400
"""However long an announcement claims to hold, we keep it for a day."""
GC_S = 60.0
"""The longest time between two sweeps."""


MAX_HEAT_BLOBS = 256
_HEAT_BLOB = "heat:blob:"
_HEAT = re.compile(r"heat:([0-9a-fA-F]+)=")
_CAUSAL = re.compile(r"causal:([0-9a-fA-F]+)")
_LOCAL_METADATA = frozenset({"intent", "colocate-with", "colocate-with-strict", "priority", "owner"})
_TOOL_METADATA = "tool::"

NextHop = Callable[[int, float], int | None]
"""Gives the neighbor through which a node is reached now."""


class _Standing(msgspec.Struct, frozen=True):
    """Which announcement a peer's claims are from, and when it ends."""

    version: int
    expires_at: float


class Directory(Service):
    """Hears announcements and knows which nodes can do what."""

    def __init__(self, context: Context, announcer: Announcer, next_hop: NextHop = lambda _node_id, _now: None) -> None:
        self.config = context.settings.directory
        self._identity = context.identity
        self._peers = context.peers
        self._services = context.services
        self._index = context.index
        self._counters = context.counters
        self._subnet = context.settings.subnet
        self._assignment = context.settings.assignment
        self._announcer = announcer
        self._next_hop = next_hop
        self._seen: BoundedMap[tuple[int, int, bool], float] = BoundedMap(MAX_SEEN)
        """(node, version, direct) and when it was heard first."""
        self._pins: BoundedMap[int, bytes] = BoundedMap(MAX_PINS)
        self._standing: dict[int, _Standing] = {}
        """Of the peers with claims."""
        self._rates: BoundedMap[int, TokenBucket] = BoundedMap(MAX_RATED)
        self._forwarded_rate = TokenBucket(self.config.forwarded_checks_per_s, 2 * self.config.forwarded_checks_per_s)
        self._sweep_at: float | None = None

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle an announcement that a peer sent or forwarded."""
        if self.hear(peer, message, now, out):
            self._services.vouched(peer, now, out)

    def hear(self, peer: Peer, message: Buffer, now: float, out: Output) -> bool:
        """Handle an announcement, and return whether the sender has vouched for its claims in this session.

        It does when this announcement made them, and when it repeats the one that did.
        """
        try:
            heard = decode_announcement(message)
        except RemoteProtocolError:
            return self._drop(Reason.ANNOUNCEMENT_MALFORMED)
        direct = heard.hop_count == 0
        if direct and heard.node_id != peer.node_id:
            return self._drop(Reason.ANNOUNCEMENT_FOREIGN)
        if heard.node_id == self._identity.node_id:
            self._hear_own(peer, heard, now, out)
            return self._drop(Reason.ANNOUNCEMENT_OWN)
        key = (heard.node_id, heard.version, direct)
        self._forget_seen(now)
        if key in self._seen:
            standing = self._standing.get(heard.node_id)
            self._drop(Reason.ANNOUNCEMENT_DUPLICATE)
            return direct and standing is not None and standing.version == heard.version
        distrust = self._distrust(peer, heard, now)
        if distrust is not None:
            return self._drop(distrust)
        self._seen.put(key, now)
        self._forward(peer, heard, now, out)
        capabilities = _local_copy(heard)
        signed = heard.signature is not None
        changed = self._keep(heard, capabilities, now)
        self._services.announced(peer, heard, now)
        claimed = direct and signed and self._claim(peer, heard, capabilities, now)
        if changed or claimed:
            out.control.append(Announced(heard.node_id, direct))
        if claimed:
            self._services.claims_changed(peer, now, out)
        standing = self._standing.get(peer.node_id)
        return direct and signed and standing is not None and standing.version == heard.version

    def find_nodes(
        self, capability_filter: CapabilityFilter, now: float, *, scope: ScopeFilter | None = None
    ) -> list[int]:
        """Return the ids of the nodes that match, ascending; our own among them once it is announced."""
        return self._index.query(capability_filter, now=now, scope=scope, same_subnet=self._same_subnet)

    def pin(self, node_id: int, entity_id: bytes) -> bool:
        """Tie a node id to its entity key; False when it is tied to another one."""
        pinned = self._pins.get(node_id)
        if pinned is not None and pinned != entity_id:
            return False
        self._pins.put(node_id, entity_id)
        return True

    def pinned(self, node_id: int) -> bytes | None:
        """Return the entity key that a node id is tied to."""
        return self._pins.get(node_id)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Drop the claims of a peer that failed or is gone; it must announce a version not heard before."""
        node_id = down.node_id
        self._index.remove(node_id)
        self._standing.pop(node_id, None)
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.claims = PeerClaims()
        if not self.config.keep_pins:
            self._pins.pop(node_id)

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do."""
        return self._sweep_at

    def tick(self, now: float, out: Output) -> None:
        """Drop what is over: entries of the index, and the capabilities of peers; their entity and subnet stay."""
        if self._sweep_at is None or now < self._sweep_at:
            return
        self._forget_seen(now)
        expired = len(self._index.expire(now))
        for node_id, standing in list(self._standing.items()):
            if now > standing.expires_at:
                del self._standing[node_id]
                peer = self._peers.get(node_id)
                if peer is not None:
                    peer.claims = msgspec.structs.replace(peer.claims, capabilities=CapabilitySet())
        self._counters.add("expire", "announcement", expired)
        earliest = min((standing.expires_at for standing in self._standing.values()), default=now + GC_S)
        self._sweep_at = min(earliest + SWEEP_S, now + GC_S) if len(self._index) or len(self._seen) else None

    def _distrust(self, peer: Peer, heard: Announcement, now: float) -> Reason | None:
        """Return the reason not to believe an announcement, or None."""
        if heard.signature is None and self.config.require_signed:
            return Reason.ANNOUNCEMENT_UNSIGNED
        if not self._may_check(peer, heard, now):
            return Reason.ANNOUNCEMENT_RATE
        if heard.signature is not None and not heard.verify():
            return Reason.ANNOUNCEMENT_SIGNATURE
        if not heard.owns_node_id:
            return Reason.ANNOUNCEMENT_NODE_ID
        pinned = self._pins.get(heard.node_id)
        return Reason.ANNOUNCEMENT_ENTITY if pinned is not None and pinned != heard.entity_id else None

    def _may_check(self, peer: Peer, heard: Announcement, now: float) -> bool:
        """Return whether there is room for one more signature check, and use it."""
        rate = self._rates.get(peer.node_id)
        if rate is None:
            rate = TokenBucket(self.config.checks_per_s, 2 * self.config.checks_per_s)
            self._rates.put(peer.node_id, rate)
        return rate.take(1, now) and (heard.hop_count == 0 or self._forwarded_rate.take(1, now))

    def _hear_own(self, peer: Peer, heard: Announcement, now: float, out: Output) -> None:
        """Notice what peers remember of an earlier life of this node; our own current one comes back often."""
        entry = self._index.get(self._identity.node_id)
        if (
            entry is not None
            and heard.version > entry.version
            and heard.entity_id == self._identity.entity_id
            and self._may_check(peer, heard, now)
            and heard.verify()
        ):
            self._announcer.surpass(heard.version, now, out)

    def _forward(self, sender: Peer, heard: Announcement, now: float, out: Output) -> None:
        """Pass an announcement on to everyone who may not have it from a shorter way."""
        further = heard.forwarded()
        if further is None:
            return
        try:
            message = encode_announcement(further)
        except LocalProtocolError:
            self._counters.count(Reason.ANNOUNCEMENT_FORWARD_TOO_LARGE)
            return
        done = {sender.node_id, heard.node_id, self._next_hop(heard.node_id, now)}
        for peer in self._peers:
            if peer.node_id not in done:
                peer.send_message(Subprotocol.CAPABILITY, message, out)

    def _keep(self, heard: Announcement, capabilities: CapabilitySet, now: float) -> bool:
        """Apply an announcement to the index, and return whether it told anything new."""
        before = self._index.get(heard.node_id)
        if not self._index.apply(heard.node_id, capabilities, heard.version, _lifetime(heard), now):
            self._drop(Reason.ANNOUNCEMENT_INDEX_FULL if before is None else Reason.ANNOUNCEMENT_STALE)
            return False
        self._sweep_by(now + GC_S)
        return before is None or before.expired(now) or before.capabilities != capabilities

    def _claim(self, peer: Peer, heard: Announcement, capabilities: CapabilitySet, now: float) -> bool:
        """Take what a peer says about itself, when it is its newest word, and return whether that changed anything."""
        self.pin(peer.node_id, heard.entity_id)
        standing = self._standing.get(peer.node_id)
        if standing is not None and now <= standing.expires_at and heard.version <= standing.version:
            return False
        subnet = SubnetId.GLOBAL if self._assignment is None else self._assignment.assign(heard.tags)
        before, peer.claims = peer.claims, PeerClaims(heard.entity_id, capabilities, subnet)
        expires_at = now + _lifetime(heard)
        self._standing[peer.node_id] = _Standing(heard.version, expires_at)
        self._sweep_by(expires_at + SWEEP_S)
        return before != peer.claims

    def _same_subnet(self, node_id: int) -> bool:
        """Return whether a node counts as being in our subnet; one that nobody assigned does when there are rules."""
        if node_id == self._identity.node_id:
            return True
        peer = self._peers.get(node_id)
        if peer is None or peer.claims.entity_id is None or self._assignment is None:
            return self._assignment is not None
        return peer.claims.subnet == self._subnet

    def _sweep_by(self, time: float) -> None:
        self._sweep_at = time if self._sweep_at is None else min(self._sweep_at, time)

    def _forget_seen(self, now: float) -> None:
        while (oldest := self._seen.oldest()) is not None and now - oldest[1] > SEEN_S:
            self._seen.pop(oldest[0])

    def _drop(self, reason: Reason) -> bool:
        self._counters.count(reason)
        return False


def _lifetime(heard: Announcement) -> int:
    return min(heard.ttl_secs, MAX_TTL_S)


def _local_copy(heard: Announcement) -> CapabilitySet:
    """Return what we keep of an announcement: without what only the mesh itself may say about a node."""
    metadata = {
        key: value
        for key, value in heard.metadata.items()
        if key not in _LOCAL_METADATA and not key.startswith(_TOOL_METADATA)
    }
    chains = {match[1] for tag in heard.tags if (match := _CAUSAL.match(tag))}
    blobs = sorted(tag for tag in heard.tags if tag.startswith(_HEAT_BLOB))
    dropped = set(blobs[MAX_HEAT_BLOBS:])
    dropped |= {tag for tag in heard.tags if (match := _HEAT.match(tag)) and match[1] not in chains}
    return CapabilitySet((tag for tag in heard.tags if tag not in dropped), metadata)
