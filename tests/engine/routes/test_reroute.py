"""Rerouting: routes move away from a failed neighbor, and back."""

from __future__ import annotations

from meshbus.engine.base.counters import Counters
from meshbus.engine.routes.proximity import ProximityGraph
from meshbus.engine.routes.reroute import ReroutePolicy
from meshbus.engine.routes.routing import RoutingConfig, RoutingTable
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, PeerTable
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.pingwave import Pingwave

P, Q, R = 2, 3, 4
FAR = 9


class RerouteRig:
    """One node with three neighbors at addresses like "at 2"."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.peers = PeerTable()
        self.table = RoutingTable(RoutingConfig(patience_s=30.0, max_age_s=90.0))
        self.graph = ProximityGraph(1)
        for node_id in (P, Q, R):
            link = Link(derive_keys(bytes([node_id]) * 32, Role.INITIATOR), Role.INITIATOR, f"at {node_id}", 0.0)
            self.peers.establish(node_id, link, 0.0)
            self.table.install(node_id, f"at {node_id}", 0.0)
        self.policy = ReroutePolicy(self.table, self.graph, self.peers, self.counters)

    def hear(self, origin: int, sender: int, hops: int) -> None:
        wave = Pingwave(node_id=origin, seq=1, hop_count=hops, timestamp_us=1)
        self.graph.observe(wave, sender, f"at {sender}", 0.0, 2)

    def moved(self) -> dict[str, int]:
        return self.counters.snapshot().get("route", {})


def test_another_way_that_was_heard_is_taken() -> None:
    rig = RerouteRig()
    rig.table.learn(FAR, f"at {P}", 3, 0.0)
    rig.table.learn(FAR, f"at {Q}", 5, 0.0)
    rig.policy.failed(P, f"at {P}", 1.0)
    assert rig.table.lookup(FAR, 1.0) == f"at {Q}"
    assert P not in rig.table, "without another way the neighbor itself is out of reach"
    assert rig.moved() == {"lost": 1, "moved": 1}


def test_the_graph_is_asked_when_no_other_way_was_heard() -> None:
    rig = RerouteRig()
    rig.table.learn(FAR, f"at {P}", 3, 0.0)
    rig.hear(P, P, 0)
    rig.hear(FAR, Q, 2)
    rig.hear(P, R, 1)
    rig.policy.failed(P, f"at {P}", 1.0)
    assert rig.table.lookup(FAR, 1.0) == f"at {Q}"
    assert rig.table.lookup(P, 1.0) == f"at {R}", "the failed neighbor may be reached around"


def test_a_neighbor_that_failed_too_is_no_way() -> None:
    rig = RerouteRig()
    rig.table.learn(FAR, f"at {P}", 3, 0.0)
    rig.hear(FAR, Q, 2)
    rig.peers.require(Q).health = Health.FAILED
    rig.policy.failed(P, f"at {P}", 1.0)
    assert rig.table.lookup(FAR, 1.0) is None


def test_no_neighbor_is_chosen_at_random() -> None:
    rig = RerouteRig()
    rig.table.learn(FAR, f"at {P}", 3, 0.0)
    rig.policy.failed(P, f"at {P}", 1.0)
    assert rig.table.lookup(FAR, 1.0) is None
    assert rig.moved() == {"lost": 2}


def test_moved_routes_return_with_the_neighbor_at_its_new_address() -> None:
    rig = RerouteRig()
    rig.table.learn(FAR, f"at {P}", 3, 0.0)
    rig.table.learn(FAR, f"at {Q}", 5, 0.0)
    rig.policy.failed(P, f"at {P}", 1.0)
    rig.policy.failed(Q, f"at {Q}", 2.0)
    assert len(rig.policy) == 3
    rig.policy.recovered(P, "elsewhere", 3.0)
    assert rig.table.lookup(FAR, 3.0) == "elsewhere", "the first cause wins"
    assert rig.table.lookup(P, 3.0) == "elsewhere"
    assert len(rig.policy) == 1
    rig.policy.forget(Q)
    assert len(rig.policy) == 0
    rig.policy.recovered(Q, f"at {Q}", 4.0)
    assert rig.moved()["restored"] == 2
