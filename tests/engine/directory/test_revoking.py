"""Revocations reach every node with the issuer, and cut what they name at once; nothing else is taken."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from meshbus.engine.base.notices import (
    Acked,
    DownReason,
    EndReason,
    HandshakeFailed,
    HistoryEnded,
    HistoryFault,
    HistoryWanted,
    PeerGone,
    Requested,
    RequestEnded,
    RevocationTaken,
    Unsubscribed,
)
from meshbus.engine.directory import revoking as subject
from meshbus.engine.directory.revoking import BEHIND_S, REPEAT_S, Revoking
from meshbus.engine.settings import SecureConfig, SecureMode
from meshbus.errors import AuthError, AuthFault, HandshakeError, LocalProtocolError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy import revocations as held
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.append import Append, AppendFlags, encode_append
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.revocation import (
    MAX_IDS,
    PARTS,
    Have,
    Listing,
    Record,
    Revocation,
    RevocationMessage,
    Revoked,
    Show,
    Want,
    encode_revocation,
)
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token
from tests.engine.fleet import CHANNEL, Wiretap, meet
from tests.seeds import for_each_seed

ISSUER, STRANGER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))
CARRIES: dict[str, Any] = {
    "carries": frozenset({Subprotocol.REVOCATION}),
    "policy_issuers": (ISSUER.entity_id,),
}
NAME = ChannelName(CHANNEL)


def service(node: FakeNode) -> Revoking:
    found = node.engine.revoking
    assert found is not None
    return found


def sign(what: Revoked, target: FakeNode | Identity | bytes, issuer: Identity = ISSUER) -> Revocation:
    if isinstance(target, FakeNode):
        target = target.engine.identity
    key = target.entity_id if isinstance(target, Identity) else target
    return Revocation.sign(issuer, what, key, at=1_700_000_000, reason="stolen")


def some(count: int) -> list[Revocation]:
    """Return records about nodes that nobody has met."""
    return [sign(Revoked.NODE, number.to_bytes(32, "big")) for number in range(1, count + 1)]


def revoke(node: FakeNode, record: Revocation) -> bool:
    with node.turn() as (_engine, now, out):
        return service(node).revoke(record, now, out)


def say(sender: FakeNode, receiver: FakeNode, *messages: RevocationMessage | bytes, run_s: float = 1.0) -> None:
    for message in messages:
        raw = message if isinstance(message, bytes) else encode_revocation(message)
        with sender.turn() as (engine, now, out):
            peer = engine.peers.require(receiver.node_id)
            engine.streams.send_reliable(peer, Subprotocol.REVOCATION, raw, now, out)
    sender.net.run(for_s=run_s)


def knows(node: FakeNode, *records: Revocation) -> bool:
    return all(record.id in node.engine.revocations for record in records)


def counted(node: FakeNode, reason: Reason) -> int:
    what, why = reason.counter
    return node.engine.counters.snapshot().get(what, {}).get(why, 0)


def line(net: FakeNet, count: int, **settings: Any) -> list[FakeNode]:
    nodes = [net.create(f"node {number}", **{**CARRIES, **settings}) for number in range(count)]
    for one, other in pairwise(nodes):
        meet(one, other)
    return nodes


def trio(**settings: Any) -> tuple[FakeNet, FakeNode, FakeNode, FakeNode]:
    """Return a node that revokes, and two others; all are connected."""
    net = FakeNet(3)
    boss, one, other = (net.create(name, **{**CARRIES, **settings}) for name in ("boss", "one", "other"))
    meet(boss, one, other)
    return net, boss, one, other


def subscribed(net: FakeNet, subscriber: FakeNode, publisher: FakeNode, **options: Any) -> None:
    request = subscriber.subscribe(publisher, CHANNEL, **options)
    net.run_until(lambda: any(ack.request == request for ack in subscriber.happened(Acked)))
    assert next(ack for ack in subscriber.happened(Acked) if ack.request == request).accepted


# ── how records travel ──────────────────────────────────────────────────────────────────────


def test_a_record_goes_from_neighbor_to_neighbor_and_to_those_who_come_later() -> None:
    net = FakeNet(4)
    nodes = line(net, 5)
    record = sign(Revoked.NODE, STRANGER)
    assert revoke(nodes[0], record)
    assert not revoke(nodes[0], record)
    net.run_until(lambda: all(knows(node, record) for node in nodes))
    assert [node.happened(RevocationTaken) for node in nodes[1:]] == [
        [RevocationTaken(record, before.node_id)] for before in nodes[:-1]
    ]
    assert nodes[0].happened(RevocationTaken) == [RevocationTaken(record, None)]
    late = net.create("late", **CARRIES)
    meet(late, nodes[4])
    net.run_until(lambda: knows(late, record))
    assert late.happened(RevocationTaken) == [RevocationTaken(record, nodes[4].node_id)]


def test_only_what_is_missing_is_fetched() -> None:
    net = FakeNet(5)
    records = some(300)
    one = net.create("one", **CARRIES, revocations=tuple(records[:290]))
    other = net.create("other", **CARRIES, revocations=tuple(records[10:]))
    meet(one, other)
    net.run_until(lambda: knows(one, *records) and knows(other, *records))
    assert len(one.happened(RevocationTaken)) == len(other.happened(RevocationTaken)) == 10
    assert counted(one, Reason.REVOCATION_KNOWN) == counted(other, Reason.REVOCATION_KNOWN) == 0
    tap = Wiretap(net)
    net.run(for_s=2 * REPEAT_S)
    # Equal sets: nothing but the digests, and their acknowledgements on streams of their own.
    assert 0 < tap.messages(Subprotocol.REVOCATION) <= 6


def test_who_catches_up_lets_its_neighbors_compare_instead_of_sending_everything() -> None:
    net = FakeNet(5)
    records = some(200)
    middle, last = line(net, 2)
    first = net.create("first", **CARRIES, revocations=tuple(records))
    meet(first, middle)
    began = net.clock.now
    net.run_until(lambda: knows(middle, *records) and knows(last, *records), timeout_s=REPEAT_S)
    assert net.clock.now - began < REPEAT_S / 4
    assert counted(first, Reason.REVOCATION_KNOWN) < len(records) / 2


def test_a_node_without_issuers_ignores_records_and_still_obeys_those_of_its_file() -> None:
    net = FakeNet(6)
    bad = Identity.generate(net.entropy("bad"))
    one, plain = net.create("one", **CARRIES), net.create("plain", revocations=(sign(Revoked.NODE, bad),))
    meet(one, plain)
    revoke(one, sign(Revoked.NODE, STRANGER))
    net.run(for_s=2 * REPEAT_S)
    assert plain.engine.revoking is None
    assert not one.engine.peers.require(plain.node_id).uses(Subprotocol.REVOCATION)
    assert len(plain.engine.revocations) == 1
    rover = net.create("rover", identity=bad)
    rover.connect(plain)
    net.run(for_s=30)
    assert plain.engine.peers.get(rover.node_id) is None
    assert counted(plain, Reason.REFUSE_REVOKED)


@for_each_seed(range(3))
def test_loss_and_a_partition_only_delay_it(seed: int) -> None:
    net = FakeNet(seed, path=FakePath(loss=0.3, latency_s=0.02, jitter_s=0.02))
    nodes = [net.create(f"node {number}", **CARRIES) for number in range(4)]
    for one, other in pairwise(nodes):
        one.connect(other)
        net.run_until(lambda one=one, other=other: one.speaks_profile_with(other), timeout_s=600)  # type: ignore[misc]
    first, second, third = some(3)
    revoke(nodes[0], first)
    net.run_until(lambda: all(knows(node, first) for node in nodes), timeout_s=600)
    net.partition(["node 0", "node 1"], ["node 2", "node 3"])
    revoke(nodes[0], second)
    revoke(nodes[3], third)
    net.run(for_s=120)  # so long that the two sides have failed for each other
    assert [knows(node, second) for node in nodes] == [True, True, False, False]
    net.heal()
    net.run_until(lambda: all(knows(node, first, second, third) for node in nodes), timeout_s=1200)


def test_records_of_an_issuer_that_was_removed_stay_in_effect_and_are_not_offered() -> None:
    net = FakeNet(8)
    old = sign(Revoked.NODE, STRANGER, Identity.from_seed(bytes([7]) * 32))
    one, other = net.create("one", **CARRIES, revocations=(old,)), net.create("other", **CARRIES)
    meet(one, other)
    net.run(for_s=2 * REPEAT_S)
    assert STRANGER.node_id in one.engine.revocations.nodes
    assert len(other.engine.revocations) == 0
    renewed = sign(Revoked.NODE, STRANGER)
    assert revoke(one, renewed)  # signed by an issuer of today, it is offered
    net.run_until(lambda: knows(other, renewed))
    assert list(one.engine.revocations) == [renewed]


def test_the_record_of_a_token_goes_a_day_after_the_token() -> None:
    net = FakeNet(9)
    one, other = line(net, 2)
    token = PermissionToken.issue(
        ISSUER, STRANGER.entity_id, Scope.SUBSCRIBE, CHANNEL, ttl_s=60, now=net.clock.unix_s, entropy=bytes
    )
    record = sign(Revoked.TOKEN, token.signed_bytes)
    revoke(one, record)
    net.run_until(lambda: knows(other, record))
    net.clock.unix_s += held.KEPT_S + 120
    net.run(for_s=REPEAT_S + 1)
    assert not knows(one, record)
    assert not knows(other, record)
    with pytest.raises(LocalProtocolError, match="do not revoke it"):
        revoke(one, record)
    say(one, other, Record(record))
    assert counted(other, Reason.REVOCATION_OVER) == 1


# ── what is refused ─────────────────────────────────────────────────────────────────────────


def test_a_record_given_to_a_node_must_be_signed_by_an_issuer_and_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    net, boss, *_ = trio()
    foreign, genuine = sign(Revoked.NODE, STRANGER, STRANGER), sign(Revoked.NODE, STRANGER)
    with pytest.raises(AuthError) as caught:
        revoke(boss, foreign)
    assert caught.value.fault is AuthFault.NOT_AUTHORIZED
    with pytest.raises(AuthError) as caught:
        revoke(boss, msgspec.structs.replace(genuine, reason="lost"))
    assert caught.value.fault is AuthFault.BAD_SIGNATURE
    monkeypatch.setattr(held, "MAX_REVOCATIONS", 0)
    with pytest.raises(LocalProtocolError, match="the limit"):
        revoke(boss, genuine)
    net.run(for_s=5)
    assert not len(boss.engine.revocations)


def test_records_of_others_are_refused_before_their_signature_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    _net, boss, one, _other = trio()
    checks: list[Revocation] = []
    genuine = Revocation.verify

    def verify(record: Revocation) -> bool:
        checks.append(record)
        return genuine(record)

    monkeypatch.setattr(Revocation, "verify", verify)
    known = sign(Revoked.NODE, STRANGER)
    say(boss, one, Record(known))
    assert len(checks) == 3  # once at each node
    checks.clear()
    foreign = [sign(Revoked.NODE, bytes([n]) * 32, STRANGER) for n in range(1, 50)]
    say(boss, one, *map(Record, foreign), Record(known), Record(known))
    assert not checks
    assert counted(one, Reason.REVOCATION_ISSUER) == 49
    assert counted(one, Reason.REVOCATION_KNOWN) >= 2
    say(boss, one, Record(msgspec.structs.replace(some(1)[0], reason="lost")))
    assert counted(one, Reason.REVOCATION_SIGNATURE) == 1
    say(boss, one, b"", b"\x09", b"\x05abc")
    assert counted(one, Reason.REVOCATION_MALFORMED) == 3
    assert len(one.engine.revocations) == 1


def test_bad_signatures_cost_their_sender_its_share_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    _net, boss, one, _other = trio()
    checks = 0

    def verify(_record: Revocation) -> bool:
        nonlocal checks
        checks += 1
        return False

    monkeypatch.setattr(Revocation, "verify", verify)
    flood = [Record(record) for record in some(3000)]
    say(boss, one, *flood, run_s=2.0)
    assert counted(one, Reason.REVOCATION_SIGNATURE) == checks
    assert checks < 2500  # a burst, and what two seconds add to it
    assert counted(one, Reason.PEER_SHARE) > 500
    assert len(one.engine.revocations) == 0


def test_a_full_set_takes_no_more_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack of docs/limits.md: an issuer that went mad fills the set, and nothing grows beyond it."""
    net, boss, one, _other = trio()
    first, *others = some(20)
    monkeypatch.setattr(held, "MAX_REVOCATIONS", 10)
    say(boss, one, Record(first), *map(Record, others))
    assert len(one.engine.revocations) == 10
    assert counted(one, Reason.REVOCATION_FULL) == 10
    say(boss, one, Record(first), *map(Record, others))  # replayed: nothing changes
    assert len(one.engine.revocations) == 10
    net.run(for_s=2 * REPEAT_S)
    assert len(one.engine.revocations) == 10


