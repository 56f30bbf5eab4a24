"""Received pingwaves: learns routes to nodes beyond the neighbors, and forwards pingwaves to others (mesh.md §4).

A pingwave is neither encrypted nor signed. So it is accepted only from the address of a neighbor, and the work and
memory that it can cause are limited. The checks, in this order; the first that fails drops it with a counter:

    1  the origin is this node                                OWN
    2  too many hops                                          HOPS
    3  not from a neighbor                                    STRANGER
    4  too many from this neighbor                            RATE
    5  hop 0 and the origin is not the sender, or reverse     FORGED
    6  the origin is new, and the neighbor named too many     NEWCOMERS
    7  older than one that was seen lately                    OLD
    8  no room in the routing table or the graph              FULL

Then the route to the origin is learned, even from a copy: a late copy may have come by a shorter way. A copy is not
forwarded. A new pingwave is forwarded to every neighbor except its sender, its origin, and the next hop to its origin.

Differences from a 0.23 node: copies are forgotten after a while, so that a restarted node is heard again; hop 0 must
come from the origin itself; an older sequence is refused while newer ones arrive.

This node's own pingwaves are sent by engine/session/liveness.py.
"""

from __future__ import annotations

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.routes.proximity import ProximityGraph
from meshbus.engine.routes.routing import LEARNED_METRIC, RoutingTable
from meshbus.engine.session.candidate import same_place
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.header import Buffer
from meshbus.wire.pingwave import Pingwave, forwarded, pack_pingwave, unpack_pingwave

MAX_HOPS = 16
"""Hop count from which on a pingwave is dropped (mesh.md §4)."""
MAX_SEEN = 65_536
"""Pingwaves remembered to detect copies. Our choice."""
MAX_RATED = 4_096
"""Neighbors whose rate is kept. Our choice."""
RATE, BURST = 1_000.0, 4_000.0
"""Pingwaves per second from one neighbor. Our choice: what 5000 nodes send at the default heartbeat of 5 s, which
costs about a fiftieth of a core."""
NEWCOMER_RATE, NEWCOMER_BURST = 20.0, 2_048.0
"""New origins per second from one neighbor. Our choice: entries expire faster than one neighbor can fill the tables."""


BOUNDS = (
    Bound(
        name="pingwave_copies",
        what="pingwaves, to recognize copies",
        by=By.PEER,
        per_node=MAX_SEEN,
        full="the oldest goes",
        counter=forgotten("pingwave_copies"),
    ),
    Bound(
        name="pingwave_neighbors",
        what="neighbors with a rate of pingwaves",
        by=By.MEMBER,
        per_node=MAX_RATED,
        full="the oldest goes",
        counter=forgotten("pingwave_neighbors"),
    ),
)


class Pingwaves:
    """The receiving side of pingwaves."""

    def __init__(self, context: Context, table: RoutingTable, graph: ProximityGraph) -> None:
        self._identity = context.identity
        self._peers = context.peers
        self._table = table
        self._graph = graph
        self._revoked = context.revocations
        self._counters = context.counters
        self._wall = context.wall
        self._seen: BoundedMap[tuple[int, bytes, int], float] = BoundedMap(
            MAX_SEEN, self._counters.forgetting("pingwave_copies")
        )
        self._rates: BoundedMap[int, tuple[TokenBucket, TokenBucket]] = BoundedMap(
            MAX_RATED, self._counters.forgetting("pingwave_neighbors")
        )

    def receive(self, source: Address, datagram: Buffer, now: float, out: Output) -> None:
        """Handle a datagram that is a valid pingwave."""
        wave = unpack_pingwave(datagram)
        sender = self._peers.by_address(source)
        reason = self._distrust(wave, sender, now)
        if reason is not None:
            self._counters.count(reason)
            return
        assert sender is not None
        # mesh.md §4: the route is learned before the check for copies.
        if not self._table.learn(wave.node_id, source, wave.hop_count + LEARNED_METRIC, now):
            self._counters.count(Reason.PINGWAVE_FULL)
            return
        key = (wave.node_id, wave.origin_rest, wave.seq)
        if key in self._seen:
            self._counters.count(Reason.IGNORE_PINGWAVE_COPY)
            return
        self._seen.put(key, now)
        if not self._graph.observe(wave, sender.node_id, source, now, self._wall(now) // 1000):
            self._counters.count(Reason.PINGWAVE_FULL)
            return
        self._forward(wave, sender, now, out)

    def sweep(self, now: float, max_age_s: float) -> None:
        """Remove pingwaves that are older than `max_age_s`."""
        while (oldest := self._seen.oldest()) is not None and now - oldest[1] > max_age_s:
            self._seen.pop(oldest[0])

    def _distrust(self, wave: Pingwave, sender: Peer | None, now: float) -> Reason | None:
        """Return the reason to drop a pingwave, or None."""
        if wave.node_id == self._identity.node_id:
            return Reason.PINGWAVE_OWN
        if wave.hop_count >= MAX_HOPS:
            return Reason.PINGWAVE_HOPS
        if wave.node_id in self._revoked.nodes:
            return Reason.PINGWAVE_REVOKED
        if sender is None:
            return Reason.PINGWAVE_STRANGER
        # After the checks that cost nothing, and only for neighbors: a stranger must not use up a rate.
        every, newcomers = self._rates.get(sender.node_id) or self._rate(sender.node_id)
        if not every.take(1, now):
            return Reason.PINGWAVE_RATE
        # docs/decisions/0013: hop 0 must come from its origin, and a node does not forward its own pingwaves. Node id 0
        # is a sentinel (transport.md §6).
        own = wave.node_id == sender.node_id
        if (wave.hop_count == 0) != own or wave.node_id == 0:
            return Reason.PINGWAVE_FORGED
        known = self._graph.get(wave.node_id)
        if known is None:
            # A neighbor has a session with this node; only other nodes that it names may be invented.
            return None if own or newcomers.take(1, now) else Reason.PINGWAVE_NEWCOMERS
        if wave.seq < known.last_seq and (wave.node_id, wave.origin_rest, wave.seq) not in self._seen:
            # From the origin itself, or after a silence, a lower sequence means a restart that counts from 1 again.
            if not own and now - known.seen_at <= self._table.config.patience_s:
                return Reason.PINGWAVE_OLD
            known.last_seq = wave.seq
        return None

    def _rate(self, node_id: int) -> tuple[TokenBucket, TokenBucket]:
        rates = TokenBucket(RATE, BURST), TokenBucket(NEWCOMER_RATE, NEWCOMER_BURST)
        self._rates.put(node_id, rates)
        return rates

    def _forward(self, wave: Pingwave, sender: Peer, now: float, out: Output) -> None:
        further = forwarded(wave)
        if further is None:
            return
        datagram = pack_pingwave(further)
        # mesh.md §4, step 6: split horizon, never back towards the origin.
        hop = self._table.lookup(wave.node_id, now)
        for peer in self._peers.neighbors():
            home = peer.link.home
            if peer is not sender and peer.node_id != wave.node_id and not same_place(home, hop):
                out.send(home, datagram)
