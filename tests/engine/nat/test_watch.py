"""NAT detection: the tables of the wire, and when peers are asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.engine.nat.watch import MAX_OBSERVED, RESWEEP_S, RETRY_S, SETTLE_S, NatWatch, Plan, classify, plan
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health
from meshbus.engine.settings import NatConfig
from meshbus.testing.rig import rig
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.address import Address, parse_address
from meshbus.wire.route import RouteHeader
from tests.engine.wires import FarEnd
from tests.vectors import load
from tests.wire.strategies import addresses

VECTORS: list[dict[str, Any]] = load("mesh")["nat_classification"]
MATRIX = load("mesh")["nat_pair_matrix"]
NAMES = {"direct": Plan.DIRECT, "single_punch": Plan.PUNCH, "skip_punch": Plan.RELAY}
BIND = Address("10.0.0.1", 9000)
SEEN, ELSEWHERE = Address("203.0.113.7", 40_000), Address("203.0.113.7", 40_001)


@pytest.mark.parametrize("row", VECTORS)
def test_addresses_are_classified_as_a_real_node_does(row: dict[str, Any]) -> None:
    observations = [parse_address(text) for text in row["observations"]]
    assert classify(observations, parse_address(row["bind"])) == row["class"]


def test_what_is_tried_first_is_what_a_real_node_tries() -> None:
    kinds = [Nat(name) for name in MATRIX["order"]]
    for local, row in zip(kinds, MATRIX["rows_local_cols_remote"], strict=True):
        assert [plan(local, remote) for remote in kinds] == [NAMES[name] for name in row]


@given(st.lists(addresses, min_size=2), st.randoms())
def test_the_order_of_answers_decides_nothing(observations: list[Address], shuffler: Any) -> None:
    kind = classify(observations, BIND)
    shuffler.shuffle(observations)
    assert classify(observations, BIND) is kind
    assert kind is not Nat.UNKNOWN


class Watch:
    """A watch, the peers it may ask, and what it found."""

    def __init__(self, config: NatConfig = NatConfig(bind=BIND)) -> None:  # noqa: B008  frozen
        engine = rig()
        self.peers = engine.peers
        self.found: list[NatStatus] = []
        self.reflex = engine.traversal.reflex
        self.reflex.told = self.told
        self.watch = NatWatch(
            self.peers, self.reflex, config, changed=lambda status, _now, _out: self.found.append(status)
        )

    def told(self, node_id: int, seen: Address | None, now: float, out: Output) -> None:
        self.watch.told(node_id, seen, now, out)

    def peer(self, node_id: int, host: str, *, relayed: bool = False, now: float = 0.0) -> None:
        keys = derive_keys(node_id.to_bytes(32, "little"), Role.INITIATOR)
        route = RouteHeader(src_id=1, dest_id=node_id) if relayed else None
        self.peers.establish(node_id, Link(keys, Role.INITIATOR, (host, node_id), now, route=route), now)
        self.watch.session_up(now)

    def tick(self, now: float) -> list[object]:
        """Return the addresses that were asked."""
        out = Output()
        self.reflex.tick(now, out)
        self.watch.tick(now, out)
        return [train.address for train in out.trains]

    def answer(self, *answers: tuple[int, Address | None], now: float) -> None:
        for node_id, seen in answers:
            self.watch.told(node_id, seen, now, Output())


def test_two_neighbors_are_asked_soon_after_the_second_came() -> None:
    desk = Watch()
    desk.peer(1, "198.51.100.1")
    assert desk.watch.next_timer() == SETTLE_S
    assert desk.tick(SETTLE_S) == []
    assert desk.watch.next_timer() is None
    desk.peer(2, "198.51.100.2", now=5.0)
    assert desk.watch.next_timer() == 5.0 + SETTLE_S
    assert desk.tick(5.4) == []
    assert desk.tick(5.5) == [("198.51.100.1", 1), ("198.51.100.2", 2)]
    desk.answer((1, SEEN), now=5.6)
    assert desk.found == []
    desk.answer((2, ELSEWHERE), now=5.7)
    assert desk.found == [NatStatus(Nat.SYMMETRIC, ELSEWHERE)] == [desk.watch.status]
    assert desk.watch.next_timer() == 5.7 + RESWEEP_S


def test_two_hosts_are_preferred_and_relayed_or_failed_peers_are_not_asked() -> None:
    desk = Watch()
    desk.peer(1, "198.51.100.1")
    desk.peer(2, "198.51.100.1")
    desk.peer(3, "198.51.100.3", relayed=True)
    desk.peer(4, "198.51.100.4")
    desk.peer(5, "198.51.100.5")
    desk.peers.require(4).health = Health.FAILED
    assert desk.tick(1.0) == [("198.51.100.1", 1), ("198.51.100.5", 5)]


def test_no_peer_is_asked_where_addresses_are_names() -> None:
    desk = Watch()
    for node_id in (1, 2):
        FarEnd(desk.peers, node_id)
    desk.watch.session_up(0.0)
    assert desk.tick(1.0) == []


def test_one_host_is_better_than_nothing() -> None:
    desk = Watch()
    desk.peer(1, "198.51.100.1")
    desk.peer(2, "198.51.100.1")
    assert desk.tick(1.0) == [("198.51.100.1", 1), ("198.51.100.1", 2)]


def test_silence_changes_nothing_and_is_tried_again() -> None:
    desk = Watch()
    desk.peer(1, "198.51.100.1")
    desk.peer(2, "198.51.100.2")
    assert len(desk.tick(1.0)) == 2
    assert desk.tick(4.0) == []
    assert desk.found == []
    assert desk.watch.next_timer() == 1.0 + RETRY_S
    assert len(desk.tick(1.0 + RETRY_S)) == 2
    desk.answer((1, SEEN), (2, SEEN), now=40.0)
    assert len(desk.tick(40.0 + RESWEEP_S)) == 2
    desk.answer((1, None), (2, None), now=400.0)
    assert desk.found == [NatStatus(Nat.CONE, SEEN)] == [desk.watch.status]


def test_the_last_answer_of_a_peer_counts_until_it_is_gone() -> None:
    desk = Watch()
    desk.peer(1, "198.51.100.1")
    desk.peer(2, "198.51.100.2")
    desk.tick(1.0)
    desk.answer((1, SEEN), (2, SEEN), now=1.0)
    desk.watch.sweep(2.0, Output())
    desk.answer((1, ELSEWHERE), (2, None), now=2.0)
    assert desk.watch.status == NatStatus(Nat.SYMMETRIC, SEEN)
    desk.watch.forget(2)
    desk.watch.sweep(3.0, Output())
    desk.answer((1, SEEN), (2, None), now=3.0)
    assert desk.watch.status == NatStatus(Nat.UNKNOWN, SEEN)
    assert desk.watch.seen_by(1) == SEEN
    assert desk.watch.seen_by(2) is None


def test_a_configured_public_address_is_open_and_no_peer_is_asked() -> None:
    desk = Watch(NatConfig(bind=BIND, public_address=SEEN))
    desk.peer(1, "198.51.100.1")
    desk.peer(2, "198.51.100.2")
    assert desk.watch.next_timer() is None
    desk.watch.sweep(1.0, Output())
    assert desk.reflex.next_timer() is None
    assert desk.watch.status == NatStatus(Nat.OPEN, SEEN)


def test_one_sweep_at_a_time() -> None:
    desk, out = Watch(), Output()
    desk.peer(1, "198.51.100.1")
    desk.peer(2, "198.51.100.2")
    desk.watch.sweep(1.0, out)
    desk.watch.sweep(1.0, out)
    assert len(out.trains) == 2


def test_what_peers_answer_is_remembered_within_bounds() -> None:
    desk = Watch()
    for node_id in range(1, 3 * MAX_OBSERVED):
        desk.answer((node_id, SEEN), now=0.0)
    assert sum(desk.watch.seen_by(node_id) is not None for node_id in range(1, 3 * MAX_OBSERVED)) == MAX_OBSERVED