def test_more_records_than_a_share_of_time_come_in_several_rounds() -> None:
    net = FakeNet(7)
    records = tuple(some(2500))
    one, late = net.create("one", **CARRIES, revocations=records), net.create("late", **CARRIES)
    meet(one, late)
    began = net.clock.now
    net.run_until(lambda: len(late.engine.revocations) == len(records), timeout_s=REPEAT_S)
    assert BEHIND_S < net.clock.now - began < REPEAT_S / 2
    assert counted(late, Reason.PEER_SHARE)


def test_questions_are_answered_as_far_as_the_share_of_the_asker_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    net = FakeNet(8)
    records = tuple(some(200))
    one, other = net.create("one", **CARRIES, revocations=records), net.create("other", **CARRIES)
    meet(one, other)
    net.run_until(lambda: knows(other, *records))
    tap = Wiretap(net)
    ids = tuple(record.id for record in records[:MAX_IDS])
    say(other, one, Want(ids), Want((bytes(16),)), Show(0), Listing((bytes(16),)), Have((bytes(16),) * PARTS))
    # The records, a WANT for the id that nobody has; nothing for parts that are empty there.
    assert tap.messages(Subprotocol.REVOCATION, one, other) == MAX_IDS + 1
    monkeypatch.setattr(subject, "SERVE_US", 300_000.0)
    before = counted(one, Reason.PEER_SHARE)
    say(other, one, Show((1 << PARTS) - 1))
    assert counted(one, Reason.PEER_SHARE) == before + 1


