"""Reflex (0x0D00): tell a peer the address that its session was set up from, and ask peers for ours.

Peers behind a NAT ask for the address. Others ask to see whether the session is alive, which is why the answer must not
wait: engine/session/candidate.py gives up a session that does not answer. A peer behind a relay is told nothing but that we
live: the relay's address is not its own, and nobody should find it there.

A question of ours is open for `TIMEOUT_S`, one to each peer; an answer that nobody asked for is counted and changes
nothing. What the answers say about our NAT is decided in engine/nat/watch.py.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import Address, numeric
from meshbus.wire.messages.reflex import ReflexRequest, ReflexResponse, decode_reflex, encode_reflex

TIMEOUT_S = 3.0
NOWHERE = Address("::", 0)
"""Told when there is no address to tell, as in simulations and behind relays: the answer alone says something."""

Told = Callable[[int, Address | None, float, Output], None]
"""Is told which node answered and what it sees us at; None when it did not say."""


class Reflex(Service):
    """Both sides of reflex."""

    def __init__(self, context: Context) -> None:
        self.told: Told = lambda _node_id, _address, _now, _out: None
        """Called with the outcome of each question."""
        self._counters = context.counters
        self._asked: Deadlines[int] = Deadlines()

    def ask(self, peer: Peer, now: float, out: Output) -> None:
        """Ask a peer where it sees us; while a question is open, asking again changes nothing."""
        if peer.node_id not in self._asked:
            self._asked.set(peer.node_id, now + TIMEOUT_S)
            peer.send_message(Subprotocol.REFLEX, encode_reflex(ReflexRequest()), out)

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Take a reflex message of a peer; a request is answered at once."""
        try:
            heard = decode_reflex(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REFLEX_MALFORMED)
            return
        if isinstance(heard, ReflexRequest):
            seen = numeric(peer.link.home)
            peer.send_message(Subprotocol.REFLEX, encode_reflex(ReflexResponse(seen or NOWHERE)), out)
        elif self._asked.drop(peer.node_id):
            self.told(peer.node_id, heard.address if heard.address.port else None, now, out)
        else:
            self._counters.count(Reason.IGNORE_REFLEX_UNASKED)

    def next_timer(self) -> float | None:
        """Return when `tick` is due."""
        return self._asked.next()

    def tick(self, now: float, out: Output) -> None:
        """Give up questions that were not answered."""
        for node_id in self._asked.over(now):
            self._counters.add("timeout", "reflex")
            self.told(node_id, None, now, out)
