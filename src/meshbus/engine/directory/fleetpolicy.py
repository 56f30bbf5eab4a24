"""Distribution of a signed policy (0x4D0B): every node tells its neighbors which one it holds, and fetches a newer one.

    HAVE of a neighbor ──► newer, of a configured issuer, signed? ──► FETCH ──► CHUNKs ──► PolicyArrived
                                └── no ──► counted with its reason, and nothing is fetched

A policy reaches every node that is connected by neighbors with the same issuer, over any number of hops: a node that holds a
newer one says so at once to all of them. HAVEs are repeated, so one that was lost, or sent while a node was away, is made up
for. One policy is fetched at a time; a neighbor that stops answering, or sends other bytes than the issuer signed, is left
out for a while, and the next one that has it is asked.

The engine does not read policies. The node stores and applies what arrives (node/policies/), and calls `hold`; from then on
this node offers it too, even if it could not apply it itself: others may be newer and can. A node without configured issuers
does not have this service (EngineSettings.carries).
"""

from __future__ import annotations

from math import inf

import msgspec

from meshbus.engine.base.notices import PeerFailed, PeerGone, PolicyArrived
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.streams import Streams
from meshbus.errors import Backpressure, RemoteProtocolError
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.fleetpolicy import (
    CHUNK_BYTES,
    MAX_POLICY,
    Chunk,
    Fetch,
    FleetPolicyMessage,
    Have,
    PolicyStatement,
    decode_fleet_policy,
    encode_fleet_policy,
)

BURST_CHUNKS = 16
"""Chunks that answer one FETCH. Our choice: with 16 KiB for each round trip, the largest policy takes 16 of them."""
REPEAT_S = 60.0
"""Interval between two HAVEs to all neighbors: some 150 bytes a minute for each."""
STALL_S = 10.0
"""How long a neighbor may take for the next chunk. Our choice: several retransmissions on a slow path."""
BAR_S = 60.0
"""How long a neighbor is not asked again after it stalled or sent wrong bytes."""
VERIFY_US = 250.0
"""What the check of a signature costs, beyond reading the message."""
SERVE_US = 400.0
"""What sending the chunks of one FETCH costs."""

BOUNDS = (
    Bound(
        name="policy_documents",
        what="signed policies: the one that a node holds, and the one that it fetches",
        by=By.PEER,
        per_node=2 * MAX_POLICY,
        unit="bytes",
        full="a larger one is not fetched",
        counter=Reason.POLICY_TOO_LARGE,
    ),
)


class _Fetching(msgspec.Struct):
    """A policy that is on its way."""

    node_id: int
    statement: PolicyStatement
    data: bytearray
    asked: int
    """End of what was asked for."""
    deadline: float