def test_what_finds_no_room_in_a_stream_is_counted_and_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    net, boss, one, other = trio()
    record = sign(Revoked.NODE, STRANGER)
    with monkeypatch.context() as patched:
        patched.setattr("meshbus.engine.streams.traffic.MAX_MESSAGES", 0)
        revoke(boss, record)
        net.run(for_s=1)
    assert counted(boss, Reason.REVOCATION_UNSENT) == 2
    assert not knows(one, record)
    net.run_until(lambda: knows(one, record) and knows(other, record), timeout_s=REPEAT_S + 1)


# ── what a record cuts ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [SecureMode.OFF, SecureMode.AUTO])
def test_a_revoked_node_loses_its_open_sessions_everywhere_and_gets_no_other(mode: SecureMode) -> None:
    net, boss, one, rover = trio(secure=SecureConfig(mode=mode))
    net.run(for_s=1)
    assert (one.engine.peers.require(rover.node_id).link.epoch > 0) is (mode is SecureMode.AUTO)
    subscribed(net, rover, one)
    record = sign(Revoked.NODE, rover)
    revoke(boss, record)
    assert boss.engine.peers.get(rover.node_id) is None  # before the call returns
    net.run_until(lambda: knows(one, record))
    for node in (boss, one):
        assert PeerGone(rover.node_id, DownReason.REVOKED) in node.happened(PeerGone)
        assert node.engine.peers.get(rover.node_id) is None
        assert node.engine.directory.capabilities_of(rover.node_id) is None
    assert not one.engine.admission.roster.members(CHANNEL)
    net.run(for_s=1)
    assert knows(rover, record)  # it is told, and cuts nobody
    assert len(list(rover.engine.peers)) == 2
    one.publish(CHANNEL, [b"after"])
    before = counted(one, Reason.REFUSE_REVOKED)
    again = net.create("again", identity=rover.engine.identity, **CARRIES)  # after a restart, from another address
    again.connect(one)
    net.run(for_s=30)
    assert one.engine.peers.get(rover.node_id) is None
    assert counted(one, Reason.REFUSE_REVOKED) > before
    assert [failed.node_id for failed in again.happened(HandshakeFailed)] == [one.node_id]
    assert rover.payloads() == []
    with pytest.raises(HandshakeError, match="was revoked"):
        one.connect(rover)


