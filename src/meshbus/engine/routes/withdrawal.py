"""Route withdrawals (0x0C01) of net-mesh from 0.32 on: a neighbor no longer reaches a node (dialects.md §2.9).

A withdrawal removes the way to the node through the neighbor that sent it, and no other. Those of one sender for one node
must have rising numbers. When a neighbor of this node fails, the peers that read withdrawals are told; an older one
would take the message for an event.
"""

from __future__ import annotations

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.routes.routing import RoutingTable
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.withdrawal import RouteWithdrawal, decode_withdrawal, encode_withdrawal

MAX_NUMBERS = 4096
"""Pairs of session and node whose last number is kept. Our choice."""


BOUNDS = (
    Bound(
        name="withdrawals",
        what="sessions and nodes with a number of the last withdrawal",
        by=By.PEER,
        per_node=MAX_NUMBERS,
        full="the oldest goes",
        counter=forgotten("withdrawals"),
    ),
)


class Withdrawals(Service):
    """Follows the withdrawals of neighbors, and tells them when this node loses one."""

    def __init__(self, context: Context, table: RoutingTable) -> None:
        self._table = table
        self._peers = context.peers
        self._counters = context.counters
        self._numbers: BoundedMap[tuple[int, int], int] = BoundedMap(
            MAX_NUMBERS, self._counters.forgetting("withdrawals")
        )
        self._next = 0

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle a withdrawal."""
        try:
            heard = decode_withdrawal(message)
        except RemoteProtocolError:
            self._counters.count(Reason.WITHDRAWAL_MALFORMED)
            return
        peer.dialect.learn(Level.B)
        peer.dialect.withdraws = True
        # By session: a peer that was restarted counts from 0 again.
        pair = (peer.link.session_id, heard.dest)
        last = self._numbers.get(pair)
        if last is not None and heard.seq <= last:
            self._counters.count(Reason.WITHDRAWAL_OLD)
            return
        self._numbers.put(pair, heard.seq)
        # A node behind a relay is no next hop, so no way leads through it; the way to the sender is its own session.
        if peer.link.home is not None and heard.dest != peer.node_id:
            self._table.withdraw(heard.dest, peer.link.home)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Send a withdrawal to the peers that read it, because this node no longer reaches a neighbor."""
        if not isinstance(down, PeerFailed):
            return
        message = encode_withdrawal(RouteWithdrawal(dest=down.node_id, seq=self._next))
        self._next += 1
        for peer in self._peers:
            if peer.node_id != down.node_id and peer.dialect.reads_withdrawals:
                peer.send_message(Subprotocol.ROUTE_WITHDRAWAL, message, out)
