"""Fan-out of messages to connected peers by their subscriptions.

PubSubHub owns the subscription index, the map from routing id to peer key, and one bounded queue per connected peer. It
does no I/O and knows no framing: the `encode` function passed to it encodes each message once, and all queues share the
bytes (edge/queue.py). The owner of the connections calls `ready` to learn which peers have messages, and `take` for the
bytes to write.

A connection is identified by a routing id and an *epoch*, a number that grows with every connection of the same id. Late
events of an old connection must not affect a new one (pubsub.md §2.1, rules S1 to S4):

    peer_up      is refused while a peer with the same or a later epoch is connected (S2); a later epoch starts with no
                 subscriptions and an empty queue (S1)
    other calls  with an epoch that is not the current one are ignored and counted (S3)
    peer_down    removes subscriptions and queue; a routing id generated here is removed too (S4), one chosen by the
                 peer keeps its key for its next connection, up to MAX_REMEMBERED ids

Keys start at 1 and are never reused. A peer may choose its routing id; Python's seeded hash of bytes protects the map
from chosen collisions. `HubLimits` bounds what one peer can hold.

A subscriber may change thousands of subscriptions between two messages. `change` only collects them; the index gets all of
them at once when it is next needed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import count

import msgspec

from meshbus.edge.queue import HIGH_WATER, QUEUE_BYTES, Loss, Parcel, PeerQueue, QueueStats, pack_parcel
from meshbus.policy.bound import Bound, By
from meshbus.policy.fans import Peers
from meshbus.policy.prefixes import SubscriptionIndex

MAX_REMEMBERED = 65_536
"""Routing ids of disconnected peers that keep their key; above this the one that left first is removed. Short ids take
about 200 bytes each, 13 MB in all."""
MAX_COLLECTED = 16_384
MAX_COLLECTED_BYTES = 2 << 20
"""Changes of subscriptions, and bytes of their prefixes, that are collected before the index gets them. Our choice: with
short prefixes they take about 3 MB."""
PARCEL_BYTES = 64 << 10
"""Consecutive messages for the same peers are joined up to this size, about what one write to a socket accepts. A larger
message is not joined and not copied."""

Encode = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Returns the wire buffers of one message: one joined buffer, or several if copying a large part would be slow."""


BOUNDS = (
    Bound(
        name="zmq_queue",
        what="bytes of messages for a ZeroMQ subscriber",
        by=By.OUTSIDER,
        per_node=None,
        per={"connection": QUEUE_BYTES, "connection, in messages": HIGH_WATER},
        unit="bytes",
        full="the new message is dropped for this subscriber",
        counter="dropped of its queue",
    ),
    Bound(
        name="zmq_changes",
        what="changes of subscriptions that the index of a ZeroMQ publisher does not have yet",
        by=By.OUTSIDER,
        per_node=None,
        per={"publisher": MAX_COLLECTED, "publisher, in bytes of prefixes": MAX_COLLECTED_BYTES},
        full="the index gets them",
        counter="none: nothing is lost",
    ),
    Bound(
        name="zmq_ids",
        what="routing ids of ZeroMQ peers that left",
        by=By.OUTSIDER,
        per_node=MAX_REMEMBERED,
        full="the oldest goes",
        counter="none: the id gets a new key",
    ),
)


class HubLimits(msgspec.Struct, frozen=True):
    """Limits for one peer."""

    high_water: int = HIGH_WATER
    """Messages in its queue."""
    queue_bytes: int = QUEUE_BYTES
    """Bytes in its queue."""
    subscriptions: int = 1_000_000
    prefix_bytes: int = 64 << 20
    """Total length of its prefixes."""


class Change(StrEnum):
    """Result of a change of subscriptions."""

    FIRST = "first"
    """Added; it is the first subscription to the prefix."""
    ADDED = "added"
    """Added; other peers subscribe to the prefix too."""
    KNOWN = "known"
    """The peer already subscribes to the prefix."""
    REMOVED = "removed"
    """Removed; other peers still subscribe to the prefix."""
    LAST = "last"
    """Removed; it was the last subscription to the prefix."""
    ABSENT = "absent"
    """The peer does not subscribe to the prefix."""
    STALE = "stale"
    """Ignored: the epoch is not that of a connected peer."""
    REFUSED = "refused"
    """Refused: the peer has reached a limit."""


class Ignored(StrEnum):
    """Why the hub ignored a call; also the label of the counter."""

    UP_NOT_NEWER = "up_not_newer"
    """A peer with the same or a later epoch is connected."""
    DOWN_STALE = "down_stale"
    SUBSCRIBE_STALE = "subscribe_stale"
    UNSUBSCRIBE_STALE = "unsubscribe_stale"
    TAKE_STALE = "take_stale"
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions"
    TOO_MANY_PREFIX_BYTES = "too_many_prefix_bytes"