def test_an_attempt_under_way_to_a_revoked_node_fails_and_one_of_it_gets_no_session() -> None:
    net, boss, *_ = trio()
    silent = net.create("silent")
    net.partition(["silent"])
    boss.connect(silent)
    revoke(boss, sign(Revoked.NODE, silent))
    failed = boss.happened(HandshakeFailed)
    assert [(one.node_id, "was revoked" in one.problem) for one in failed] == [(silent.node_id, True)]
    assert not boss.engine.handshakes.connecting
    # A handshake that was answered before the record came: its session is refused when it is proved.
    net.heal()
    late = net.create("late")
    late.connect(boss)
    net.run_until(lambda: bool(boss.engine.handshakes.expected_up(0.0)))
    before = counted(boss, Reason.REFUSE_REVOKED)
    revoke(boss, sign(Revoked.NODE, late))
    net.run(for_s=5)
    assert boss.engine.peers.get(late.node_id) is None
    assert counted(boss, Reason.REFUSE_REVOKED) > before


def test_a_session_through_a_relay_is_cut_at_both_ends_and_at_the_relay() -> None:
    net = FakeNet(11)
    far, relay, rover = (net.create(name, **CARRIES) for name in ("far", "relay", "rover"))
    meet(far, relay)
    meet(relay, rover)
    net.run(for_s=30)
    with rover.turn() as (engine, now, out):
        engine.connect(far.node_id, None, far.engine.public_key, now, out)
    net.run_until(lambda: rover.speaks_profile_with(far))
    assert far.engine.peers.require(rover.node_id).link.route
    subscribed(net, far, rover)
    rover.publish(CHANNEL, [b"before"])
    net.run(for_s=1)
    assert far.payloads() == [b"before"]
    revoke(far, sign(Revoked.NODE, rover))
    assert far.engine.peers.get(rover.node_id) is None
    net.run_until(lambda: relay.engine.peers.get(rover.node_id) is None)
    net.run(for_s=1)
    with pytest.raises(AuthError, match="was revoked"):
        rover.publish(CHANNEL, [b"after"])
    net.run(for_s=60)
    assert far.payloads() == [b"before"]
    assert counted(relay, Reason.STRANGER)  # its packets are those of nobody
    assert counted(relay, Reason.PINGWAVE_REVOKED)