class FleetPolicy(Service):
    """The signed policy of the fleet at one node."""

    def __init__(self, context: Context) -> None:
        self._issuers = frozenset(context.settings.policy_issuers)
        self._peers = context.peers
        self._counters = context.counters
        self._streams = context.services[Streams]
        self._held: tuple[PolicyStatement, bytes] | None = None
        self._arrived: PolicyStatement | None = None
        """What was handed to the node, until it holds it."""
        self._offers: dict[int, PolicyStatement] = {}
        """Genuine newer policies, by the neighbor that has them."""
        self._barred: dict[int, float] = {}
        """Until when a neighbor is not asked."""
        self._fetching: _Fetching | None = None
        self._repeat_at = context.started_at + REPEAT_S

    @property
    def version(self) -> int:
        """The version of the policy that this node holds or is about to; 0 before the first one."""
        held = 0 if self._held is None else self._held[0].version
        return held if self._arrived is None else max(held, self._arrived.version)

    def hold(self, statement: PolicyStatement, policy: bytes, now: float, out: Output) -> None:
        """Offer a policy to the neighbors. The caller has verified it, or it arrived here."""
        self._held, self._arrived = (statement, policy), None
        self._offers = {node: offer for node, offer in self._offers.items() if offer.version > statement.version}
        if self._fetching is not None and self._fetching.statement.version <= statement.version:
            self._fetching = None
        for peer in self._peers:
            self._offer(peer, now, out)
        self._pursue(now, out)

    def forget_arrived(self) -> None:
        """Fetch again what arrived when a neighbor offers it next: the node could not store it."""
        self._arrived = None

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Offer what is held here to a neighbor that can distribute policies."""
        self._offer(peer, now, out)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Offer what is held here to a neighbor that was away: it may have missed a change."""
        self._offer(peer, now, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Continue to fetch from a neighbor that has another id."""
        move(self._offers, old, new)
        move(self._barred, old, new)
        if self._fetching is not None and self._fetching.node_id == old:
            self._fetching.node_id = new

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Ask another neighbor for what was fetched from this one."""
        self._offers.pop(down.node_id, None)
        if isinstance(down, PeerGone):
            self._barred.pop(down.node_id, None)
        if self._fetching is not None and self._fetching.node_id == down.node_id:
            self._fetching = None
            self._pursue(now, out)

    def next_timer(self) -> float | None:
        """Return when the next HAVE is due, or a neighbor has not answered for too long."""
        stall = inf if self._fetching is None else self._fetching.deadline
        repeat = inf if self._held is None else self._repeat_at
        earliest = min(stall, repeat)
        return None if earliest == inf else earliest

    def tick(self, now: float, out: Output) -> None:
        """Repeat HAVEs, and leave out a neighbor that does not answer."""
        fetching = self._fetching
        if fetching is not None and now >= fetching.deadline:
            self._counters.count(Reason.POLICY_STALLED)
            self._give_up(fetching, now, out)
        if now >= self._repeat_at:
            self._repeat_at = now + REPEAT_S
            self._barred = {node: until for node, until in self._barred.items() if until > now}
            for peer in self._peers:
                self._offer(peer, now, out)
            self._pursue(now, out)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message of a neighbor."""
        try:
            decoded = decode_fleet_policy(message)
        except RemoteProtocolError:
            self._counters.count(Reason.POLICY_MALFORMED)
            return
        match decoded:
            case Have(statement=statement):
                self._on_have(peer, statement, now, out)
            case Fetch(version=version, offset=offset):
                self._on_fetch(peer, version, offset, now, out)
            case Chunk():
                self._on_chunk(peer, decoded, now, out)

    def _on_have(self, peer: Peer, statement: PolicyStatement, now: float, out: Output) -> None:
        if self._offers.get(peer.node_id) == statement:
            return  # repeated, and verified before
        refusal = self._refusal(peer, statement, now)
        if refusal is not None:
            self._counters.count(refusal)
            if refusal is Reason.POLICY_OLD:
                self._offer(peer, now, out)  # it does not know ours yet
        elif statement.version > self.version:
            self._offers[peer.node_id] = statement
            self._pursue(now, out)

    def _refusal(self, peer: Peer, statement: PolicyStatement, now: float) -> Reason | None:
        """Return why nothing is done about a policy that a neighbor offers; None if it is newer, or the one held here."""
        if statement.version < self.version:
            return Reason.POLICY_OLD
        if self._held is not None and statement == self._held[0]:
            return None
        if statement.size > MAX_POLICY:
            return Reason.POLICY_TOO_LARGE
        if statement.issuer not in self._issuers:
            return Reason.POLICY_ISSUER
        # The signature comes last: it is what costs time.
        if not peer.work.afford(VERIFY_US, now):
            return Reason.PEER_SHARE
        if not statement.verify():
            return Reason.POLICY_SIGNATURE
        held = None if self._held is None else self._held[0]
        other = held is not None and held.version == statement.version and held.digest != statement.digest
        return Reason.POLICY_CONFLICT if other else None

    def _on_fetch(self, peer: Peer, version: int, offset: int, now: float, out: Output) -> None:
        if self._held is None or self._held[0].version != version or offset >= len(self._held[1]):
            self._counters.count(Reason.POLICY_UNEXPECTED)
            return
        if not peer.work.afford(SERVE_US, now):
            self._counters.count(Reason.PEER_SHARE)
            return
        policy = self._held[1]
        for begin in range(offset, min(offset + BURST_CHUNKS * CHUNK_BYTES, len(policy)), CHUNK_BYTES):
            if not self._send(peer, Chunk(version, begin, policy[begin : begin + CHUNK_BYTES]), now, out):
                return

    def _on_chunk(self, peer: Peer, chunk: Chunk, now: float, out: Output) -> None:
        fetching = self._fetching
        if (
            fetching is None
            or (fetching.node_id, fetching.statement.version) != (peer.node_id, chunk.version)
            or chunk.offset != len(fetching.data)
            or chunk.offset + len(chunk.data) > fetching.statement.size
        ):
            self._counters.count(Reason.POLICY_UNEXPECTED)
            return
        fetching.data += chunk.data
        fetching.deadline = now + STALL_S
        if len(fetching.data) < fetching.statement.size:
            if len(fetching.data) >= fetching.asked:
                self._ask(peer, fetching, now, out)
            return
        policy = bytes(fetching.data)
        if not fetching.statement.describes(policy):
            self._counters.count(Reason.POLICY_CONTENT)
            self._give_up(fetching, now, out)
            return
        self._fetching, self._arrived = None, fetching.statement
        self._offers.clear()
        out.control.append(PolicyArrived(peer.node_id, fetching.statement, policy))

    def _pursue(self, now: float, out: Output) -> None:
        """Fetch the newest policy that a neighbor offers, unless a fetch of it is under way."""
        offers = sorted(
            (-offer.version, node_id)
            for node_id, offer in self._offers.items()
            if offer.version > self.version and self._barred.get(node_id, 0.0) <= now
        )
        if not offers:
            return
        node_id = offers[0][1]
        statement, peer = self._offers[node_id], self._peers.get(node_id)
        busy = self._fetching is not None and self._fetching.statement.version >= statement.version
        if busy or peer is None or not peer.uses(Subprotocol.POLICY):
            return
        self._fetching = _Fetching(node_id, statement, bytearray(), 0, now + STALL_S)
        self._ask(peer, self._fetching, now, out)

    def _ask(self, peer: Peer, fetching: _Fetching, now: float, out: Output) -> None:
        fetching.asked = len(fetching.data) + BURST_CHUNKS * CHUNK_BYTES
        self._send(peer, Fetch(fetching.statement.version, len(fetching.data)), now, out)

    def _give_up(self, fetching: _Fetching, now: float, out: Output) -> None:
        self._fetching = None
        self._offers.pop(fetching.node_id, None)
        self._barred[fetching.node_id] = now + BAR_S
        self._pursue(now, out)

    def _offer(self, peer: Peer, now: float, out: Output) -> None:
        if self._held is not None and peer.uses(Subprotocol.POLICY):
            self._send(peer, Have(self._held[0]), now, out)

    def _send(self, peer: Peer, message: FleetPolicyMessage, now: float, out: Output) -> bool:
        """Send a message, and return whether there was room; HAVEs are repeated, and a fetch that stalls begins again."""
        try:
            self._streams.send_reliable(peer, Subprotocol.POLICY, encode_fleet_policy(message), now, out)
        except Backpressure:
            self._counters.count(Reason.POLICY_UNSENT)
            return False
        return True
