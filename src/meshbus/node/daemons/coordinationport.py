"""Between the engine and the state machines of chains, groups and partitions (compute/coordination.py).

    Negotiated, PeerRecovered ──► peer_up, if the peer uses all of these subprotocols
    SessionUp, PeerFailed, PeerGone ──► peer_down
    Carried ──► handle ──► messages ──► carriers, by node id

A message that cannot be sent, because its stream is full or the peer has just gone, is dropped and counted: the state
machines ask again.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbus.compute.coordination import IDS, Coordination
from meshbus.compute.reconciling import Outbound
from meshbus.engine.base.notices import (
    Carried,
    Control,
    Negotiated,
    PeerFailed,
    PeerGone,
    PeerRecovered,
    SessionUp,
)
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.errors import DeliveryError, PeerError
from meshbus.policy.reason import Reason

_IDS = frozenset(IDS)


class CoordinationPort:
    """Passes what the engine reports on, and sends what comes of it."""

    def __init__(self, coordination: Coordination) -> None:
        self.coordination = coordination
        self._up: set[int] = set()

    def take(self, engine: Engine, notice: Control, now: float, out: Output) -> bool:
        """Handle a notice, and return whether it was one for this."""
        match notice:
            case Carried(subprotocol_id=subprotocol_id) if subprotocol_id in _IDS:
                answers = self.coordination.handle(subprotocol_id, notice.message, notice.node_id, now)
                engine.carrier(subprotocol_id).release(notice)
                self.send(engine, answers, now, out)
                return True
            case SessionUp() | PeerFailed() | PeerGone():
                self._down(engine, notice.node_id, now, out)
            case Negotiated() | PeerRecovered():
                self._look(engine, notice.node_id, now, out)
            case _:
                pass
        return False

    def tick(self, engine: Engine, now: float, out: Output) -> None:
        """Do what is due."""
        self.send(engine, self.coordination.tick(now), now, out)

    def send(self, engine: Engine, messages: Sequence[Outbound], now: float, out: Output) -> None:
        """Send messages of the state machines."""
        for node_id, subprotocol_id, message in messages:
            try:
                engine.carrier(subprotocol_id).send(node_id, (message,), now, out)
            except (DeliveryError, PeerError):
                engine.counters.count(Reason.COORDINATION_UNSENT)

    def _look(self, engine: Engine, node_id: int, now: float, out: Output) -> None:
        peer = engine.peers.get(node_id)
        if peer is None or not all(peer.uses(subprotocol_id) for subprotocol_id in IDS):
            self._down(engine, node_id, now, out)
        elif node_id not in self._up:
            self._up.add(node_id)
            # Without rules it is not known in which subnets peers are.
            subnet = peer.claims.subnet if engine.directory.assigns else None
            self.send(engine, self.coordination.peer_up(node_id, subnet, now), now, out)

    def _down(self, engine: Engine, node_id: int, now: float, out: Output) -> None:
        if node_id in self._up:
            self._up.discard(node_id)
            self.send(engine, self.coordination.peer_down(node_id, now), now, out)
