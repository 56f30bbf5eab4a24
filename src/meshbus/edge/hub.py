"""PubSubHub: which peers are there, what they asked for, and one message to all who asked.

The single owner of a subscription index, of the map from routing id to peer key, and of one bounded queue per live
peer. It knows no socket and no framing: a message is encoded once, by a function it is given, and the same bytes lie
in every queue (edge/queue.py). Whoever has the connections asks who is `ready` and takes the bytes to write.

A connection is a routing id and an *epoch*, a number that grows with every connection of the same id. Late events of
an old connection must not touch a new one:

    peer_up      refused while a peer with this or a later epoch is live (S2); a later epoch starts empty: the
                 subscriptions and the queue of the older connection end (S1)
    everything   with an epoch that is not exactly the live one is ignored, and counted (S3)
    peer_down    ends subscriptions and queue; an id that was generated here is forgotten (S4), one that the peer chose
                 keeps its key for the next time, for the latest so many ids

Keys start at 1 and are never used again. Routing ids may be chosen by an attacker; Python's seeded hash of bytes keeps
the map fair. What a peer may ask for is bounded by `HubLimits`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import count

import msgspec

from meshbus.edge.queue import HIGH_WATER, QUEUE_BYTES, Loss, Parcel, PeerQueue, QueueStats, pack_parcel
from meshbus.policy.fans import Peers
from meshbus.policy.prefixes import SubscriptionIndex

MAX_REMEMBERED = 65_536
"""Routing ids of peers that left, so that they get their key back; then the longest gone is forgotten."""
PARCEL_BYTES = 64 << 10
"""Messages of a batch for the same peers are joined up to this size: about what one write to a socket accepts. A larger
one stays as it is, and is not copied."""

Encode = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Gives the buffers of one message on the wire: one joined buffer, or several where copying a large part would cost."""


class HubLimits(msgspec.Struct, frozen=True):
    """What one peer may hold here."""

    high_water: int = HIGH_WATER
    """Messages that wait for it."""
    queue_bytes: int = QUEUE_BYTES
    """Bytes that wait for it."""
    subscriptions: int = 1_000_000
    prefix_bytes: int = 64 << 20
    """The sum of the lengths of its prefixes."""


class Change(StrEnum):
    """What became of a subscription."""

    FIRST = "first"
    """Added; nobody held the prefix before."""
    ADDED = "added"
    """Added; somebody else holds the prefix too."""
    KNOWN = "known"
    """The peer held it already."""
    REMOVED = "removed"
    """Taken away; somebody else still holds the prefix."""
    LAST = "last"
    """Taken away; now nobody holds the prefix."""
    ABSENT = "absent"
    """The peer did not hold it."""
    STALE = "stale"
    """The epoch is not that of a live peer: ignored."""
    REFUSED = "refused"
    """The peer holds as much as it may."""


class Ignored(StrEnum):
    """Why the hub did not do what it was told; also the label of its counter."""

    UP_NOT_NEWER = "up_not_newer"
    """A peer with this or a later epoch is live."""
    DOWN_STALE = "down_stale"
    SUBSCRIBE_STALE = "subscribe_stale"
    UNSUBSCRIBE_STALE = "unsubscribe_stale"
    TAKE_STALE = "take_stale"
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions"
    TOO_MANY_PREFIX_BYTES = "too_many_prefix_bytes"


class HubStats(msgspec.Struct, frozen=True):
    """What a hub holds, and what became of what it was given."""

    peers: int
    """Live ones."""
    remembered: int
    """Routing ids with a key, live or not."""
    prefixes: int
    subscriptions: int
    published: int
    """Messages."""
    unmatched: int
    """Messages that nobody asked for."""
    matched: int
    """Deliveries to make: `taken`, `pending` and all of `dropped` together."""
    taken: int
    pending: int
    dropped: dict[Loss, int]
    ignored: dict[Ignored, int]


class _Peer:
    """One live connection."""

    __slots__ = ("epoch", "generated", "key", "prefix_bytes", "queue", "routing_id", "subscriptions")

    def __init__(self, routing_id: bytes, key: int, epoch: int, queue: PeerQueue, *, generated: bool) -> None:
        self.routing_id = routing_id
        self.key = key
        self.epoch = epoch
        self.queue = queue
        self.generated = generated
        self.subscriptions = 0
        self.prefix_bytes = 0


