"""What kind of NAT this node is behind, from the addresses that its peers see it at, and what follows for a pair.

A sweep asks two neighbors, at different hosts where there are any, because a NAT may choose its ports by host:

    fewer than two answers so far                                     unknown
    one of them is the address we are bound to (with a wildcard       open
    address: has its port)
    all ports are equal                                               cone
    otherwise                                                         symmetric

The first sweep runs shortly after the second neighbor came, further ones every few minutes, because addresses change.
A sweep that nobody answers changes nothing. Where the address is known from outside, as with a forwarded port, nothing
is asked: the node counts as open, at that address. How nodes then reach each other is engine/nat/traversal.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from ipaddress import ip_address

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus, initial_status
from meshbus.engine.nat.reflex import Reflex
from meshbus.engine.session.peer import Health, Peer, PeerTable
from meshbus.engine.settings import NatConfig
from meshbus.wire.messages.address import Address, numeric

SWEEP_PEERS = 2
SETTLE_S = 0.5
"""From the second session to the first sweep: the first packets of a session belong to its handshake."""
RETRY_S = 30.0
"""Between sweeps as long as the kind of NAT is not known."""
RESWEEP_S = 300.0
"""Between sweeps afterwards."""
MAX_OBSERVED = 64
"""Peers whose last answer is remembered."""


class Plan(StrEnum):
    """What two nodes try first to reach each other."""

    DIRECT = "direct"
    """One begins at the other's address."""
    PUNCH = "punch"
    """Both send at the same moment, so that each NAT takes the other's packets for answers."""
    RELAY = "relay"
    """Nothing that could work: stay behind a relay."""


_D, _P, _R = Plan.DIRECT, Plan.PUNCH, Plan.RELAY
_PLANS: dict[Nat, dict[Nat, Plan]] = {
    Nat.OPEN: {Nat.OPEN: _D, Nat.CONE: _D, Nat.SYMMETRIC: _P, Nat.UNKNOWN: _D},
    Nat.CONE: {Nat.OPEN: _D, Nat.CONE: _P, Nat.SYMMETRIC: _P, Nat.UNKNOWN: _P},
    Nat.SYMMETRIC: {Nat.OPEN: _P, Nat.CONE: _P, Nat.SYMMETRIC: _R, Nat.UNKNOWN: _R},
    Nat.UNKNOWN: {Nat.OPEN: _D, Nat.CONE: _P, Nat.SYMMETRIC: _R, Nat.UNKNOWN: _D},
}


def plan(local: Nat, remote: Nat) -> Plan:
    """Return what to try first with a node of some kind; the table is the wire's own."""
    return _PLANS[local][remote]


def classify(observations: Sequence[Address], bind: Address | None) -> Nat:
    """Return which kind of NAT makes peers see us at these addresses, one for each peer."""
    if len(observations) < SWEEP_PEERS:
        return Nat.UNKNOWN
    if bind is not None and any(_is_ours(seen, bind) for seen in observations):
        return Nat.OPEN
    return Nat.CONE if len({seen.port for seen in observations}) == 1 else Nat.SYMMETRIC


def _is_ours(seen: Address, bind: Address) -> bool:
    return seen.port == bind.port and (seen.host == bind.host or ip_address(bind.host).is_unspecified)


Changed = Callable[[NatStatus, float, Output], None]


class NatWatch:
    """Finds out, and keeps finding out, what kind of NAT this node is behind."""

    def __init__(self, peers: PeerTable, reflex: Reflex, config: NatConfig, *, changed: Changed) -> None:
        """Set up; `changed` is told what is to be announced."""
        self._peers = peers
        self._reflex = reflex
        self._config = config
        self._changed = changed
        self.status = initial_status(config)
        self._observed: BoundedMap[int, Address] = BoundedMap(MAX_OBSERVED)
        """What each peer answered last."""
        self._sweeping: dict[int, bool] = {}
        """The peers of the sweep under way, in its order, and whether their question has ended."""
        self._sweep_at: float | None = None

    def session_up(self, now: float) -> None:
        """Note a new session: with a second neighbor there is somebody to compare with."""
        if self.status.nat is Nat.UNKNOWN:
            self._sweep_by(now + SETTLE_S)

    def sweep(self, now: float, out: Output) -> None:
        """Ask two neighbors, as after a change of network; nothing happens with fewer."""
        if self._config.public_address is not None or self._sweeping:
            return
        chosen = self._choose()
        if len(chosen) < SWEEP_PEERS:
            self._sweep_at = None
            return
        self._sweep_at = now + (RETRY_S if self.status.nat is Nat.UNKNOWN else RESWEEP_S)
        self._sweeping = {peer.node_id: False for peer in chosen}
        for peer in chosen:
            self._reflex.ask(peer, now, out)

    def told(self, node_id: int, seen: Address | None, now: float, out: Output) -> None:
        """Take how a question to a peer ended."""
        if seen is not None:
            self._observed.put(node_id, seen)
        if node_id in self._sweeping:
            self._sweeping[node_id] = True
            if all(self._sweeping.values()):
                self._conclude(now, out)

    def seen_by(self, node_id: int) -> Address | None:
        """Return the address that a peer saw us at when it was asked last."""
        return self._observed.get(node_id)

    def forget(self, node_id: int) -> None:
        """Drop what a peer that is gone has told."""
        self._observed.pop(node_id)

    def next_timer(self) -> float | None:
        """Return when `tick` is due."""
        return self._sweep_at

    def tick(self, now: float, out: Output) -> None:
        """Sweep when it is time."""
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = now + RETRY_S  # if one is under way
            self.sweep(now, out)

    def _conclude(self, now: float, out: Output) -> None:
        answers = [seen for node_id in self._sweeping if (seen := self._observed.get(node_id)) is not None]
        self._sweeping = {}
        if not answers:
            return
        found = NatStatus(classify(answers, self._config.bind), answers[-1])
        if found.nat is not Nat.UNKNOWN:
            self._sweep_at = now + RESWEEP_S
        if found != self.status:
            self.status = found
            self._changed(found, now, out)

    def _choose(self) -> list[Peer]:
        """Return two neighbors to ask, at two hosts if possible; where addresses are names, there is nothing to ask."""
        hosts: dict[str, Peer] = {}
        rest: list[Peer] = []
        for peer in self._peers.neighbors():
            place = numeric(peer.link.home)
            if place is None or peer.health is Health.FAILED:
                continue
            if hosts.setdefault(place.host, peer) is not peer:
                rest.append(peer)
        return [*hosts.values(), *rest][:SWEEP_PEERS]

    def _sweep_by(self, time: float) -> None:
        if self._config.public_address is None:
            self._sweep_at = time if self._sweep_at is None else min(self._sweep_at, time)
