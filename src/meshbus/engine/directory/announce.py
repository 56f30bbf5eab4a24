"""This node's own announcement (0x0C00): signs its capabilities, sends them to every peer, and renews them in time.

Rules (policy.md §8.4):

* Every announcement has a higher version than all earlier ones, including those from before a restart. Versions are
  unix milliseconds, or the last version plus 1 if the clock did not advance. Milliseconds, because they stay exact in
  tools that read JSON numbers as doubles.
* A change is broadcast at once, but there are never two broadcasts within `min_interval_s`: a change that comes too soon
  is sent at the end of the interval, in its latest form. (A 0.23 node does not send it at all.)
* A peer with a new session, or one that recovered, gets the announcement at once. If it may know the current version, a
  new one is made, because a peer ignores versions that it has seen, even if it has dropped their content.
* The channels that this node publishes on are named in tags, so that gateways can apply rules by prefix to their packets
  (docs/wire/profile.md). A new name is a change like any other; one that is no longer needed goes with the next version.
* The chains that this node holds are named in tags too (engine/directory/chains.py). They come before the channels if
  not everything fits.
* Announcements are not acknowledged and may be lost, so they are repeated a few times on a new session; the receiver
  drops the copies.

Announcements of other nodes are handled in engine/directory/directory.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import NAT_TAG, NatStatus, initial_status
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.settings import NamedChannels
from meshbus.errors import LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry, Visibility
from meshbus.policy.reason import Reason
from meshbus.policy.tag import channel_tag, nameable
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.capability import MAX_HOPS, Announcement, encode_announcement

REPEATS_S = (0.5, 2.0, 5.0)
"""When the announcement is repeated on a new session, in seconds after its start. Our choice."""
MAX_TOLD = 65_536
"""Nodes whose last version sent is kept: as many as the index of announcements holds."""

MAX_VERSION = 0xFFFFFFFFFFFFFFFF
"""The largest u64; a version that cannot be surpassed."""

_MS = 1_000_000

Wall = Callable[[float], int]
"""Returns unix nanoseconds for a monotonic time."""


BOUNDS = (
    Bound(
        name="announced_versions",
        what="nodes whose last version sent is known",
        by=By.MEMBER,
        per_node=MAX_TOLD,
        full="the oldest goes",
        counter=forgotten("announced_versions"),
    ),
)


class Announcer(Service):
    """Sends the capabilities of this node to its peers."""

    def __init__(self, context: Context) -> None:
        self.config = context.settings.announce
        self.current: Announcement | None = None
        """The current announcement; None before the first one."""
        self._identity = context.identity
        self._peers = context.peers
        self._index = context.index
        self._registry = context.registry
        self._wall = context.wall
        self._counters = context.counters
        self._channels: ChannelConfigRegistry | None = None
        self._published: Counter[ChannelName] = Counter()
        """Number of publishers of each channel, in the order in which the channels were opened."""
        self._named: list[ChannelName] = []
        """The channels that the next version names."""
        self._chains: tuple[str, ...] = ()
        """The tags of the chains that the next version names."""
        self._content = CapabilitySet()
        self._nat = initial_status(context.settings.nat)
        self._message = b""
        self._version = 0
        self._broadcast_at: float | None = None
        self._due: float | None = None
        self._deferred = False
        """`_due` is for the current version, which the minimum interval delays, and not for a renewal."""
        self._told: BoundedMap[int, int] = BoundedMap(MAX_TOLD, self._counters.forgetting("announced_versions"))
        """The newest version sent to each node."""
        self._repeats: list[tuple[float, int, int]] = []
        """Heap of repetitions: time, node id, session id."""

    @property
    def capabilities(self) -> CapabilitySet:
        """The announced capabilities, including the tags that the node adds itself."""
        return CapabilitySet() if self.current is None else CapabilitySet(self.current.tags, self.current.metadata)

    def announce(self, capabilities: CapabilitySet, now: float, out: Output) -> int:
        """Announce these capabilities, and return the version.

        Raises LocalProtocolError, and changes nothing, if they do not fit one packet.
        """
        self._issue(capabilities, self._nat, now)
        self._broadcast_or_defer(now, out)
        return self._version

    def set_nat(self, nat: NatStatus, now: float, out: Output) -> None:
        """Set the NAT type and address of this node, and announce them if they changed."""
        if nat != self._nat and self.current is not None:
            self._issue(self._content, nat, now)
            self._broadcast_or_defer(now, out)
        self._nat = nat

    def refresh(self, now: float, out: Output) -> None:
        """Announce again, as after a change of the registry; do nothing before the first announcement."""
        if self.current is not None:
            self.announce(self._content, now, out)

    def open_channel(self, channel: ChannelName, now: float) -> None:
        """Count one more publisher of a channel, and announce the channel if it is new and may be named."""
        self._published[channel] += 1
        if self._published[channel] > 1 or not self._may_name(channel):
            return
        self._name([*self._named, channel], now)
        if channel not in self._named:
            self._counters.count(Reason.CHANNEL_NOT_NAMED)

    def close_channel(self, channel: ChannelName) -> None:
        """Undo one `open_channel`; the next version no longer names the channel."""
        self._published[channel] -= 1
        if self._published[channel] <= 0:
            del self._published[channel]
            if channel in self._named:
                self._named = list(nameable(filter(self._may_name, self._published)))

    def set_chains(self, tags: tuple[str, ...], now: float) -> None:
        """Name these chains instead of the earlier ones, and announce them soon if they changed."""
        if tags != self._chains:
            self._chains = tags
            self._issue_soon(now)

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Use new channel configurations: they say which channels may be named."""
        self._channels = registry
        self._name(filter(self._may_name, self._published), now)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Announce to a peer that had failed: it has dropped our announcement (policy.md §5.1)."""
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

    def became(self, old: int, now: float, out: Output) -> None:
        """Announce this node under its new key, to each peer several times: it may learn of the key a moment later."""
        self._index.remove(old)
        if self.current is not None:
            self._issue(self._content, self._nat, now)
            for peer in self._peers:
                self.peer_up(peer, now, out)

    def surpass(self, version: int, now: float, out: Output) -> None:
        """Announce above a version of this node that peers still hold from before a restart.

        The caller has verified that this node signed it.
        """
        if self._version < version < MAX_VERSION and self.current is not None:
            self._version = version
            self.refresh(now, out)

    def next_timer(self) -> float | None:
        """Return the time of the next repetition or broadcast, or None."""
        repeat = self._repeats[0][0] if self._repeats else None
        return min((time for time in (self._due, repeat) if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send the repetitions and the broadcast that are due."""
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
        """Make and sign the next version; on an error nothing changes."""
        announced = self._enriched(content, nat)
        version = max(self._version + 1, self._wall(now) // _MS)
        held = announced.with_tags(self._chains)
        announcement = self._sign(held.with_tags(map(channel_tag, self._named)), version, nat, now)
        if not _fits(announcement):
            self._counters.count(Reason.CHANNEL_NOT_NAMED, len(self._named))
            announcement = self._sign(held, version, nat, now)
        if self._chains and not _fits(announcement):
            self._counters.count(Reason.CHAIN_NOT_ANNOUNCED, len(self._chains))
            announcement = self._sign(announced, version, nat, now)
        self._message = encode_announcement(announcement)
        self.current, self._version = announcement, version
        self._content, self._nat = content, nat
        named = CapabilitySet(announcement.tags, announcement.metadata)
        self._index.apply(self._identity.node_id, named, version, self.config.ttl_s, now)

    def _sign(self, announced: CapabilitySet, version: int, nat: NatStatus, now: float) -> Announcement:
        return Announcement(
            node_id=self._identity.node_id,
            entity_id=self._identity.entity_id,
            version=version,
            timestamp_ns=self._wall(now),
            ttl_secs=self.config.ttl_s,
            tags=tuple(announced.tags),
            metadata=dict(announced.metadata),
            reflex_addr=None if nat.reflex is None else str(nat.reflex),
        ).sign(self._identity)

    def _enriched(self, content: CapabilitySet, nat: NatStatus) -> CapabilitySet:
        # mesh.md §8.2: a `nat:` tag of the application is replaced by the detected one.
        plain = content.without_tags([tag for tag in content.tags if tag.startswith(NAT_TAG)])
        told = plain.with_tags([NAT_TAG + nat.nat])
        return self._registry.enrich_capabilities(told) if self.config.enrich else told

    def _name(self, channels: Iterable[ChannelName], now: float) -> None:
        """Name the first of these channels, and announce them soon if they changed."""
        before, self._named = self._named, list(nameable(channels))
        if self._named != before:
            self._issue_soon(now)

    def _issue_soon(self, now: float) -> None:
        """Issue a new version with the next `tick`, so that one version has all that changes together."""
        if self.current is None:
            return
        due = now if self._broadcast_at is None else max(now, self._broadcast_at + self.config.min_interval_s)
        self._due, self._deferred = due if self._due is None else min(self._due, due), False

    def _may_name(self, channel: ChannelName) -> bool:
        wanted = self.config.channels
        config = None if self._channels is None else self._channels.get_by_name(channel)
        if wanted is NamedChannels.NONE or config is None:
            return wanted is not NamedChannels.NONE
        if wanted is NamedChannels.ALL:
            return config.visibility is not Visibility.SUBNET_LOCAL
        # docs/wire/profile.md, interest: a channel is not named to a peer that may not see it.
        return config.visibility is Visibility.GLOBAL and not config.restricts_subscribers

    def _broadcast_or_defer(self, now: float, out: Output) -> None:
        opens = now if self._broadcast_at is None else self._broadcast_at + self.config.min_interval_s
        if now >= opens:
            self._broadcast(now, out)
        else:
            self._due, self._deferred = opens, True

    def _broadcast(self, now: float, out: Output) -> None:
        for peer in self._peers:
            self._tell(peer, out)
            self._broadcast_at = now  # inside the loop: a broadcast without peers must not delay the next one
        # Renewed after half of its lifetime, so that one lost renewal does not let it expire.
        self._due, self._deferred = now + max(self.config.ttl_s / 2, self.config.min_interval_s), False

    def _tell(self, peer: Peer, out: Output) -> None:
        peer.send_message(Subprotocol.CAPABILITY, self._message, out)
        self._told.put(peer.node_id, self._version)


def _fits(announcement: Announcement) -> bool:
    """Return whether an announcement fits one packet."""
    try:
        # With a hop count: what the node adds must not keep its capabilities from being forwarded.
        encode_announcement(msgspec.structs.replace(announcement, hop_count=MAX_HOPS))
    except LocalProtocolError:
        return False
    return True