class PubSubHub:
    """The peers of one publisher, their subscriptions and their queues."""

    def __init__(
        self,
        encode: Encode,
        *,
        limits: HubLimits | None = None,
        on_change: Callable[[bytes, Change], None] | None = None,
    ) -> None:
        self._encode = encode
        self._limits = limits or HubLimits()
        self._on_change = on_change
        """Told of every subscription that was added, repeated or removed, one prefix at a time."""
        self._index = SubscriptionIndex()
        self._next_key = count(1)
        self._keys: dict[bytes, int] = {}
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        """Ids in `_keys` that are not live, the longest gone first."""
        self._live: dict[int, _Peer] = {}
        self._ready: dict[int, _Peer] = {}
        """Those that got messages since `ready` was asked."""
        self._published = 0
        self._unmatched = 0
        self._ignored: Counter[Ignored] = Counter()
        self._past: Counter[str] = Counter()
        """What became of the messages for peers that left."""

    # ── peers ───────────────────────────────────────────────────────────────────────────────

    def peer_up(self, routing_id: bytes, epoch: int, *, generated: bool = False) -> bool:
        """Add a peer that just connected; False when a peer with this or a later epoch is live.

        `generated` says that the id was made here, for this connection alone.
        """
        old = self._find(routing_id)
        if old is not None:
            if old.epoch >= epoch:
                self._ignored[Ignored.UP_NOT_NEWER] += 1
                return False
            self._end(old)
        key = self._keys.get(routing_id)
        if key is None:
            key = self._keys[routing_id] = next(self._next_key)
        self._gone.pop(routing_id, None)
        limits = self._limits
        queue = PeerQueue(high_water=limits.high_water, max_bytes=limits.queue_bytes)
        self._live[key] = _Peer(routing_id, key, epoch, queue, generated=generated)
        return True

    def peer_down(self, routing_id: bytes, epoch: int) -> bool:
        """Remove a peer whose connection ended; False when that connection is not the live one."""
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.DOWN_STALE] += 1
            return False
        self._end(peer)
        if peer.generated:
            del self._keys[routing_id]
            return True
        self._gone[routing_id] = None
        if len(self._gone) > MAX_REMEMBERED:
            forgotten, _ = self._gone.popitem(last=False)
            del self._keys[forgotten]
        return True

    def key_of(self, routing_id: bytes) -> int | None:
        """Give the key of a routing id that is live or remembered."""
        return self._keys.get(routing_id)

    def epoch_of(self, routing_id: bytes) -> int | None:
        """Give the epoch of a live peer."""
        peer = self._find(routing_id)
        return None if peer is None else peer.epoch

    # ── subscriptions ───────────────────────────────────────────────────────────────────────

    def subscribe(self, routing_id: bytes, epoch: int, prefix: bytes) -> Change:
        """Add a prefix to what a peer gets."""
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.SUBSCRIBE_STALE] += 1
            return Change.STALE
        refused = self._refusal(peer, prefix)
        if refused is not None:
            self._ignored[refused] += 1
            return Change.REFUSED
        held = prefix in self._index
        if not self._index.subscribe(peer.key, prefix):
            return self._tell(prefix, Change.KNOWN)
        peer.subscriptions += 1
        peer.prefix_bytes += len(prefix)
        return self._tell(prefix, Change.ADDED if held else Change.FIRST)

    def unsubscribe(self, routing_id: bytes, epoch: int, prefix: bytes) -> Change:
        """Take a prefix from what a peer gets."""
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.UNSUBSCRIBE_STALE] += 1
            return Change.STALE
        if not self._index.unsubscribe(peer.key, prefix):
            return Change.ABSENT
        peer.subscriptions -= 1
        peer.prefix_bytes -= len(prefix)
        return self._tell(prefix, self._what_is_left(prefix))

    def prefixes(self) -> list[bytes]:
        """List the prefixes that somebody holds, in byte order."""
        return self._index.prefixes()

    def count_subscribers(self, topic: bytes) -> int:
        """Count the peers that would get a message of this topic."""
        return len(self._index.fan(topic))

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def count_unmatched(self) -> None:
        """Count a message that nobody asked for, as `count_subscribers` said: it need not be handed over."""
        self._published += 1
        self._unmatched += 1

    def publish(self, parts: Sequence[bytes]) -> int:  # hot: bench_edge
        """Queue one message for every peer that asked for its topic, the first part; gives for how many.

        A message without parts is nothing. It is encoded only when somebody gets it.
        """
        if not parts:
            return 0
        self._published += 1
        fan = self._index.fan(parts[0])
        if not fan:
            self._unmatched += 1
            return 0
        return self._queue(fan, pack_parcel([self._encode(parts)]))

    def publish_batch(self, messages: Sequence[Sequence[bytes]]) -> int:  # hot: bench_edge
        """Queue many messages, in order, as `publish` would one by one; gives how many deliveries were queued.

        Messages in a row that are for the same peers are joined, and cost each of these peers one step.
        """
        queued = size = 0
        run: list[Sequence[bytes]] = []
        run_fan: Peers = ()
        topic: bytes | None = None
        fan: Peers = ()
        for parts in messages:
            if not parts:
                continue
            self._published += 1
            if parts[0] != topic:
                topic = parts[0]
                fan = self._index.fan(topic)
            if not fan:
                self._unmatched += 1
                continue
            buffers = self._encode(parts)
            size += sum(map(len, buffers))
            if run and (fan is not run_fan or size > PARCEL_BYTES):
                queued += self._queue_run(run_fan, run)
                run, size = [], sum(map(len, buffers))
            run_fan = fan
            run.append(buffers)
        return queued + (self._queue_run(run_fan, run) if run else 0)

    def ready(self) -> list[tuple[bytes, int]]:
        """List the peers, by id and epoch, that got messages since this was asked last."""
        found = [(peer.routing_id, peer.epoch) for peer in self._ready.values()]
        self._ready.clear()
        return found

    def take(self, routing_id: bytes, epoch: int, max_bytes: int) -> list[bytes]:
        """Take buffers to write to a peer: about `max_bytes`, whole messages, at least one when any waits."""
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.TAKE_STALE] += 1
            return []
        return peer.queue.take(max_bytes)

    # ── figures ─────────────────────────────────────────────────────────────────────────────

    def peer_stats(self, routing_id: bytes) -> QueueStats | None:
        """Count what became of the messages for a live peer."""
        peer = self._find(routing_id)
        return None if peer is None else peer.queue.stats()

    def stats(self) -> HubStats:
        """Count what the hub holds and what became of everything it was given."""
        total = self._past.copy()
        for peer in self._live.values():
            _add(total, peer.queue.stats())
        return HubStats(
            peers=len(self._live),
            remembered=len(self._keys),
            prefixes=len(self._index),
            subscriptions=self._index.subscriptions,
            published=self._published,
            unmatched=self._unmatched,
            matched=total["matched"],
            taken=total["taken"],
            pending=total["pending"],
            dropped={loss: total[loss] for loss in Loss},
            ignored={why: self._ignored[why] for why in Ignored},
        )

    def _find(self, routing_id: bytes, epoch: int | None = None) -> _Peer | None:
        """Find a live peer, with this epoch where one is given."""
        key = self._keys.get(routing_id)
        peer = None if key is None else self._live.get(key)
        return None if peer is None or (epoch is not None and peer.epoch != epoch) else peer

    def _refusal(self, peer: _Peer, prefix: bytes) -> Ignored | None:
        if peer.subscriptions >= self._limits.subscriptions:
            return Ignored.TOO_MANY_SUBSCRIPTIONS
        if peer.prefix_bytes + len(prefix) > self._limits.prefix_bytes:
            return Ignored.TOO_MANY_PREFIX_BYTES
        return None

    def _queue(self, fan: Peers, parcel: Parcel) -> int:
        """Offer one message to peers; gives how many took it."""
        taken = 0
        for key in fan:
            peer = self._live[key]  # only live peers hold prefixes
            if peer.queue.offer(parcel):
                taken += 1
                self._ready[key] = peer
        return taken

    def _queue_run(self, fan: Peers, messages: list[Sequence[bytes]]) -> int:
        """Offer messages to peers: joined to those that have room for all of them, else one by one."""
        joined = pack_parcel(messages)
        roomy = tuple(key for key in fan if self._live[key].queue.obstacle(joined) is None)
        taken = self._queue(roomy, joined) * len(messages)
        if len(roomy) < len(fan):
            narrow = tuple(key for key in fan if key not in set(roomy))
            taken += sum([self._queue(narrow, pack_parcel([buffers])) for buffers in messages])
        return taken

    def _end(self, peer: _Peer) -> None:
        """End the subscriptions and the queue of a live peer."""
        del self._live[peer.key]
        self._ready.pop(peer.key, None)
        prefixes = self._index.remove_peer(peer.key)
        peer.queue.close()
        _add(self._past, peer.queue.stats())
        for prefix in prefixes if self._on_change else ():
            self._tell(prefix, self._what_is_left(prefix))

    def _what_is_left(self, prefix: bytes) -> Change:
        return Change.REMOVED if prefix in self._index else Change.LAST

    def _tell(self, prefix: bytes, change: Change) -> Change:
        if self._on_change is not None:
            self._on_change(prefix, change)
        return change


def _add(total: Counter[str], stats: QueueStats) -> None:
    """Add what became of the messages of one queue to a total."""
    total["matched"] += stats.matched
    total["taken"] += stats.taken
    total["pending"] += stats.pending
    total.update(stats.dropped)