class HubStats(msgspec.Struct, frozen=True):
    """Sizes and message counts of a hub."""

    peers: int
    """Connected peers."""
    remembered: int
    """Routing ids with a key, connected or not."""
    prefixes: int
    subscriptions: int
    published: int
    """Messages published."""
    unmatched: int
    """Messages without a subscriber."""
    matched: int
    """Deliveries: the sum of `taken`, `pending` and all `dropped`."""
    taken: int
    pending: int
    dropped: dict[Loss, int]
    ignored: dict[Ignored, int]


class _Peer:
    """One connected peer."""

    __slots__ = ("collected", "epoch", "generated", "key", "prefix_bytes", "queue", "routing_id", "subscriptions")

    def __init__(self, routing_id: bytes, key: int, epoch: int, queue: PeerQueue, *, generated: bool) -> None:
        self.routing_id = routing_id
        self.key = key
        self.epoch = epoch
        self.queue = queue
        self.generated = generated
        self.subscriptions = 0
        self.prefix_bytes = 0
        self.collected: dict[bytes, bool] = {}
        """Prefixes that it subscribed (True) or cancelled, and that the index does not have yet."""


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
        self.on_change = on_change
        """Called for every change of a single subscription, with its prefix."""
        self._index = SubscriptionIndex()
        self._changed: dict[int, _Peer] = {}
        """Peers with collected changes, by key."""
        self._collected = self._collected_bytes = 0
        """Collected changes of all peers, and bytes of their prefixes; repeated ones count each time."""
        # pubsub.md §2: keys start at 1 and 0 is reserved.
        self._next_key = count(1)
        self._keys: dict[bytes, int] = {}
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        """Ids in `_keys` that are not connected, the one that left first at the front."""
        self._live: dict[int, _Peer] = {}
        self._ready: dict[int, _Peer] = {}
        """Peers whose queue got messages since the last call of `ready`."""
        self._published = 0
        self._unmatched = 0
        self._ignored: Counter[Ignored] = Counter()
        self._past: Counter[str] = Counter()
        """Message counts of peers that disconnected."""

    # ── peers ───────────────────────────────────────────────────────────────────────────────

    def peer_up(self, routing_id: bytes, epoch: int, *, generated: bool = False) -> bool:
        """Add a peer that connected; return False if a peer with the same or a later epoch is connected.

        `generated` means that the routing id was made here and only for this connection.
        """
        old = self._find(routing_id)
        if old is not None:
            # pubsub.md §2.1, S2: a late event of an old connection must not replace a newer one.
            if old.epoch >= epoch:
                self._ignored[Ignored.UP_NOT_NEWER] += 1
                return False
            self._end(old)  # rule S1: its subscriptions and its queue must not pass to the new connection
        key = self._keys.get(routing_id)
        if key is None:
            key = self._keys[routing_id] = next(self._next_key)
        self._gone.pop(routing_id, None)
        limits = self._limits
        queue = PeerQueue(high_water=limits.high_water, max_bytes=limits.queue_bytes)
        self._live[key] = _Peer(routing_id, key, epoch, queue, generated=generated)
        return True

    def peer_down(self, routing_id: bytes, epoch: int) -> bool:
        """Remove a peer that disconnected; return False if the epoch is not the current one."""
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.DOWN_STALE] += 1
            return False
        self._end(peer)
        if peer.generated:  # rule S4: this id never comes back
            del self._keys[routing_id]
            return True
        self._gone[routing_id] = None
        if len(self._gone) > MAX_REMEMBERED:
            # pubsub.md §2.1, S4: the map must not grow without bound.
            forgotten, _ = self._gone.popitem(last=False)
            del self._keys[forgotten]
        return True

    def key_of(self, routing_id: bytes) -> int | None:
        """Return the key of a routing id that is connected or remembered, or None."""
        return self._keys.get(routing_id)

    def epoch_of(self, routing_id: bytes) -> int | None:
        """Return the epoch of a connected peer, or None."""
        peer = self._find(routing_id)
        return None if peer is None else peer.epoch

    # ── subscriptions ───────────────────────────────────────────────────────────────────────

    def change(self, routing_id: bytes, epoch: int, wanted: dict[bytes, bool]) -> bool:  # hot: bench_edge
        """Subscribe a peer to the prefixes with True, and unsubscribe it from those with False.

        Return False if a limit of the peer refuses one; then some of the changes are made, and the others are not. What
        is subscribed and unsubscribed between two messages leaves no trace, so `on_change` is not called.
        """
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.SUBSCRIBE_STALE] += 1
            return True
        nbytes = sum(map(len, wanted))
        if self._is_too_much(peer, len(wanted), nbytes):
            self._update()
            if self._is_too_much(peer, len(wanted), nbytes):
                return self._change_singly(peer, wanted)
        self._collected += len(wanted)
        self._collected_bytes += nbytes
        peer.collected.update(wanted)
        self._changed[peer.key] = peer
        return True

    def subscribe(self, routing_id: bytes, epoch: int, prefix: bytes) -> Change:
        """Subscribe a peer to a prefix."""
        self._update()
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.SUBSCRIBE_STALE] += 1
            return Change.STALE
        change = self._subscribe(peer, prefix)
        return change if change is Change.REFUSED else self._report(prefix, change)

    def unsubscribe(self, routing_id: bytes, epoch: int, prefix: bytes) -> Change:
        """Unsubscribe a peer from a prefix."""
        self._update()
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.UNSUBSCRIBE_STALE] += 1
            return Change.STALE
        if not self._unsubscribe(peer, prefix):
            return Change.ABSENT
        return self._report(prefix, self._removal(prefix))

    def prefixes(self) -> list[bytes]:
        """Return the subscribed prefixes in byte order."""
        self._update()
        return self._index.prefixes()

    def count_subscribers(self, topic: bytes) -> int:
        """Return the number of peers whose subscriptions match a topic."""
        if self._changed:
            self._update()
        return len(self._index.fan(topic))

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def count_unmatched(self) -> None:
        """Count a published message without subscribers; call it if `count_subscribers` returned 0."""
        self._published += 1
        self._unmatched += 1

    def publish(self, parts: Sequence[bytes]) -> int:  # hot: bench_edge
        """Queue one message for every peer that subscribes to its topic, the first part; return their number.

        A message without parts is ignored. A message without subscribers is not encoded.
        """
        if not parts:
            return 0
        self._update()
        self._published += 1
        fan = self._index.fan(parts[0])
        if not fan:
            self._unmatched += 1
            return 0
        # Encoded once; all queues share the bytes (pubsub.md §2).
        return self._queue(fan, pack_parcel([self._encode(parts)]))

    def publish_batch(self, messages: Sequence[Sequence[bytes]]) -> int:  # hot: bench_edge
        """Queue many messages in order, like `publish` for each; return the number of deliveries queued.

        Consecutive messages for the same peers are joined into one parcel, which costs each peer one step.
        """
        self._update()
        queued = size = 0
        run: list[Sequence[bytes]] = []
        run_fan: Peers = ()
        topic: bytes | None = None
        fan: Peers = ()
        for parts in messages:
            if not parts:
                continue
            self._published += 1
            # Consecutive messages often have the same topic; the index then need not be searched again.
            if parts[0] != topic:
                topic = parts[0]
                fan = self._index.fan(topic)
            if not fan:
                self._unmatched += 1
                continue
            buffers = self._encode(parts)
            size += sum(map(len, buffers))
            # Compare by identity: the index caches fans, so equal ones are usually the same object. If they are not,
            # the only cost is one more parcel.
            if run and (fan is not run_fan or size > PARCEL_BYTES):
                queued += self._queue_run(run_fan, run)
                run, size = [], sum(map(len, buffers))
            run_fan = fan
            run.append(buffers)
        return queued + (self._queue_run(run_fan, run) if run else 0)

    def ready(self) -> list[tuple[bytes, int]]:
        """Return routing id and epoch of the peers whose queue got messages since the last call."""
        found = [(peer.routing_id, peer.epoch) for peer in self._ready.values()]
        self._ready.clear()
        return found

    def take(self, routing_id: bytes, epoch: int, max_bytes: int) -> list[bytes]:
        """Remove and return buffers to write to a peer: whole messages, about `max_bytes`, at least one if any waits."""
        peer = self._find(routing_id, epoch)
        if peer is None:
            self._ignored[Ignored.TAKE_STALE] += 1
            return []
        return peer.queue.take(max_bytes)

    # ── statistics ──────────────────────────────────────────────────────────────────────────

    def peer_stats(self, routing_id: bytes) -> QueueStats | None:
        """Return the message counts of a connected peer, or None."""
        peer = self._find(routing_id)
        return None if peer is None else peer.queue.stats()

    def stats(self) -> HubStats:
        """Return sizes and message counts, including those of disconnected peers."""
        self._update()
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
        """Return the connected peer with this id, and with this epoch if one is given, or None."""
        key = self._keys.get(routing_id)
        peer = None if key is None else self._live.get(key)
        return None if peer is None or (epoch is not None and peer.epoch != epoch) else peer

    def _update(self) -> None:
        """Bring the index up to date with the collected changes."""
        if not self._changed:
            return
        for peer in self._changed.values():
            added, removed = self._index.change(peer.key, peer.collected)
            peer.subscriptions += len(added) - len(removed)
            peer.prefix_bytes += sum(map(len, added)) - sum(map(len, removed))
            peer.collected = {}
        self._changed.clear()
        self._collected = self._collected_bytes = 0

    def _is_too_much(self, peer: _Peer, changes: int, nbytes: int) -> bool:
        """Return whether more changes of a peer cannot be collected, or may exceed a limit of the peer."""
        changes, nbytes = changes + self._collected, nbytes + self._collected_bytes
        limits = self._limits
        return (
            changes > min(MAX_COLLECTED, limits.subscriptions - peer.subscriptions)
            or nbytes > min(MAX_COLLECTED_BYTES, limits.prefix_bytes - peer.prefix_bytes)
        )  # fmt: skip

    def _change_singly(self, peer: _Peer, wanted: dict[bytes, bool]) -> bool:
        """Make changes one by one, up to the first that a limit refuses; return False if one was refused."""
        for prefix, want in wanted.items():
            if not want:
                self._unsubscribe(peer, prefix)
            elif self._subscribe(peer, prefix) is Change.REFUSED:
                return False
        return True

    def _subscribe(self, peer: _Peer, prefix: bytes) -> Change:
        # Also for a prefix that the peer has already: a peer at its limit gets the same answer every time.
        refused = self._refusal(peer, prefix)
        if refused is not None:
            self._ignored[refused] += 1
            return Change.REFUSED
        held = prefix in self._index
        if not self._index.subscribe(peer.key, prefix):
            return Change.KNOWN
        peer.subscriptions += 1
        peer.prefix_bytes += len(prefix)
        return Change.ADDED if held else Change.FIRST

    def _unsubscribe(self, peer: _Peer, prefix: bytes) -> bool:
        removed = self._index.unsubscribe(peer.key, prefix)
        if removed:
            peer.subscriptions -= 1
            peer.prefix_bytes -= len(prefix)
        return removed

    def _refusal(self, peer: _Peer, prefix: bytes) -> Ignored | None:
        if peer.subscriptions >= self._limits.subscriptions:
            return Ignored.TOO_MANY_SUBSCRIPTIONS
        if peer.prefix_bytes + len(prefix) > self._limits.prefix_bytes:
            return Ignored.TOO_MANY_PREFIX_BYTES
        return None

    def _queue(self, fan: Peers, parcel: Parcel) -> int:
        """Offer a parcel to peers; return how many queues accepted it."""
        taken = 0
        for key in fan:
            peer = self._live[key]  # only connected peers have subscriptions
            if peer.queue.offer(parcel):
                taken += 1
                self._ready[key] = peer
        return taken

    def _queue_run(self, fan: Peers, messages: list[Sequence[bytes]]) -> int:
        """Offer messages to peers: joined if the queue has room for all of them, else one by one."""
        joined = pack_parcel(messages)
        roomy = tuple(key for key in fan if self._live[key].queue.obstacle(joined) is None)
        taken = self._queue(roomy, joined) * len(messages)
        # A queue without room for all takes as many messages as fit, in order, like a sequence of `publish` calls.
        if len(roomy) < len(fan):
            narrow = tuple(key for key in fan if key not in set(roomy))
            taken += sum([self._queue(narrow, pack_parcel([buffers])) for buffers in messages])
        return taken

    def _end(self, peer: _Peer) -> None:
        """Remove the subscriptions and the queue of a connected peer."""
        del self._live[peer.key]
        self._ready.pop(peer.key, None)
        self._changed.pop(peer.key, None)  # its collected changes need not be made any more
        prefixes = self._index.remove_peer(peer.key)
        peer.queue.close()
        _add(self._past, peer.queue.stats())
        for prefix in prefixes if self.on_change else ():
            self._report(prefix, self._removal(prefix))

    def _removal(self, prefix: bytes) -> Change:
        return Change.REMOVED if prefix in self._index else Change.LAST

    def _report(self, prefix: bytes, change: Change) -> Change:
        if self.on_change is not None:
            self.on_change(prefix, change)
        return change


def _add(total: Counter[str], stats: QueueStats) -> None:
    """Add the counts of one queue to a total."""
    total["matched"] += stats.matched
    total["taken"] += stats.taken
    total["pending"] += stats.pending
    total.update(stats.dropped)
