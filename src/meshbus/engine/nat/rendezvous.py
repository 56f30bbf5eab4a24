"""Rendezvous (0x0D01): introduces two neighbors to each other, and follows introductions by others (mesh.md §8.3).

As coordinator this node knows both sides: each has a direct session with it, and the target has announced its address;
if not, the address from which we see it is used. Both get the address of the other, and the time at which to send: half
a second later. When a keep-alive arrives, its receiver acknowledges it through the coordinator. A request that cannot be
served is counted and dropped without an answer, because the wire has none:

    rate             this peer asks too often, or all peers together do
    target           the target is the requester, or this node
    no_session       one of the two is not a neighbor
    no_reflex        the address of the target is not known
    address          the requester names an address that no host can have
    foreign_address  the requester names an address that is neither where we see it nor the one that it announced

An acknowledgement is forwarded once for each side of an introduction that was made here, and only if it names its
sender as source. The coordinator sends only within its sessions; the two sides send to the unproven addresses
(engine/nat/punch.py).
"""

from __future__ import annotations

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Output
from meshbus.engine.nat.addresses import AnnouncedAddresses
from meshbus.engine.nat.punch import Punches, usable
from meshbus.engine.session.budget import Rates
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import Address, numeric
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.messages.rendezvous import (
    PunchAck,
    PunchIntroduce,
    PunchRequest,
    decode_rendezvous,
    encode_rendezvous,
)

LEAD_MS = 500
"""Time from an introduction to the first keep-alive (mesh.md §8.3)."""
ACK_S = 15.0
"""How long an introduction can be acknowledged. Our choice: the 5.5 s that a punch takes, and a margin."""
MAX_INTRODUCTIONS = 4096
"""Introductions that can still be acknowledged. Our choice; each counts twice, once for each side."""
PEER_RATE, PEER_BURST = 10.0, 64.0
"""Requests per second of one peer. Our choice; the burst is for a node that starts and wants to reach many."""
TOTAL_RATE, TOTAL_BURST = 200.0, 400.0
"""Requests per second of all peers. Our choice: twenty busy peers."""
MAX_RATED = 4096
"""Peers whose rate is kept. Our choice."""


BOUNDS = (
    Bound(
        name="introductions",
        what="pairs of nodes that were introduced",
        by=By.PEER,
        per_node=MAX_INTRODUCTIONS,
        full="the oldest goes",
        counter=forgotten("introductions"),
    ),
    Bound(
        name="introduction_rates",
        what="peers with a rate of introductions",
        by=By.MEMBER,
        per_node=MAX_RATED,
        full="the one that was quiet longest goes",
        counter=forgotten("introduction_rates"),
    ),
)