def test_a_relay_carries_no_handshake_to_a_revoked_node() -> None:
    net = FakeNet(14)
    relay, far, rover = net.create("relay", **CARRIES), net.create("far"), net.create("rover")
    meet(far, relay)
    meet(relay, rover)
    net.run(for_s=20)
    revoke(relay, sign(Revoked.NODE, rover))
    with far.turn() as (engine, now, out):  # it knows of no revocation, and has a route still
        engine.connect(rover.node_id, None, rover.engine.public_key, now, out)
    net.run(for_s=3)
    assert counted(relay, Reason.REFUSE_REVOKED)
    assert far.engine.peers.get(rover.node_id) is None


def test_announcements_and_pingwaves_of_a_revoked_node_lead_nowhere() -> None:
    net = FakeNet(12)
    aware, plain, rover = net.create("aware", **CARRIES), net.create("plain"), net.create("rover")
    meet(aware, plain)
    meet(plain, rover)  # a node without issuers, which goes on to pass on what the revoked one says
    net.run(for_s=20)
    assert aware.engine.directory.capabilities_of(rover.node_id) is not None
    revoke(aware, sign(Revoked.NODE, rover))
    assert aware.engine.directory.capabilities_of(rover.node_id) is None
    with rover.turn() as (engine, now, out):
        engine.announcer.announce(engine.announcer.capabilities, now, out)
    net.run(for_s=60)
    assert counted(aware, Reason.ANNOUNCEMENT_REVOKED)
    assert counted(aware, Reason.PINGWAVE_REVOKED)
    assert aware.engine.directory.capabilities_of(rover.node_id) is None


