"""NAT detection: finds this node's NAT type from the addresses at which peers see it (mesh.md §8.2).

A sweep asks two neighbors, on different hosts if possible, because a NAT may choose its ports by host. The first line
that applies decides:

    fewer than two answers                                            unknown
    one answer is the address that we are bound to (if bound to a     open
    wildcard address: has the same port)
    all ports are equal                                               cone
    otherwise                                                         symmetric

The first sweep runs shortly after the second neighbor connects, later ones every few minutes, because addresses change.
A sweep without answers changes nothing. If the public address is configured, as with a forwarded port, no peer is asked:
the node is open at that address. How nodes then reach each other is engine/nat/traversal.py.
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
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.wire.messages.address import Address, numeric

SWEEP_PEERS = 2
"""Peers asked by one sweep (mesh.md §8.2)."""
SETTLE_S = 0.5
"""Time from the second session to the first sweep. Our choice: the handshake is over by then."""
RETRY_S = 30.0
"""Time between sweeps while the NAT type is unknown. Our choice."""
RESWEEP_S = 300.0
"""Time between sweeps when the NAT type is known. Our choice."""
MAX_OBSERVED = 64
"""Peers whose last answer is kept. Our choice."""


BOUNDS = (
    Bound(
        name="observed_addresses",
        what="answers of peers about our address",
        by=By.PEER,
        per_node=MAX_OBSERVED,
        full="the oldest goes",
        counter=forgotten("observed_addresses"),
    ),
)


class Plan(StrEnum):
    """What two nodes try first to reach each other."""

    DIRECT = "direct"
    """A handshake at the other's address."""
    PUNCH = "punch"
    """Both send at the same time, so that each NAT takes the other's packets for answers."""
    RELAY = "relay"
    """Neither can work: use a relay."""


# The table of mesh.md §8.4, where RELAY is called skip.
_D, _P, _R = Plan.DIRECT, Plan.PUNCH, Plan.RELAY
_PLANS: dict[Nat, dict[Nat, Plan]] = {
    Nat.OPEN: {Nat.OPEN: _D, Nat.CONE: _D, Nat.SYMMETRIC: _P, Nat.UNKNOWN: _D},
    Nat.CONE: {Nat.OPEN: _D, Nat.CONE: _P, Nat.SYMMETRIC: _P, Nat.UNKNOWN: _P},
    Nat.SYMMETRIC: {Nat.OPEN: _P, Nat.CONE: _P, Nat.SYMMETRIC: _R, Nat.UNKNOWN: _R},
    Nat.UNKNOWN: {Nat.OPEN: _D, Nat.CONE: _P, Nat.SYMMETRIC: _R, Nat.UNKNOWN: _D},
}


def plan(local: Nat, remote: Nat) -> Plan:
    """Return what to try first, by the NAT types of both sides."""
    return _PLANS[local][remote]


def classify(observations: Sequence[Address], bind: Address | None) -> Nat:
    """Return the NAT type that explains the addresses at which peers see us, one for each peer."""
    if len(observations) < SWEEP_PEERS:
        return Nat.UNKNOWN
    if bind is not None and any(_is_ours(seen, bind) for seen in observations):
        return Nat.OPEN
    return Nat.CONE if len({seen.port for seen in observations}) == 1 else Nat.SYMMETRIC


def _is_ours(seen: Address, bind: Address) -> bool:
    return seen.port == bind.port and (seen.host == bind.host or ip_address(bind.host).is_unspecified)


Changed = Callable[[NatStatus, float, Output], None]


class NatWatch:
    """Detects the NAT type of this node, and follows its changes."""

    def __init__(
        self,
        peers: PeerTable,
        reflex: Reflex,
        config: NatConfig,
        *,
        changed: Changed,
        forget: Callable[[], None] | None = None,
    ) -> None:
        """Start with what the configuration says; `changed` is called with every new status."""
        self._peers = peers
        self._reflex = reflex
        self._config = config
        self._changed = changed
        self.status = initial_status(config)
        self._observed: BoundedMap[int, Address] = BoundedMap(MAX_OBSERVED, forget)
        """The last answer of each peer."""
        self._sweeping: dict[int, bool] = {}
        """The peers of the running sweep, in its order, and whether their request has ended."""
        self._sweep_at: float | None = None

    def session_up(self, now: float) -> None:
        """Schedule a sweep after a new session, because two neighbors may be available now."""
        if self.status.nat is Nat.UNKNOWN:
            self._sweep_by(now + SETTLE_S)

    def sweep(self, now: float, out: Output) -> None:
        """Ask two neighbors for our address; do nothing if there are fewer, or if a sweep is running."""
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
        """Record the outcome of a request to a peer; `seen` is None if there was no answer."""
        if seen is not None:
            self._observed.put(node_id, seen)
        if node_id in self._sweeping:
            self._sweeping[node_id] = True
            if all(self._sweeping.values()):
                self._conclude(now, out)

    def seen_by(self, node_id: int) -> Address | None:
        """Return the address at which a peer saw us when it was asked last, or None."""
        return self._observed.get(node_id)

    def forget(self, node_id: int) -> None:
        """Drop the answer of a peer that is gone."""
        self._observed.pop(node_id)

    def next_timer(self) -> float | None:
        """Return the time of the next sweep, or None."""
        return self._sweep_at

    def tick(self, now: float, out: Output) -> None:
        """Start a sweep if one is due."""
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep_at = now + RETRY_S  # stays if a sweep is already running
            self.sweep(now, out)

    def _conclude(self, now: float, out: Output) -> None:
        answers = [seen for node_id in self._sweeping if (seen := self._observed.get(node_id)) is not None]
        self._sweeping = {}
        if not answers:
            return
        # mesh.md §8.2: the announced address is the last answer in the order of the sweep.
        found = NatStatus(classify(answers, self._config.bind), answers[-1])
        if found.nat is not Nat.UNKNOWN:
            self._sweep_at = now + RESWEEP_S
        if found != self.status:
            self.status = found
            self._changed(found, now, out)

    def _choose(self) -> list[Peer]:
        """Return two neighbors to ask, on two hosts if possible; those without a numeric address cannot be asked."""
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