class Rendezvous(Service):
    """All roles of the subprotocol: requester, coordinator and introduced node."""

    def __init__(self, context: Context) -> None:
        self.addresses = AnnouncedAddresses(context.counters)
        self.punches = Punches(context)
        self._node_id = context.identity.node_id
        self._peers = context.peers
        self._counters = context.counters
        self._wall = context.wall
        self._introduced: BoundedMap[tuple[int, int], float] = BoundedMap(
            MAX_INTRODUCTIONS, self._counters.forgetting("introductions")
        )
        """Until when a node may acknowledge to another, by (sender, receiver)."""
        self._rates: Rates[int] = Rates(
            PEER_RATE, PEER_BURST, MAX_RATED, self._counters.forgetting("introduction_rates")
        )
        self._total = TokenBucket(TOTAL_RATE, TOTAL_BURST)

    def ask(self, coordinator: Peer, target: int, self_reflex: Address, out: Output) -> None:
        """Ask a neighbor to introduce this node to another one."""
        _send(coordinator, PunchRequest(target=target, self_reflex=self_reflex), out)

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle a rendezvous message of a peer."""
        try:
            heard = decode_rendezvous(message)
        except RemoteProtocolError:
            self._counters.count(Reason.RENDEZVOUS_MALFORMED)
            return
        match heard:
            case PunchRequest():
                self._coordinate(peer, heard, now, out)
            case PunchIntroduce():
                self.punches.introduce(peer, heard, now)
            case PunchAck(to_peer=self._node_id):
                self.punches.acknowledge(peer, heard, now, out)
            case PunchAck():
                self._pass_on(peer, heard, now, out)

    def announced(self, peer: Peer, heard: Announcement, now: float) -> None:
        """Record the address that a node announced."""
        self.addresses.heard(peer, heard, now)

    def next_timer(self) -> float | None:
        """Return when the next keep-alive is due, or None."""
        return self.punches.next_timer()

    def tick(self, now: float, out: Output) -> None:
        """Send the keep-alives that are due."""
        self.punches.tick(now, out)

    def _coordinate(self, asking: Peer, request: PunchRequest, now: float, out: Output) -> None:
        wanted, reflex = self._peers.get(request.target), self._address_of(request.target, now)
        refusal = self._refusal(asking, request, wanted, reflex, now)
        if refusal is not None:
            self._counters.count(refusal)
            return
        assert wanted is not None
        assert reflex is not None
        fire_at_ms = self._wall(now) // 1_000_000 + LEAD_MS
        _send(asking, PunchIntroduce(peer=wanted.node_id, peer_reflex=reflex, fire_at_ms=fire_at_ms), out)
        _send(wanted, PunchIntroduce(peer=asking.node_id, peer_reflex=request.self_reflex, fire_at_ms=fire_at_ms), out)
        self._introduced.put((asking.node_id, wanted.node_id), now + ACK_S)
        self._introduced.put((wanted.node_id, asking.node_id), now + ACK_S)
        self._counters.add("introduction", "made")

    def _refusal(
        self, asking: Peer, request: PunchRequest, wanted: Peer | None, reflex: Address | None, now: float
    ) -> Reason | None:
        """Return the reason to refuse a request for an introduction, or None."""
        # First, so that invalid requests use up the rate too.
        if not (self._rates.take(asking.node_id, now) and self._total.take(1, now)):
            return Reason.REFUSE_INTRODUCTION_RATE
        if request.target in {0, self._node_id, asking.node_id}:
            return Reason.REFUSE_INTRODUCTION_TARGET
        home = asking.link.home
        if home is None or wanted is None or wanted.link.home is None:
            return Reason.REFUSE_INTRODUCTION_NO_SESSION
        if reflex is None:
            return Reason.REFUSE_INTRODUCTION_NO_REFLEX
        if not usable(request.self_reflex, home):
            return Reason.REFUSE_INTRODUCTION_ADDRESS
        # Otherwise a node could make others send to any host.
        said = self.addresses.get(asking.node_id, now)
        believed = (numeric(home), None if said is None else said.reflex)
        if request.self_reflex.host not in {place.host for place in believed if place is not None}:
            return Reason.REFUSE_INTRODUCTION_FOREIGN_ADDRESS
        return None

    def _address_of(self, node_id: int, now: float) -> Address | None:
        """Return the announced address of a neighbor, or else the address from which we see it, or None."""
        found, peer = self.addresses.get(node_id, now), self._peers.get(node_id)
        if found is not None and found.reflex is not None:
            return found.reflex
        return None if peer is None else numeric(peer.link.home)

    def _pass_on(self, sender: Peer, ack: PunchAck, now: float, out: Output) -> None:
        # A 0.23 coordinator forwards any PunchAck (mesh.md §8.3); we only those of introductions that we made, once.
        until = self._introduced.pop((sender.node_id, ack.to_peer)) if ack.from_peer == sender.node_id else None
        receiver = self._peers.get(ack.to_peer)
        if until is None or now > until or receiver is None:
            self._counters.count(Reason.REFUSE_INTRODUCTION_ACK)
            return
        self._counters.add("introduction", "acknowledged")
        _send(receiver, ack, out)


def _send(peer: Peer, message: PunchRequest | PunchIntroduce | PunchAck, out: Output) -> None:
    peer.send_message(Subprotocol.RENDEZVOUS, encode_rendezvous(message), out)
