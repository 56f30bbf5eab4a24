"""Appends through the leader, between two engines: every request has one outcome."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshbus.engine.base.notices import AppendAnswered, AppendAsked
from meshbus.engine.replicas import appending
from meshbus.errors import DeliveryError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.append import Append, Appended, AppendFlags, Outcome, encode_append
from meshbus.wire.messages.redex import channel_id
from tests.engine.fleet import meet, pair

CHANNEL, SECRET = ChannelName("alarms"), ChannelName("secret")
ID = channel_id(CHANNEL)


def make() -> tuple[FakeNet, FakeNode, FakeNode]:
    net, publisher, leader = pair()
    leader.engine.appending.serve(ID, CHANNEL)
    return net, publisher, leader


def ask(node: FakeNode, to: FakeNode, records: Sequence[bytes], channel: bytes = ID) -> int:
    with node.turn() as (engine, now, out):
        peer = engine.peers.require(to.node_id)
        return engine.appending.ask(peer, channel, records, AppendFlags.ONCE, now, out)


def outcomes(node: FakeNode) -> list[Appended]:
    return [event.answer for event in node.happened(AppendAnswered)]


def test_a_large_append_arrives_whole_and_is_answered() -> None:
    net, publisher, leader = make()
    records = [bytes([number]) * 900 for number in range(40)]
    request = ask(publisher, leader, records)
    net.run(for_s=1)
    asked = AppendAsked(publisher.node_id, request, ID, AppendFlags.ONCE, tuple(records))
    assert leader.happened(AppendAsked) == [asked]
    answer = Appended(req=request, outcome=Outcome.OK, first_seq=7, count=40)
    with leader.turn() as (engine, now, out):
        engine.appending.answer(publisher.node_id, answer, now, out)
    net.run(for_s=1)
    assert outcomes(publisher) == [answer]
    with leader.turn() as (engine, now, out):
        engine.appending.answer(publisher.node_id, answer, now, out)
        engine.appending.answer(99, answer, now, out)  # a node that is gone
    net.run(for_s=1)
    assert publisher.engine.counters.get(*Reason.REPLICA_UNEXPECTED.counter) == 1


def test_unknown_channels_and_publishers_without_permission_are_refused() -> None:
    net, publisher, leader = make()
    secret = channel_id(SECRET)
    leader.engine.appending.serve(secret, SECRET)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=SECRET, publish_caps=CapabilityFilter(require_tags=("boss",))))
    with leader.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    expected = []
    for channel, outcome in ((bytes(32), Outcome.UNKNOWN_CHANNEL), (secret, Outcome.DENIED)):
        # In several messages: only one answer.
        request = ask(publisher, leader, [bytes(5000)] * 4, channel)
        expected.append(Appended(req=request, outcome=outcome))
        net.run(for_s=1)
    assert outcomes(publisher) == expected
    assert not leader.happened(AppendAsked)
    assert leader.engine.counters.get(*Reason.REFUSE_REPLICA_APPEND.counter) == 2


def test_what_one_peer_leaves_incomplete_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_APPEND_BYTES", 20_000)
    net, publisher, leader = make()
    request = ask(publisher, leader, [bytes(5000)] * 10)
    net.run(for_s=1)
    assert outcomes(publisher) == [Appended(req=request, outcome=Outcome.BACKPRESSURE)]
    small = ask(publisher, leader, [bytes(5000)] * 2)
    net.run(for_s=1)
    assert [asked.request for asked in leader.happened(AppendAsked)] == [small]


def test_what_all_peers_leave_incomplete_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_INCOMPLETE_BYTES", 12_000)
    net, publisher, leader = make()
    others = [net.create(f"other {number}") for number in range(2)]
    meet(leader, *others)
    # Each begins an append and does not go on.
    begun = Append(req=7, channel_id=ID, flags=AppendFlags.MORE, records=(bytes(5000),))
    for node in (publisher, *others):
        with node.turn() as (engine, _, out):
            engine.peers.require(leader.node_id).send_message(Subprotocol.APPEND, encode_append(begun), out)
        net.run(for_s=1)
    service = leader.engine.appending
    assert service._held_bytes == 2 * (5000 + appending.RECORD_COST)
    assert leader.engine.counters.get(*Reason.REFUSE_REPLICA_APPEND.counter) == 1
    for node in (publisher, *others):
        with node.turn() as (engine, now, out):
            engine.close(now, out)
    net.run(for_s=60)
    assert service._held_bytes == 0


def test_an_append_of_empty_records_is_bounded_and_only_one_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_APPEND_RECORDS", 100)
    net, publisher, leader = make()

    def send(request: int, records: int, flags: AppendFlags) -> None:
        message = Append(req=request, channel_id=ID, flags=flags, records=(b"",) * records)
        with publisher.turn() as (engine, _, out):
            engine.peers.require(leader.node_id).send_message(Subprotocol.APPEND, encode_append(message), out)
        net.run(for_s=1)

    for request in range(1, 21):
        send(request, 0, AppendFlags.MORE)
    assert len(leader.engine.appending._incomplete) == 1
    assert leader.engine.counters.get(*Reason.REPLICA_UNEXPECTED.counter) == 19
    send(20, 101, AppendFlags.MORE)
    send(20, 1, AppendFlags(0))
    assert leader.engine.counters.get(*Reason.REFUSE_REPLICA_APPEND.counter) == 1
    assert not leader.engine.appending._incomplete
    assert not leader.happened(AppendAsked)
    send(21, 100, AppendFlags(0))
    assert [len(asked.records) for asked in leader.happened(AppendAsked)] == [100]


def test_a_leader_that_is_lost_leaves_appends_unresolved() -> None:
    net, publisher, leader = make()
    first = ask(publisher, leader, [b"a"])
    net.run(for_s=1)
    with leader.turn() as (engine, now, out):
        engine.close(now, out)
    net.run(for_s=1)
    assert outcomes(publisher) == [Appended(req=first, outcome=Outcome.UNRESOLVED)]
    with pytest.raises(PeerError):
        ask(publisher, leader, [b"b"])


def test_a_new_session_and_a_failed_stream_leave_appends_unresolved() -> None:
    net, publisher, leader = make()
    first = ask(publisher, leader, [b"a"])
    with publisher.turn() as (engine, now, out):
        engine.appending.stream_failed(leader.node_id, Subprotocol.HISTORY, now, out)
        engine.appending.stream_failed(leader.node_id, Subprotocol.APPEND, now, out)
    second = ask(publisher, leader, [b"b"])
    with publisher.turn() as (engine, now, out):
        engine.appending.peer_up(engine.peers.require(leader.node_id), now, out)
    unresolved = [Appended(req=request, outcome=Outcome.UNRESOLVED) for request in (first, second)]
    assert outcomes(publisher) == unresolved
    net.run(for_s=1)


def test_limits_and_malformed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_ASKED", 1)
    net, publisher, leader = make()
    request = ask(publisher, leader, [b"a"])
    with pytest.raises(DeliveryError, match="1 appends already wait"):
        ask(publisher, leader, [b"b"])
    publisher.engine.appending.forget(request)
    ask(publisher, leader, [b"c"])
    with publisher.turn() as (engine, _, out):
        peer = engine.peers.require(leader.node_id)
        peer.send_message(Subprotocol.APPEND, b"\xff", out)
        peer.send_message(Subprotocol.APPEND, encode_append(Appended(req=1, outcome=Outcome.OK)), out)
    net.run(for_s=1)
    assert leader.engine.counters.get(*Reason.REPLICATION_MALFORMED.counter) == 1
    assert leader.engine.counters.get(*Reason.REPLICA_UNEXPECTED.counter) == 1


def test_a_peer_without_the_subprotocol_is_not_asked() -> None:
    _, publisher, leader = pair(right={"profile": False})
    with pytest.raises(PeerError, match="0x4d09 is not negotiated"):
        ask(publisher, leader, [b"a"])
