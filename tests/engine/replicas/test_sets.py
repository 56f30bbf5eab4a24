"""Replica sets between engines: messages reach their member, work reaches the node."""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.replicas.records import AppendEvents, Halted, Refusal, Refused
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.leadership import Stale, encode_leadership
from meshbus.wire.messages.redex import Role
from tests.engine.fleet import Wiretap
from tests.engine.replicas.trio import ID, Trio


@pytest.fixture(scope="module")
def trio() -> Trio:
    found = Trio()
    found.open()
    return found


def test_nodes_elect_a_leader_and_acknowledge_when_a_majority_has_the_events(trio: Trio) -> None:
    leader = trio.leader()
    assert leader is not None
    trio.append(leader, 1, b"fire", b"smoke")
    assert not trio.acknowledged(leader, 1)
    trio.until(lambda: trio.acknowledged(leader, 1))
    trio.until(lambda: all(disk.content.tail == 2 for disk in trio.disks.values()))
    for disk in trio.disks.values():
        assert [payload for _, payload in disk.content.events] == [b"fire", b"smoke"]


def test_an_append_elsewhere_is_refused(trio: Trio) -> None:
    leader = trio.leader()
    follower = next(node for node in trio.nodes if node is not leader)
    trio.append(follower, 2, b"lost")
    trio.step()
    assert Refused(2, Refusal.NOT_LEADER) in trio.notices[follower.node_id]


def test_an_empty_append_is_acknowledged_after_what_came_before(trio: Trio) -> None:
    leader = trio.leader()
    assert leader is not None
    before = leader.engine.replicas[ID].seat.journal.tail
    trio.append(leader, 3)
    trio.until(lambda: trio.acknowledged(leader, 3))
    assert leader.engine.replicas[ID].seat.journal.tail == before


def test_what_one_batch_of_packets_brings_is_one_piece_of_work(trio: Trio) -> None:
    leader = trio.leader()
    assert leader is not None
    follower = next(node for node in trio.nodes if node is not leader)
    seen = len(follower.happened(ReplicaWork))
    trio.append(leader, 4, *[bytes(3000)] * 20)
    trio.until(lambda: trio.acknowledged(leader, 4))
    pieces = follower.happened(ReplicaWork)[seen:]
    appends = [write for piece in pieces for write in piece.writes if isinstance(write, AppendEvents)]
    assert len(appends) == len(pieces) < 8, "eight packets, in fewer steps"


def test_round_trips_are_measured(trio: Trio) -> None:
    member = trio.nodes[0].engine.replicas[ID]
    assert all(rtt > 0 for rtt in member._rtt_us.values())
    assert set(member._rtt_us) == {node.node_id for node in trio.nodes[1:]}


def test_messages_about_other_channels_and_malformed_ones_are_counted(trio: Trio) -> None:
    one, two = trio.nodes[:2]
    counts = [
        (Reason.REPLICATION_UNKNOWN_CHANNEL, encode_leadership(Stale(channel_id=bytes(32), epoch=1))),
        (Reason.REPLICATION_MALFORMED, b"\xff"),
    ]
    for reason, message in counts:
        before = two.engine.counters.get(*reason.counter)
        with one.turn() as (engine, _, out):
            engine.peers.require(two.node_id).send_message(Subprotocol.LEADERSHIP, message, out)
        trio.net.run(for_s=0.05)
        assert two.engine.counters.get(*reason.counter) == before + 1


def test_a_failed_disk_stops_the_member_and_the_others_go_on() -> None:
    trio = Trio(seed=1)
    trio.open()
    leader = trio.leader()
    assert leader is not None
    with leader.turn() as (engine, now, out):
        engine.replicas.disk_failed(ID, "no space left on device", now, out)
    trio.step()
    assert Halted("no space left on device") in trio.notices[leader.node_id]
    assert leader.engine.replicas[ID].role == Role.IDLE
    trio.until(lambda: trio.leader() not in {None, leader})


def test_a_closed_channel_is_silent_and_members_can_leave() -> None:
    trio = Trio(seed=2)
    trio.open()
    leader = trio.leader()
    assert leader is not None
    gone = next(node for node in trio.nodes if node is not leader)
    with leader.turn() as (engine, now, out):
        engine.replicas.remove(ID, 9, gone.node_id, now, out)
    trio.until(lambda: len(leader.engine.replicas[ID].seat.config.members) == 2)
    gone.engine.replicas.close(ID)
    assert ID not in gone.engine.replicas
    tap = Wiretap(trio.net)
    trio.net.run(for_s=1)
    assert not tap.messages(Subprotocol.LEADERSHIP, source=gone)
    with gone.turn() as (engine, now, out):
        engine.replicas.durable(ID, 1, now, out)  # a sync that ends late
        engine.replicas.disk_failed(ID, "late", now, out)
    with leader.turn() as (engine, now, out):
        engine.replicas.welcome(ID, gone.node_id)
        engine.replicas.add(ID, 10, gone.node_id, now, out)
    trio.step()
    assert Refused(10, Refusal.NO_CHANGE) in trio.notices[leader.node_id]
    heir = next(node for node in trio.nodes if node not in {leader, gone})
    with leader.turn() as (engine, now, out):
        engine.replicas.transfer(ID, 11, heir.node_id, now, out)
    trio.until(lambda: trio.leader() is heir)