def test_a_revoked_publisher_is_heard_by_nobody_and_keeps_its_sessions() -> None:
    net, boss, one, rover = trio()
    subscribed(net, one, rover)
    rover.publish(CHANNEL, [b"before"], reliable=True)
    net.run(for_s=1)
    record = sign(Revoked.PUBLISH, rover)
    with rover.turn() as (engine, now, out):
        engine.send(one.node_id, [b"direct"], now, out)
    net.run(for_s=1)
    say(boss, one, Record(record), run_s=0.0)
    net.run_until(lambda: knows(one, record))
    # It does not know yet, and publishes on: one packet, and many.
    rover.engine.revocations.publishers.discard(rover.node_id)
    peer = one.engine.peers.require(rover.node_id)
    assert peer.muted
    for burst in ([b"after"], [b"after"] * 5000):
        if rover.engine.node_id in rover.engine.revocations.publishers:
            rover.engine.revocations.publishers.clear()
        rover.publish(CHANNEL, burst)
        with rover.turn() as (engine, now, out):
            engine.send(one.node_id, [b"direct again"], now, out)
        net.run(for_s=1)
    assert one.payloads() == [b"before", b"direct"]
    assert counted(one, Reason.REVOKED_PUBLISHER) > 2
    assert one.engine.peers.get(rover.node_id) is peer
    subscribed(net, rover, one)  # it may still subscribe
    one.publish(CHANNEL, [b"for the rover"])
    net.run(for_s=1)
    assert b"for the rover" in rover.payloads()


def test_a_node_that_may_not_publish_any_more_refuses_to() -> None:
    net, boss, one, rover = trio()
    subscribed(net, one, rover)
    rover.publish(CHANNEL, [b"before"])
    record = sign(Revoked.PUBLISH, rover)
    revoke(boss, record)
    net.run_until(lambda: knows(rover, record))
    before = counted(rover, Reason.REFUSE_PUBLISH_DENIED)
    with pytest.raises(AuthError, match="was revoked"):
        rover.publish(CHANNEL, [b"after"])
    assert counted(rover, Reason.REFUSE_PUBLISH_DENIED) == before + 1
    assert not rover.engine.admission.authorizer.can_publish_locally(NAME, net.clock.now)
    net.run(for_s=1)
    assert one.payloads() == [b"before"]


def test_readings_of_a_revoked_publisher_end() -> None:
    net, boss, one, rover = trio()
    with one.turn() as (engine, now, out):
        engine.replays.open(engine.peers.require(rover.node_id), NAME, 0, now, out)
    net.run_until(lambda: bool(rover.happened(HistoryWanted)))
    record = sign(Revoked.PUBLISH, rover)
    say(boss, one, Record(record))
    assert [ended.fault for ended in one.happened(HistoryEnded)] == [HistoryFault.DENIED]
    with one.turn() as (engine, now, out), pytest.raises(PeerError, match="was revoked"):
        engine.replays.open(engine.peers.require(rover.node_id), NAME, 0, now, out)
    # What it sends all the same is dropped.
    say_history(rover, one)
    assert counted(one, Reason.REVOKED_PUBLISHER) == 1


def say_history(sender: FakeNode, receiver: FakeNode) -> None:
    from meshbus.wire.messages.history import Error, ErrorCode, encode_history

    with sender.turn() as (engine, now, out):
        peer = engine.peers.require(receiver.node_id)
        message = encode_history(Error(req=1, code=ErrorCode.CLOSED))
        engine.streams.send_reliable(peer, Subprotocol.HISTORY, message, now, out)
    sender.net.run(for_s=1)


def test_a_revoked_subscriber_leaves_the_roster_at_once_and_gets_nothing_that_waits() -> None:
    net, boss, one, rover = trio()
    subscribed(net, rover, one)
    subscribed(net, boss, one)
    one.publish(CHANNEL, [b"before"])
    net.run(for_s=1)
    one.publish(CHANNEL, [bytes(8000)] * 4000)  # far more than the credit of a stream
    traffic = one.engine.streams.traffic_of(one.engine.peers.require(rover.node_id))
    assert len(traffic.outbox)
    record = sign(Revoked.SUBSCRIBE, rover)
    revoke(one, record)
    assert len(traffic.outbox) == 0
    assert one.engine.admission.roster.members(CHANNEL) == [boss.node_id]
    assert Unsubscribed(rover.node_id, NAME, Reason.LAPSE_REVOKED.why) in one.happened(Unsubscribed)
    assert counted(one, Reason.LAPSE_REVOKED) == 1
    net.run(for_s=5)
    rover.forget()
    one.publish(CHANNEL, [b"after"])
    net.run(for_s=1)
    assert rover.payloads() == []
    assert b"after" in boss.payloads()
    request = rover.subscribe(one, CHANNEL)
    net.run(for_s=1)
    answer = next(ack for ack in rover.happened(Acked) if ack.request == request)
    assert (answer.accepted, answer.reason) == (False, AckReason.UNAUTHORIZED)
    assert counted(one, Reason.REFUSE_REVOKED)
    rover.publish(CHANNEL, [b"still allowed"])  # it may still publish


