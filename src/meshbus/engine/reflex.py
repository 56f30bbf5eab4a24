"""Answering reflex requests (0x0D00): tell a peer the address that its session was set up from.

Peers behind a NAT ask for the address. Others ask to see whether the session is alive, which is why the answer must not
wait: engine/candidate.py gives up a session that does not answer. What the addresses say about our own NAT is not
looked at yet.
"""

from __future__ import annotations

from meshbus.engine.counters import Counters
from meshbus.engine.packets import Address, Output
from meshbus.engine.peer import Peer
from meshbus.errors import LocalProtocolError, RemoteProtocolError
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import Address as Numeric
from meshbus.wire.messages.reflex import ReflexRequest, ReflexResponse, decode_reflex, encode_reflex

NOWHERE = Numeric("::", 0)
"""Told when our socket's addresses are not numeric, as in simulations: the answer alone says something."""


class Reflex:
    """The answering side of reflex."""

    __slots__ = ("_counters",)

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def receive(self, peer: Peer, message: Buffer, _now: float, out: Output) -> None:
        """Take a reflex message of a peer; a request is answered at once."""
        try:
            asked = isinstance(decode_reflex(message), ReflexRequest)
        except RemoteProtocolError:
            self._counters.add("drop", "reflex_malformed")
            return
        if asked:
            peer.send_message(Subprotocol.REFLEX, _answer(peer.link.address), out)


def _answer(address: Address) -> bytes:
    match address:
        case (str(host), int(port), *_):
            try:
                return encode_reflex(ReflexResponse(Numeric(host.partition("%")[0], port)))
            except LocalProtocolError:
                pass
    return encode_reflex(ReflexResponse(NOWHERE))
