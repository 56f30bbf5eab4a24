"""The boxes do what their kinds say, and nodes behind them are seen at the boxes' addresses."""

from __future__ import annotations

import pytest

from meshbus.testing.fakenat import PORT, FakeNat, NatKind, NatNet
from meshbus.wire.messages.address import Address

INSIDE = Address("10.0.0.1", PORT)
ONE, SAME_HOST, OTHER = Address("198.51.100.1", 1), Address("198.51.100.1", 2), Address("198.51.100.2", 1)


@pytest.mark.parametrize(
    ("kind", "ports", "admitted"),
    [
        (NatKind.OPEN, 1, [True, True, True]),
        (NatKind.FULL_CONE, 1, [True, True, True]),
        (NatKind.RESTRICTED, 1, [True, True, False]),
        (NatKind.PORT_RESTRICTED, 1, [True, False, False]),
        (NatKind.SYMMETRIC, 2, [True, False, False]),
    ],
)
def test_a_box_maps_and_filters_by_its_kind(kind: NatKind, ports: int, admitted: list[bool]) -> None:
    box = FakeNat("203.0.113.7", kind, INSIDE)
    first = box.leave(ONE)
    assert first.host == (INSIDE.host if kind is NatKind.OPEN else "203.0.113.7")
    assert [box.admits(first.port, source) for source in (ONE, SAME_HOST, OTHER)] == admitted
    assert len({first, box.leave(OTHER)}) == ports
    assert not box.admits(1, ONE)


def test_nodes_behind_boxes_are_seen_at_the_boxes_address() -> None:
    net = NatNet()
    hub = net.create_at("hub", "198.51.100.1")
    home = net.create_at("home", "203.0.113.7", NatKind.PORT_RESTRICTED)
    net.join(home, hub)
    assert hub.engine.peers.require(home.node_id).link.address == ("203.0.113.7", 40_000)


def test_nobody_gets_in_uninvited() -> None:
    net = NatNet()
    net.create_at("home", "203.0.113.7", NatKind.PORT_RESTRICTED)
    before = net.digest
    net.inject(ONE, Address("203.0.113.7", 40_000), b"hello")
    assert net.filtered == 1
    assert net.digest == before
