"""Partitions as one node sees them: suspected, confirmed or dismissed, healing, healed."""

from __future__ import annotations

import pytest

from meshbus.compute import partition as module
from meshbus.compute.partition import CONFIRM_S, PartitionDetector, Phase
from meshbus.compute.reconciling import Outbound
from meshbus.engine.base.counters import Counters
from meshbus.names.subnet import SubnetId
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.partition import Healed, Suspect, View, decode_partition, encode_partition

NEAR, FAR = SubnetId.parse("1"), SubnetId.parse("3.7")
FRIENDS, LOST = [2, 3], [11, 12, 13]


class Detector:
    """A node with two peers in its own subnet and three in another."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.one = PartitionDetector(1, self.counters, lambda: ((7, 8),))
        for node in FRIENDS:
            self.one.up(node, NEAR, 0.0)
        for node in LOST:
            self.one.up(node, FAR, 0.0)
        self.one.tick(0.0)

    def phases(self) -> list[Phase]:
        return [report.phase for report in self.one.take_reports()]

    def hear(self, sender: int, message: View | Suspect | Healed, now: float = 1.0) -> None:
        assert self.one.handle(encode_partition(message), sender, now) == []


def read(out: list[Outbound]) -> list[tuple[int, object]]:
    assert all(subprotocol_id == Subprotocol.PARTITION for _, subprotocol_id, _ in out)
    return [(node, decode_partition(message)) for node, _, message in out]


def test_a_subnet_that_is_lost_for_everyone_is_a_partition() -> None:
    found = Detector()
    told = read(found.one.down(LOST, 1.0))
    assert told == [(peer, Suspect(node=node)) for node in LOST for peer in FRIENDS]
    assert found.phases() == [Phase.SUSPECTED]
    for peer in FRIENDS:
        found.hear(peer, View(epoch=1, nodes=(1,)))
    assert found.one.next_timer() == 1.0
    assert read(found.one.tick(1.0)) == [(peer, View(epoch=2, nodes=(2, 3))) for peer in FRIENDS]
    assert found.phases() == []
    found.one.tick(1.0 + CONFIRM_S)
    assert found.phases() == [Phase.CONFIRMED]
    assert found.one.recovery_budget == 3
    (partition,) = found.one.partitions
    assert (partition.id, partition.subnet, partition.baseline) == (1, FAR, ((7, 8),))


def test_it_heals_when_half_of_the_nodes_are_back() -> None:
    found = Detector()
    found.one.down(LOST, 1.0)
    found.one.tick(1.0 + CONFIRM_S)
    found.phases()
    told = read(found.one.up(11, FAR, 9.0))
    assert told == [(peer, Healed(node=11)) for peer in (2, 3, 11)]
    assert found.phases() == [Phase.HEALING]
    found.one.up(11, FAR, 9.0)
    assert found.phases() == []
    found.one.up(12, FAR, 9.0)
    assert found.phases() == [Phase.HEALED]
    assert read(found.one.up(13, FAR, 9.0)) == []


def test_what_a_peer_still_reaches_is_no_partition() -> None:
    found = Detector()
    found.one.down(LOST, 1.0)
    found.hear(2, View(epoch=5, nodes=(1, 11, 12)))
    found.one.tick(1.0 + CONFIRM_S)
    assert found.phases() == [Phase.SUSPECTED, Phase.DISMISSED]


def test_peers_that_suspect_the_same_confirm_it_at_once() -> None:
    found = Detector()
    found.one.down(LOST, 1.0)
    for peer in FRIENDS:
        for node in LOST:
            assert found.phases() in ([], [Phase.SUSPECTED])
            found.hear(peer, Suspect(node=node))
    assert found.phases() == [Phase.CONFIRMED]


def test_a_peer_that_found_a_node_again_does_not_suspect_it() -> None:
    found = Detector()
    for peer in FRIENDS:
        for node in LOST:
            found.hear(peer, Suspect(node=node))
    found.hear(3, Healed(node=11))
    found.one.down(LOST, 1.0)
    found.one.tick(2.0)
    assert found.phases() == [Phase.SUSPECTED]


def test_nodes_that_fail_one_after_the_other_are_one_partition() -> None:
    found = Detector()
    assert found.one.down([11], 1.0) == []
    found.one.down([12], 1.5)
    assert read(found.one.down([13], 2.0)) == [(peer, Suspect(node=13)) for peer in FRIENDS]
    (partition,) = found.one.partitions
    assert partition.lost == set(LOST)


def test_failures_without_a_common_subnet_are_no_partition() -> None:
    found = Detector()
    found.one.down([2, 11], 1.0)
    assert found.one.partitions == []
    assert found.one.down([99], 1.0) == []


def test_views_are_not_sent_more_often_than_needed() -> None:
    found = Detector()
    found.one.down([11], 0.1)
    found.one.up(11, FAR, 0.2)
    assert found.one.tick(0.3) == []
    assert found.one.next_timer() == 0.5
    assert [message for _, message in read(found.one.tick(0.5))] == [View(epoch=2, nodes=(2, 3, 11, 12, 13))] * 5
    assert found.one.tick(9.0) == []


def test_what_cannot_be_read_or_comes_late_or_from_strangers_is_counted() -> None:
    found = Detector()
    assert found.one.handle(b"", 2, 1.0) == []
    assert found.counters.get("drop", "chain_malformed") == 1
    found.hear(2, View(epoch=5, nodes=(11,)))
    found.hear(2, View(epoch=4, nodes=()))
    found.hear(99, View(epoch=5, nodes=(11,)))
    assert found.counters.get("drop", "chain_unexpected") == 2


def test_tracked_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TRACKED", 3)
    found = Detector()
    assert len(found.one._tracked) == 3
    assert found.counters.get("forget", "tracked_nodes") == 2


def test_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTITIONS", 2)
    found = Detector()
    for round_ in range(5):
        now = round_ * 10.0
        found.one.down(LOST, now)
        found.one.tick(now + CONFIRM_S)
        for node in LOST:
            found.one.up(node, FAR, now + 5)
    assert [one.id for one in found.one.partitions] == [4, 5]
    assert found.counters.get("forget", "partitions") == 3


def test_a_view_has_no_more_nodes_than_fit() -> None:
    found = Detector()
    assert found.one.handle(b"\x01" + bytes(8) + b"\xff\xff", 2, 1.0) == []
    assert found.counters.get("drop", "chain_malformed") == 1
