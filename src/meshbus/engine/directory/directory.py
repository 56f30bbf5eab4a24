"""Announcements of other nodes (0x0C00): checks them, forwards them, and keeps them for searches (policy.md §8.3).

The checks, in this order; the first that fails drops the announcement with a counter:

    1  it is well-formed                                      MALFORMED
    2  with hop count 0, it is about its sender               FOREIGN
    3  it is not about this node                              OWN
    4  it was not seen before                                 DUPLICATE
    5  its node was not revoked                               REVOKED
    6  it is signed                                           UNSIGNED
    7  the sender does not cause too many signature checks    RATE
    8  the signature is valid                                 SIGNATURE
    9  the node id follows from the entity key                NODE_ID
    10 the node id is not pinned to another entity key        ENTITY

Then it is forwarded to the other peers, whatever its version, and kept if it is newer than the known one. What a peer
announces about *itself* (signed, over its own session) also becomes its claims: entity, capabilities and subnet, by which
it is authorized. Claims come from the newest version only, so a replayed old announcement changes nothing.

Known weakness: a session proves only that the other side has the mesh key. A node that claims another node's id and
replays its announcement is taken for it (policy.md §11); only a stronger handshake can prevent that. A node id stays
pinned to its entity key as long as there is room, also over failures.

This node's own announcement is in engine/directory/announce.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import Announced, PeerFailed, PeerGone
from meshbus.engine.base.packets import Address, Output, host_of
from meshbus.engine.base.renaming import move, move_kept
from meshbus.engine.directory.announce import Announcer
from meshbus.engine.session.budget import Rates
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.engine.session.service import Context, Service
from meshbus.errors import LocalProtocolError, RemoteProtocolError
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.discovery import ScopeFilter
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.capability import Announcement, decode_announcement, encode_announcement
from meshbus.wire.messages.revocation import Revocation, Revoked

SEEN_S = 600.0
"""How long an announcement is remembered to detect copies (policy.md §8.4)."""
MAX_SEEN = 131_072
"""Announcements remembered to detect copies. Our choice: two for each node of the index, direct and forwarded."""
MAX_PINS = 65_536
"""Node ids with a pinned entity key: as many as the index holds."""
MAX_RECENT = 256
"""Announcements kept for peers whose sessions come up soon. Our choice: telling them takes about 2 ms, so that all candidate
sessions, which last 30 s, cost a tenth of a core at most."""
MAX_RATED = 65_536
"""Peers whose rate is kept: as many as the index holds."""
MAX_HOSTS = 4096
"""Hosts whose rate is kept: as many as for handshakes."""
HOST_RATE, HOST_BURST = 50.0, 2048.0
"""New announcements of peers of one host about themselves, per second: as many at once as a host may have peers, and then
several times what they renew. Whoever has the mesh key can have as many peers, each with the rate of a peer."""
SWEEP_S = 0.5
"""Longest time that an expired entry stays (policy.md §8.4)."""
MAX_TTL_S = 86_400
"""Longest lifetime of an entry, whatever ttl it has. Our choice: one day."""
GC_S = 60.0
"""Longest time between two sweeps (policy.md §8.4)."""


MAX_HEAT_BLOBS = 256
"""Tags `heat:blob:` kept of one announcement (policy.md §8.3, step 14)."""
_HEAT_BLOB = "heat:blob:"
_HEAT = re.compile(r"heat:([0-9a-fA-F]+)=")
_CAUSAL = re.compile(r"causal:([0-9a-fA-F]+)")
# policy.md §8.3, step 13: reserved metadata is removed from the local copy.
_LOCAL_METADATA = frozenset({"intent", "colocate-with", "colocate-with-strict", "priority", "owner"})
_TOOL_METADATA = "tool::"

NextHop = Callable[[int, float], int | None]
"""Returns the neighbor that is the next hop to a node, or None."""


BOUNDS = (
    Bound(
        name="announcement_copies",
        what="announcements, to recognize copies",
        by=By.PEER,
        per_node=MAX_SEEN,
        full="the oldest goes",
        counter=forgotten("announcement_copies"),
    ),
    Bound(
        name="pins",
        what="entity keys that node ids are pinned to",
        by=By.MEMBER,
        per_node=MAX_PINS,
        full="the oldest goes",
        counter=forgotten("pins"),
    ),
    Bound(
        name="announcing_peers",
        what="peers with a rate of announcements",
        by=By.MEMBER,
        per_node=MAX_RATED,
        full="the oldest goes",
        counter=forgotten("announcing_peers"),
    ),
    Bound(
        name="announcing_hosts",
        what="hosts with a rate of announcements",
        by=By.MEMBER,
        per_node=MAX_HOSTS,
        full="the one that was quiet longest goes",
        counter=forgotten("announcing_hosts"),
    ),
    Bound(
        name="recent_announcements",
        what="announcements for peers that come up soon",
        by=By.PEER,
        per_node=MAX_RECENT,
        full="the oldest goes",
        counter=forgotten("recent_announcements"),
    ),
)


class _ClaimsVersion(msgspec.Struct, frozen=True):
    """The version of the announcement that a peer's claims come from, and when it expires."""

    version: int
    expires_at: float


