"""Reflex (0x0D00): tells peers the address from which we see them, and asks peers for ours (mesh.md §8.1).

A peer behind a NAT asks for its address. Other peers ask to test whether the session is alive, so the answer is sent at
once: engine/session/candidate.py drops a session that does not answer. A peer behind a relay gets an empty address,
because the relay's address is not its own and must not be announced as such.

This node has at most one open request to each peer, for `TIMEOUT_S`. An answer without a request is counted and ignored.
A ping is a request of its own, whose answer only shows how long it took.
What the answers mean for our NAT type is decided in engine/nat/watch.py.
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
"""How long to wait for an answer (mesh.md §8.1)."""
NOWHERE = Address("::", 0)
"""The answer if there is no address, as in simulations and behind relays; it still shows that the session is alive."""

Told = Callable[[int, Address | None, float, Output], None]
"""Called with the node that was asked and the address from which it sees us, or None if it gave none."""


class Reflex(Service):
    """Requests and answers of the subprotocol."""

    def __init__(self, context: Context) -> None:
        self.told: Told = lambda _node_id, _address, _now, _out: None
        """Called with the outcome of each request."""
        self._counters = context.counters
        self._asked: Deadlines[int] = Deadlines()
        self._pings: dict[int, list[Callable[[], None]]] = {}
        """By peer, whom to tell about the next answers, in the order of the requests."""

    def ask(self, peer: Peer, now: float, out: Output) -> None:
        """Ask a peer for our address; do nothing while a request to it is open."""
        if peer.node_id not in self._asked:
            self._asked.set(peer.node_id, now + TIMEOUT_S)
            peer.send_message(Subprotocol.REFLEX, encode_reflex(ReflexRequest()), out)

    def ping(self, peer: Peer, answered: Callable[[], None], out: Output) -> Callable[[], None]:
        """Ask a peer whether it is there, and call `answered` when its answer comes; return a function that stops waiting."""
        waiting = self._pings.setdefault(peer.node_id, [])
        waiting.append(answered)
        peer.send_message(Subprotocol.REFLEX, encode_reflex(ReflexRequest()), out)

        def stop() -> None:
            if answered in waiting:
                waiting.remove(answered)
            if not waiting and self._pings.get(peer.node_id) is waiting:
                del self._pings[peer.node_id]

        return stop

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle a reflex message of a peer; a request is answered at once."""
        try:
            heard = decode_reflex(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REFLEX_MALFORMED)
            return
        if isinstance(heard, ReflexRequest):
            # `home` is None behind a relay. mesh.md §8.1: the address of the session, not of this datagram.
            seen = numeric(peer.link.home)
            peer.send_message(Subprotocol.REFLEX, encode_reflex(ReflexResponse(seen or NOWHERE)), out)
        elif self._asked.drop(peer.node_id):
            self.told(peer.node_id, heard.address if heard.address.port else None, now, out)
        elif waiting := self._pings.get(peer.node_id):
            waiting.pop(0)()
        elif peer.link.probes:
            peer.link.probes -= 1  # it was a proof (session/candidate.py)
        else:
            self._counters.count(Reason.IGNORE_REFLEX_UNASKED)

    def next_timer(self) -> float | None:
        """Return the earliest deadline of a request, or None."""
        return self._asked.next()

    def tick(self, now: float, out: Output) -> None:
        """End the requests whose deadline has passed."""
        for node_id in self._asked.over(now):
            self._counters.add("timeout", "reflex")
            self.told(node_id, None, now, out)
