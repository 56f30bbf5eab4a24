"""Rendezvous (0x0D01): introduces two neighbors to each other, and follows introductions by others (mesh.md §8.3).

As coordinator this node knows both sides: each has a direct session with it, and the target has announced its address;
if not, the address from which we see it is used. Both get the address of the other, and the time at which to send: half
a second later. When a keep-alive arrives, its receiver acknowledges it through the coordinator. A request that cannot be
served is counted, and answered if it carries a number: up to net-mesh 0.31 the wire has no answer (dialects.md §2.8).

    rate             this peer asks too often, or all peers together do
    target           the target is the requester, or this node
    no_session       one of the two is not a neighbor
    no_reflex        the address of the target is not known
    address          the requester names an address that no host can have
    foreign_address  the requester names an address that is neither where we see it nor the one that it announced

A request goes out in the form that the coordinator reads, or in both while that is unknown; it ignores the other one. A
meshbus coordinator reads both, so it takes a request in the other form, within the lead of an introduction, for the same.

An acknowledgement is forwarded once for each side of an introduction that was made here, and only if it names its
sender as source. The coordinator sends only within its sessions; the two sides send to the unproven addresses
(engine/nat/punch.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Output
from meshbus.engine.nat.addresses import AnnouncedAddresses
from meshbus.engine.nat.punch import Punches, usable
from meshbus.engine.session.budget import Rates
from meshbus.engine.session.dialect import Level
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
    PunchReject,
    PunchRequest,
    RejectReason,
    RendezvousMessage,
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

_REJECTS = {
    Reason.REFUSE_INTRODUCTION_RATE: RejectReason.RATE,
    Reason.REFUSE_INTRODUCTION_TARGET: RejectReason.NO_SESSION,
    Reason.REFUSE_INTRODUCTION_NO_SESSION: RejectReason.NO_SESSION,
    Reason.REFUSE_INTRODUCTION_NO_REFLEX: RejectReason.NO_REFLEX,
    Reason.REFUSE_INTRODUCTION_ADDRESS: RejectReason.FOREIGN_ADDRESS,
    Reason.REFUSE_INTRODUCTION_FOREIGN_ADDRESS: RejectReason.FOREIGN_ADDRESS,
}
"""What the requester is told."""


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


class _Made(NamedTuple):
    """An introduction."""

    until: float
    """Until when a node may acknowledge it to the other."""
    numbered: bool
    """Whether the request for it carried a number."""


class Rendezvous(Service):
    """All roles of the subprotocol: requester, coordinator and introduced node."""

    def __init__(self, context: Context) -> None:
        self.addresses = AnnouncedAddresses(context.counters)
        self.punches = Punches(context)
        self._identity = context.identity
        self._peers = context.peers
        self._counters = context.counters
        self._wall = context.wall
        self._introduced: BoundedMap[tuple[int, int], _Made] = BoundedMap(
            MAX_INTRODUCTIONS, self._counters.forgetting("introductions")
        )
        """The introductions that may be acknowledged, by (sender, receiver)."""
        self._rates: Rates[int] = Rates(
            PEER_RATE, PEER_BURST, MAX_RATED, self._counters.forgetting("introduction_rates")
        )
        self._total = TokenBucket(TOTAL_RATE, TOTAL_BURST)
        self._asked = 0
        """Number of requests that this node has made."""
        self.rejected: Callable[[int, int, float, Output], None] = lambda _coordinator, _target, _now, _out: None
        """Called when a coordinator refused an introduction, with both node ids."""

    def ask(self, coordinator: Peer, target: int, self_reflex: Address, out: Output) -> None:
        """Ask a neighbor to introduce this node to another one."""
        self._asked += 1
        dialect = coordinator.dialect
        # meshbus reads both forms, earlier versions of it only the short one.
        short = bool(coordinator.negotiated.compatible) or dialect.level is Level.A
        if not dialect.reads_withdrawals or short:
            _send(coordinator, PunchRequest(target=target, self_reflex=self_reflex), out)
        if not short:
            number = self._asked & 0xFFFFFFFF
            _send(coordinator, PunchRequest(target=target, self_reflex=self_reflex, punch_id=number), out)

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
            case PunchAck(to_peer=self._identity.node_id):
                self.punches.acknowledge(peer, heard, now, out)
            case PunchAck():
                self._pass_on(peer, heard, now, out)
            case PunchReject():
                self._counters.add("introduction", "rejected")
                self.rejected(peer.node_id, heard.target, now, out)

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
        made = self._introduced.get((asking.node_id, request.target))
        numbered = request.punch_id is not None
        if made is not None and made.numbered is not numbered and made.until - now > ACK_S - LEAD_MS / 1000:
            self._counters.add("introduction", "repeated")
            return
        wanted, reflex = self._peers.get(request.target), self._address_of(request.target, now)
        refusal = self._refusal(asking, request, wanted, reflex, now)
        if refusal is not None:
            self._counters.count(refusal)
            if request.punch_id is not None:
                reason = _REJECTS[refusal]
                _send(asking, PunchReject(target=request.target, punch_id=request.punch_id, reason=reason), out)
            return
        assert wanted is not None
        assert reflex is not None
        fire_at_ms = self._wall(now) // 1_000_000 + LEAD_MS
        _send(asking, PunchIntroduce(peer=wanted.node_id, peer_reflex=reflex, fire_at_ms=fire_at_ms), out)
        _send(wanted, PunchIntroduce(peer=asking.node_id, peer_reflex=request.self_reflex, fire_at_ms=fire_at_ms), out)
        made = _Made(now + ACK_S, numbered)
        self._introduced.put((asking.node_id, wanted.node_id), made)
        self._introduced.put((wanted.node_id, asking.node_id), made)
        self._counters.add("introduction", "made")

    def _refusal(
        self, asking: Peer, request: PunchRequest, wanted: Peer | None, reflex: Address | None, now: float
    ) -> Reason | None:
        """Return the reason to refuse a request for an introduction, or None."""
        # First, so that invalid requests use up the rate too.
        if not (self._rates.take(asking.node_id, now) and self._total.take(1, now)):
            return Reason.REFUSE_INTRODUCTION_RATE
        if request.target in {0, self._identity.node_id, asking.node_id}:
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
        made = self._introduced.pop((sender.node_id, ack.to_peer)) if ack.from_peer == sender.node_id else None
        receiver = self._peers.get(ack.to_peer)
        if made is None or now > made.until or receiver is None:
            self._counters.count(Reason.REFUSE_INTRODUCTION_ACK)
            return
        self._counters.add("introduction", "acknowledged")
        _send(receiver, ack, out)


def _send(peer: Peer, message: RendezvousMessage, out: Output) -> None:
    peer.send_message(Subprotocol.RENDEZVOUS, encode_rendezvous(message), out)