class _Forwarded(NamedTuple):
    """An announcement as it was forwarded."""

    time: float
    sender: int
    message: bytes


class Directory(Service):
    """Receives announcements, and finds nodes by their capabilities."""

    def __init__(self, context: Context, announcer: Announcer, next_hop: NextHop = lambda _node_id, _now: None) -> None:
        self.config = context.settings.directory
        self._identity = context.identity
        self._peers = context.peers
        self._services = context.services
        self._index = context.index
        self._revoked = context.revocations
        self._counters = context.counters
        self._subnet = context.settings.subnet
        self._assignment = context.settings.assignment
        self._announcer = announcer
        self._next_hop = next_hop
        self._seen: BoundedMap[tuple[int, int, bool], float] = BoundedMap(
            MAX_SEEN, self._counters.forgetting("announcement_copies")
        )
        """When an announcement was first received, by (node id, version, direct)."""
        self._pins: BoundedMap[int, bytes] = BoundedMap(MAX_PINS, self._counters.forgetting("pins"))
        self._claims_versions: dict[int, _ClaimsVersion] = {}
        """By peer; only peers with claims."""
        self._rates: BoundedMap[int, TokenBucket] = BoundedMap(MAX_RATED, self._counters.forgetting("announcing_peers"))
        self._hosts: Rates[Address] = Rates(
            HOST_RATE, HOST_BURST, MAX_HOSTS, self._counters.forgetting("announcing_hosts")
        )
        self._forwarded_rate = TokenBucket(self.config.forwarded_checks_per_s, 2 * self.config.forwarded_checks_per_s)
        self._recent: BoundedMap[int, _Forwarded] = BoundedMap(
            MAX_RECENT, self._counters.forgetting("recent_announcements")
        )
        """What was forwarded last, by the node that announced it."""
        self._sweep_at: float | None = None

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle an announcement that a peer sent or forwarded."""
        if self.hear(peer, message, now, out):
            self._services.vouched(peer, now, out)

    def hear(self, peer: Peer, message: Buffer, now: float, out: Output) -> bool:
        """Handle an announcement, and return whether the sender has confirmed its claims in this session.

        It has if this announcement set the claims, or if it is a copy of the one that did.
        """
        try:
            heard = decode_announcement(message)
        except RemoteProtocolError:
            return self._drop(Reason.ANNOUNCEMENT_MALFORMED)
        # policy.md §8.3, step 2: hop count 0 means that the sender speaks about itself.
        direct = heard.hop_count == 0
        if direct and heard.node_id != peer.node_id:
            return self._drop(Reason.ANNOUNCEMENT_FOREIGN)
        if heard.node_id == self._identity.node_id:
            self._hear_own(peer, heard, now, out)
            return self._drop(Reason.ANNOUNCEMENT_OWN)
        key = (heard.node_id, heard.version, direct)
        self._forget_seen(now)
        if key in self._seen:
            current = self._claims_versions.get(heard.node_id)
            self._drop(Reason.ANNOUNCEMENT_DUPLICATE)
            return direct and current is not None and current.version == heard.version
        distrust = self._distrust(peer, heard, now)
        if distrust is not None:
            return self._drop(distrust)
        self._seen.put(key, now)
        # policy.md §8.3: forwarded before the version is compared, so that all nodes get it.
        self._forward(peer, heard, now, out)
        capabilities = _local_copy(heard)
        signed = heard.signature is not None
        changed = self._keep(heard, capabilities, None if direct else peer.node_id, now)
        self._services.announced(peer, heard, now)
        claimed = direct and signed and self._claim(peer, heard, capabilities, now)
        if changed or claimed:
            out.control.append(Announced(heard.node_id, direct))
        if claimed:
            self._services.claims_changed(peer, now, out)
        current = self._claims_versions.get(peer.node_id)
        return direct and signed and current is not None and current.version == heard.version

    def find_nodes(
        self, capability_filter: CapabilityFilter, now: float, *, scope: ScopeFilter | None = None
    ) -> list[int]:
        """Return the ids of the matching nodes, sorted; this node is among them once it has announced itself."""
        return self._index.query(capability_filter, now=now, scope=scope, same_subnet=self._same_subnet)

    def pin(self, node_id: int, entity_id: bytes) -> bool:
        """Pin a node id to an entity key; return False if it is pinned to another one."""
        pinned = self._pins.get(node_id)
        if pinned is not None and pinned != entity_id:
            return False
        self._pins.put(node_id, entity_id)
        return True

    @property
    def assigns(self) -> bool:
        """Whether rules assign nodes to subnets; without rules all of them are in GLOBAL."""
        return self._assignment is not None

    def assign_by(self, assignment: Assignment | None) -> list[Peer]:
        """Assign peers to subnets by other rules, and return those whose subnet changed; their claims are set already."""
        self._assignment = assignment
        moved = []
        for peer in self._peers:
            # A peer whose announcement has expired shows no tags: it keeps its subnet until it announces itself again.
            if peer.node_id in self._claims_versions:
                subnet = self._subnet_for(peer.claims.capabilities.tags)
                if subnet != peer.claims.subnet:
                    peer.claims = msgspec.structs.replace(peer.claims, subnet=subnet)
                    moved.append(peer)
        return moved

    def known(self, now: float) -> dict[int, CapabilitySet]:
        """Return the capabilities of every node that has announced any."""
        return self._index.known(now)

    def capabilities_of(self, node_id: int) -> CapabilitySet | None:
        """Return what a node last announced, or None."""
        entry = self._index.get(node_id)
        return None if entry is None else entry.capabilities

    def pinned(self, node_id: int) -> bytes | None:
        """Return the entity key that a node id is pinned to, or None."""
        return self._pins.get(node_id)

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Forward what was announced since the peer began its session, which was not proved until now.

        A 0.23 node would have been told at once, and is not told again before the announcements are renewed.
        """
        begun_at = peer.link.used_at  # no packet was verified yet
        for origin in self._recent:
            recent = self._recent.get(origin)
            if recent is not None and recent.time >= begun_at and peer.node_id not in {origin, recent.sender}:
                peer.send_message(Subprotocol.CAPABILITY, recent.message, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Know a node under its new id; its announcement follows."""
        move(self._claims_versions, old, new)
        move_kept(self._rates, old, new)
        self._pins.pop(old)
        self._index.rename(old, new, now)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Drop the claims of a peer that failed or is gone; it must announce a new version (policy.md §5.1)."""
        node_id = down.node_id
        self._index.remove(node_id)
        self._claims_versions.pop(node_id, None)
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.claims = PeerClaims()
        # A 0.23 node forgets the entity of a failed peer (policy.md §5.1), so that another one could take its node id.
        if not self.config.keep_pins:
            self._pins.pop(node_id)

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """Remove what a revoked node announced: it is not found any more, and others are not told of it."""
        if record.what is Revoked.NODE:
            self._index.remove(record.node_id)
            self._recent.pop(record.node_id)

    def next_timer(self) -> float | None:
        """Return the time of the next sweep, or None."""
        return self._sweep_at

    def tick(self, now: float, out: Output) -> None:
        """Remove expired entries of the index and expired capabilities of peers; their entity and subnet stay."""
        if self._sweep_at is None or now < self._sweep_at:
            return
        self._forget_seen(now)
        expired = len(self._index.expire(now))
        for node_id, current in list(self._claims_versions.items()):
            if now > current.expires_at:
                del self._claims_versions[node_id]
                peer = self._peers.get(node_id)
                if peer is not None:
                    peer.claims = msgspec.structs.replace(peer.claims, capabilities=CapabilitySet())
        self._counters.add("expire", "announcement", expired)
        earliest = min((current.expires_at for current in self._claims_versions.values()), default=now + GC_S)
        self._sweep_at = min(earliest + SWEEP_S, now + GC_S) if len(self._index) or len(self._seen) else None

    def _distrust(self, peer: Peer, heard: Announcement, now: float) -> Reason | None:
        """Return the reason to drop an announcement, or None."""
        # By the id, which follows from the key: before anything that costs time.
        if heard.node_id in self._revoked.nodes:
            return Reason.ANNOUNCEMENT_REVOKED
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
        """Return whether the limits admit one more signature check, and count it."""
        # A signature check is the most expensive step, so a peer must not be able to cause any number of them.
        rate = self._rates.get(peer.node_id)
        if rate is None:
            rate = TokenBucket(self.config.checks_per_s, 2 * self.config.checks_per_s)
            self._rates.put(peer.node_id, rate)
        if not rate.take(1, now):
            return False
        if heard.hop_count == 0:
            return self._hosts.take(host_of(peer.link.address), now)
        return self._forwarded_rate.take(1, now)

    def _hear_own(self, peer: Peer, heard: Announcement, now: float, out: Output) -> None:
        """Handle an announcement of this node: peers may still have one from before a restart.

        Copies of the current one come back often, so only a higher version is verified.
        """
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
        """Forward an announcement to all peers except sender, origin, and next hop to the origin (policy.md §8.3)."""
        further = heard.forwarded()
        if further is None:
            return
        try:
            message = encode_announcement(further)
        except LocalProtocolError:
            self._counters.count(Reason.ANNOUNCEMENT_FORWARD_TOO_LARGE)
            return
        self._recent.put(heard.node_id, _Forwarded(now, sender.node_id, message))
        done = {sender.node_id, heard.node_id, self._next_hop(heard.node_id, now)}
        for peer in self._peers:
            if peer.node_id not in done:
                peer.send_message(Subprotocol.CAPABILITY, message, out)

    def _keep(self, heard: Announcement, capabilities: CapabilitySet, via: int | None, now: float) -> bool:
        """Apply an announcement to the index, and return whether it changed the capabilities of the node."""
        before, evicted = self._index.get(heard.node_id), self._index.evicted
        kept = self._index.apply(heard.node_id, capabilities, heard.version, _lifetime(heard), now, via=via)
        self._counters.count(Reason.EVICT_ANNOUNCEMENT, self._index.evicted - evicted)
        if not kept:
            self._drop(Reason.ANNOUNCEMENT_INDEX_FULL if before is None else Reason.ANNOUNCEMENT_STALE)
            return False
        self._sweep_by(now + GC_S)
        return before is None or before.expired(now) or before.capabilities != capabilities

    def _claim(self, peer: Peer, heard: Announcement, capabilities: CapabilitySet, now: float) -> bool:
        """Set the claims of a peer from its newest announcement, and return whether they changed."""
        self.pin(peer.node_id, heard.entity_id)
        current = self._claims_versions.get(peer.node_id)
        # policy.md §8.4: a newer version replaces; after the expiry any version does.
        if current is not None and now <= current.expires_at and heard.version <= current.version:
            return False
        before, peer.claims = peer.claims, PeerClaims(heard.entity_id, capabilities, self._subnet_for(heard.tags))
        expires_at = now + _lifetime(heard)
        self._claims_versions[peer.node_id] = _ClaimsVersion(heard.version, expires_at)
        self._sweep_by(expires_at + SWEEP_S)
        return before != peer.claims

    def _subnet_for(self, tags: Iterable[str]) -> SubnetId:
        # Without a subnet policy no node can be assigned to a subnet: all are in GLOBAL (policy.md §6.2).
        return SubnetId.GLOBAL if self._assignment is None else self._assignment.assign(tags)

    def _same_subnet(self, node_id: int) -> bool:
        """Return whether a node counts as being in our subnet.

        policy.md §8.5: this node always does; a node of unknown subnet does if a subnet policy is installed.
        """
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
    """Return the capabilities to keep of an announcement, without those that a node may not claim itself.

    policy.md §8.3: reserved metadata is removed (step 13), and so are `heat:` tags without a matching `causal:` tag and
    surplus `heat:blob:` tags (step 14).
    """
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
