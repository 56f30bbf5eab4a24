"""A message for whoever handles a subprotocol goes to the nearest node that does and matches."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import Carried
from meshbus.engine.directory.handlers import nearest_first
from meshbus.errors import LocalProtocolError, PeerError
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from tests.engine.fleet import meet

ID = Subprotocol.GROUPS
CARRIES = frozenset({ID})
GPU = CapabilityFilter(require_tags=("gpu",))


def test_the_nearest_come_first_and_unknown_distances_last() -> None:
    distances = {1: 500, 2: None, 3: 20, 4: 20}
    assert nearest_first([1, 2, 3, 4], distances.get) == [3, 4, 1, 2]


def fleet() -> tuple[FakeNet, dict[str, FakeNode]]:
    """Return an asker, handlers near and far, the far one with a GPU, and a near node that handles nothing."""
    net = FakeNet(seed=9)
    nodes = {"asker": net.create("asker", carries=CARRIES)}
    for name, carries, tags, latency in (
        ("near", CARRIES, (), 0.002),
        ("far", CARRIES, ("gpu",), 0.05),
        ("nothing", frozenset[int](), ("gpu",), 0.001),
    ):
        node = nodes[name] = net.create(name, carries=carries, announces=False)
        net.set_path("asker", name, FakePath(latency_s=latency))
        with node.turn() as (engine, now, out):
            engine.announce(CapabilitySet(tags), now, out)
        meet(nodes["asker"], node)
    net.run(for_s=20)
    return net, nodes


def send(net: FakeNet, node: FakeNode, requires: CapabilityFilter | None = None) -> int:
    with node.turn() as (engine, now, out):
        chosen = engine.route(ID, b"hello", now, out, capability_filter=requires)
    net.run(for_s=1)
    return chosen


def heard(node: FakeNode) -> list[bytes]:
    return [notice.message for notice in node.happened(Carried)]


def test_a_message_goes_to_the_nearest_node_that_handles_it_and_matches() -> None:
    net, nodes = fleet()
    asker = nodes["asker"]
    assert send(net, asker) == nodes["near"].node_id
    assert send(net, asker, GPU) == nodes["far"].node_id
    assert [len(heard(nodes[name])) for name in ("near", "far", "nothing")] == [1, 1, 0]
    found = asker.engine.find_handlers(ID, net.clock.now)
    assert [node for node in found if node != asker.node_id] == [nodes["near"].node_id, nodes["far"].node_id]


def test_a_message_that_nobody_can_take_is_refused() -> None:
    net, nodes = fleet()
    with pytest.raises(PeerError, match="no other node announced"):
        send(net, nodes["asker"], CapabilityFilter(require_tags=("lidar",)))
    with pytest.raises(LocalProtocolError, match="does not carry"), nodes["nothing"].turn() as (engine, now, out):
        engine.route(ID, b"hello", now, out)
    # It knows of others by their announcements, and has no session with them.
    with pytest.raises(PeerError), nodes["near"].turn() as (engine, now, out):
        engine.route(ID, b"hello", now, out, capability_filter=GPU)