def test_readers_and_requests_of_a_revoked_subscriber_end() -> None:
    net, boss, one, rover = trio()
    with rover.turn() as (engine, now, out):
        engine.replays.open(engine.peers.require(one.node_id), NAME, 0, now, out)
    one.engine.requests.responder.serve(NAME)
    with rover.turn() as (engine, now, out):
        peer = engine.peers.require(one.node_id)
        engine.requests.requester.ask(peer, NAME, b"?", now, out, timeout_s=60)
    net.run_until(lambda: bool(one.happened(HistoryWanted) and one.happened(Requested)))
    record = sign(Revoked.SUBSCRIBE, rover)
    revoke(boss, record)
    net.run_until(lambda: knows(one, record))
    net.run(for_s=1)
    assert [ended.fault for ended in rover.happened(HistoryEnded)] == [HistoryFault.DENIED]
    assert [ended.reason for ended in one.happened(RequestEnded)] == [EndReason.REVOKED]
    assert len(one.engine.history) == len(one.engine.requests.responder) == 0
    with rover.turn() as (engine, now, out):
        peer = engine.peers.require(one.node_id)
        engine.requests.requester.ask(peer, NAME, b"?", now, out, timeout_s=60)
        engine.replays.open(peer, NAME, 0, now, out)
    net.run(for_s=1)
    assert counted(one, Reason.REFUSE_REQUEST_DENIED) == 1
    assert counted(one, Reason.REFUSE_HISTORY_DENIED) == 2


def test_a_leader_takes_no_append_of_a_revoked_publisher() -> None:
    net, boss, one, rover = trio()
    one.engine.appending.serve(bytes(32), NAME)
    record = sign(Revoked.PUBLISH, rover)
    revoke(boss, record)
    net.run_until(lambda: knows(one, record))
    with rover.turn() as (engine, now, out):
        peer = engine.peers.require(one.node_id)
        raw = encode_append(Append(req=1, channel_id=bytes(32), flags=AppendFlags.NONE, records=(b"x",)))
        engine.streams.send_reliable(peer, Subprotocol.APPEND, raw, now, out)
    net.run(for_s=1)
    assert counted(one, Reason.REFUSE_REPLICA_APPEND) == 1


def test_a_revoked_token_ends_the_subscription_that_rests_on_it() -> None:
    net = FakeNet(13)
    trust = {**CARRIES, "trusted_issuers": (ISSUER.entity_id,)}
    boss, one, rover = (net.create(name, **trust) for name in ("boss", "one", "rover"))
    meet(boss, one, rover)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=NAME, require_token=True))
    with one.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    leaked, good = (
        PermissionToken.issue(
            ISSUER,
            rover.engine.identity.entity_id,
            Scope.SUBSCRIBE,
            CHANNEL,
            ttl_s=3600,
            now=net.clock.unix_s,
            entropy=net.entropy(name),
        )
        for name in ("leaked", "good")
    )
    net.run(for_s=1)
    subscribed(net, rover, one, token=encode_token(leaked))
    record = sign(Revoked.TOKEN, leaked.signed_bytes)
    revoke(boss, record)
    net.run_until(lambda: knows(one, record))
    assert not one.engine.admission.roster.members(CHANNEL)
    assert counted(one, Reason.LAPSE_TOKEN) == 1
    request = rover.subscribe(one, CHANNEL, token=encode_token(leaked))
    net.run(for_s=1)
    assert not next(ack for ack in rover.happened(Acked) if ack.request == request).accepted
    assert counted(one, Reason.TOKEN_REVOKED) == 1
    subscribed(net, rover, one, token=encode_token(good))  # another token of the same node is fine
