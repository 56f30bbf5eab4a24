"""A node goes on under another key: peers keep its sessions, streams, subscriptions and rights, and refuse the old key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from meshbus.engine.base.notices import (
    Acked,
    DownReason,
    HandshakeFailed,
    HistoryWanted,
    NodeRenamed,
    PeerGone,
    Replied,
    Requested,
)
from meshbus.engine.directory.revoking import Revoking
from meshbus.engine.settings import SecureConfig, SecureMode
from meshbus.errors import AuthError, HandshakeError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity, noise_public_key
from meshbus.policy import revocations as held
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.revocation import Record, Revocation, Revoked, encode_revocation
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token
from tests.engine.fleet import CHANNEL, meet
from tests.seeds import for_each_seed

ISSUER, HEIR, SECOND = (Identity.from_seed(bytes((number,)) * 32) for number in (1, 2, 3))
CARRIES: dict[str, Any] = {
    "carries": frozenset({Subprotocol.REVOCATION, Subprotocol.ROTATION}),
    "secure": SecureConfig(mode=SecureMode.AUTO),
}
WITH_ISSUER: dict[str, Any] = {**CARRIES, "policy_issuers": (ISSUER.entity_id,)}
NAME = ChannelName(CHANNEL)


def service(node: FakeNode) -> Revoking:
    found = node.engine.revoking
    assert found is not None
    return found


def record_of(old: FakeNode | Identity, new: Identity = HEIR, issuer: Identity | None = None) -> Revocation:
    identity = old.engine.identity if isinstance(old, FakeNode) else old
    named = None if issuer is None else issuer.entity_id
    record = Revocation.succeed(identity, new, at=1_700_000_000, reason="new key", issuer=named)
    return record if issuer is None else record.endorse(issuer)


def succeed(node: FakeNode, new: Identity = HEIR, issuer: Identity | None = None) -> Revocation:
    """Let a node go on under another key."""
    record = record_of(node, new, issuer)
    with node.turn() as (_engine, now, out):
        service(node).succeed(new, record, now, out)
    return record


def counted(node: FakeNode, reason: Reason) -> int:
    what, why = reason.counter
    return node.engine.counters.snapshot().get(what, {}).get(why, 0)


def fleet(net: FakeNet, *names: str, **settings: Any) -> list[FakeNode]:
    nodes = [net.create(name, **{**CARRIES, **settings}) for name in names]
    meet(*nodes)
    net.run_until(lambda: all(signed(one, other) for one in nodes for other in nodes if one is not other))
    return nodes


def signed(node: FakeNode, other: FakeNode) -> bool:
    return node.engine.secure.is_signed(other.node_id)


def subscribed(net: FakeNet, subscriber: FakeNode, publisher: FakeNode, **options: Any) -> None:
    request = subscriber.subscribe(publisher, CHANNEL, **options)
    net.run_until(lambda: any(ack.request == request for ack in subscriber.happened(Acked)))
    assert next(ack for ack in subscriber.happened(Acked) if ack.request == request).accepted


def test_sessions_streams_and_subscriptions_go_on_under_the_new_key() -> None:
    net = FakeNet(3)
    rover, dock, base = fleet(net, "rover", "dock", "base")
    subscribed(net, dock, rover)
    subscribed(net, rover, base)
    before = {node: node.engine.peers.require(rover.node_id).link for node in (dock, base)}
    old, old_identity = rover.node_id, Identity.from_public(rover.engine.identity.entity_id)
    rover.publish(CHANNEL, [b"one"], reliable=True)
    net.run(for_s=1.0)
    succeed(rover)
    base.publish(CHANNEL, [b"between"], reliable=True)
    rover.publish(CHANNEL, [b"two"], reliable=True)
    net.run_until(lambda: all(signed(node, rover) and signed(rover, node) for node in (dock, base)))
    assert rover.node_id == HEIR.node_id
    for node, link in before.items():
        assert node.engine.peers.get(old) is None
        assert node.engine.peers.require(HEIR.node_id).link is link  # the same session, never an unprotected moment
        assert node.happened(NodeRenamed) == [NodeRenamed(old, HEIR.node_id)]
        assert node.happened(PeerGone) == []
        assert dict(node.engine.secure.pins)[HEIR.node_id] == HEIR.entity_id
        assert old not in node.engine.secure.pins
        assert node.engine.mesh.table.lookup(HEIR.node_id, net.clock.now) is not None
    rover.publish(CHANNEL, [b"three"], reliable=True)
    base.publish(CHANNEL, [b"after"], reliable=True)
    net.run(for_s=2.0)
    assert dock.payloads(CHANNEL) == [b"one", b"two", b"three"]
    assert rover.payloads(CHANNEL) == [b"between", b"after"]
    claims = dock.engine.peers.require(HEIR.node_id).claims
    assert claims.entity_id == HEIR.entity_id
    # The old key is refused, in both directions.
    key = noise_public_key(old_identity.entity_id)
    with (
        dock.turn() as (engine, now, out),
        pytest.raises(HandshakeError, match=f"revoked, and {HEIR.entity_id.hex()} succeeded it"),
    ):
        engine.connect(old, rover.name, key, now, out)


def test_a_copy_of_the_old_key_gets_no_session() -> None:
    net = FakeNet(4)
    rover, dock = fleet(net, "rover", "dock")
    stolen = Identity.from_seed(rover.engine.identity.seed)
    succeed(rover)
    net.run_until(lambda: signed(dock, rover))
    thief = net.create("thief", identity=stolen, **CARRIES)
    thief.connect(dock)
    net.run(for_s=20.0)
    assert dock.engine.peers.get(stolen.node_id) is None
    assert thief.happened(HandshakeFailed)
    assert counted(dock, Reason.REFUSE_REVOKED) > 0


@for_each_seed(range(6))
def test_nothing_is_lost_or_repeated_on_lossy_paths(seed: int) -> None:
    net = FakeNet(seed)
    rover, *others = fleet(net, "rover", "one", "two", "three", "four")
    for node in others:
        subscribed(net, node, rover)
        subscribed(net, rover, node)
    for node in others:
        net.set_path("rover", node.name, FakePath(latency_s=0.01, jitter_s=0.01, loss=0.1))
    sent: dict[FakeNode, list[bytes]] = {node: [] for node in (rover, *others)}
    for turn in range(60):
        for node, events in sent.items():
            events.append(f"{node.name} {turn}".encode())
            node.publish(CHANNEL, events[-1:], reliable=True)
        net.run(for_s=0.05)
        if turn == 25:
            succeed(rover)
    net.run(for_s=30.0)
    for node in others:
        assert node.payloads(CHANNEL) == sent[rover]
        assert node.happened(PeerGone) == []
        assert signed(node, rover)
    for node in others:
        got = [event for event in rover.payloads(CHANNEL) if event.startswith(node.name.encode())]
        assert got == sent[node]


def test_the_new_key_has_to_sign_the_session_in_time() -> None:
    """Whoever holds the session and not the new key is cut."""
    net = FakeNet(5)
    rover, dock = fleet(net, "rover", "dock")
    old = rover.node_id
    record = record_of(rover)
    with dock.turn() as (_engine, now, out):
        service(dock).revoke(record, now, out)
    assert dock.engine.peers.get(old) is None
    net.run(for_s=dock.engine.settings.secure.patience_s + 1.0)
    assert dock.happened(PeerGone) == [PeerGone(HEIR.node_id, DownReason.REVOKED)]
    assert counted(dock, Reason.REFUSE_UNSIGNED) == 1
    assert len(dock.engine.peers) == 0


def test_a_node_that_was_away_learns_of_it_and_reaches_the_heir() -> None:
    net = FakeNet(6)
    rover, dock, base = fleet(net, "rover", "dock", "base")
    subscribed(net, base, rover)
    old = rover.node_id
    net.partition(["base"], ["rover", "dock"])
    succeed(rover)
    net.run_until(lambda: signed(dock, rover))
    net.heal()
    net.run_until(lambda: HEIR.node_id in base.engine.secure.pins, timeout_s=120.0)
    assert old in base.engine.revocations.nodes
    if base.engine.peers.get(HEIR.node_id) is None:
        base.connect(rover)
    net.run_until(lambda: signed(base, rover) and signed(rover, base), timeout_s=120.0)
    rover.publish(CHANNEL, [b"again"], reliable=True)
    net.run_until(lambda: base.payloads(CHANNEL) == [b"again"])


def test_a_peer_behind_a_relay_follows() -> None:
    net = FakeNet(7)
    rover, relay, far = (net.create(name, **CARRIES) for name in ("rover", "relay", "far"))
    meet(rover, relay)
    meet(relay, far)
    net.run(for_s=12.0)
    with far.turn() as (engine, now, out):
        engine.connect(rover.node_id, None, rover.engine.public_key, now, out)
    net.run_until(lambda: signed(far, rover) and signed(rover, far))
    subscribed(net, far, rover)
    subscribed(net, rover, far)
    rover.publish(CHANNEL, [b"one"], reliable=True)
    net.run(for_s=2.0)
    succeed(rover)
    net.run_until(lambda: signed(far, rover) and signed(rover, far))
    rover.publish(CHANNEL, [b"two"], reliable=True)
    far.publish(CHANNEL, [b"three"], reliable=True)
    net.run(for_s=5.0)
    assert far.payloads(CHANNEL) == [b"one", b"two"]
    assert rover.payloads(CHANNEL) == [b"three"]
    assert far.happened(PeerGone) == []


def test_chains_of_keys_lead_to_the_last_one() -> None:
    net = FakeNet(8)
    rover, dock, base = fleet(net, "rover", "dock", "base")
    old = rover.node_id
    net.partition(["base"], ["rover", "dock"])
    succeed(rover)
    net.run_until(lambda: signed(dock, rover))
    succeed(rover, SECOND)
    net.run_until(lambda: signed(dock, rover))
    assert rover.node_id == SECOND.node_id
    net.heal()
    net.run_until(lambda: SECOND.node_id in base.engine.secure.pins, timeout_s=120.0)
    assert base.engine.revocations.heir_id(old) == SECOND.node_id
    assert {old, HEIR.node_id} <= base.engine.revocations.nodes


def test_tokens_of_the_old_key_count_for_the_heir() -> None:
    net = FakeNet(9)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=NAME, require_token=True))
    rover, dock = fleet(net, "rover", "dock", trusted_issuers=(ISSUER.entity_id,))
    with dock.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    token = PermissionToken.issue(
        ISSUER, rover.engine.identity.entity_id, Scope.SUBSCRIBE, CHANNEL, ttl_s=3600, now=1_700_000_000, entropy=bytes
    )
    own = dock.engine.identity.entity_id
    publishes = PermissionToken.issue(ISSUER, own, Scope.PUBLISH, CHANNEL, ttl_s=3600, now=1_700_000_000, entropy=bytes)
    dock.engine.tokens.insert(publishes)
    subscribed(net, rover, dock, token=encode_token(token))
    succeed(rover)
    net.run_until(lambda: signed(dock, rover))
    net.run(for_s=5.0)
    dock.publish(CHANNEL, [b"still"], reliable=True)
    net.run_until(lambda: rover.payloads(CHANNEL) == [b"still"])
    subscribed(net, rover, dock, token=encode_token(token))
    assert dock.engine.admission.roster.members(CHANNEL) == [HEIR.node_id]


def test_where_the_fleet_has_issuers_one_of_them_has_to_sign() -> None:
    net = FakeNet(10)
    rover, dock = fleet(net, "rover", "dock", **WITH_ISSUER)
    with pytest.raises(AuthError, match="policy_issuers"):
        succeed(rover)
    assert rover.node_id != HEIR.node_id
    stranger = net.create(
        "stranger", **CARRIES
    )  # it has no issuers, so that it takes the record, and passes it on in vain
    meet(stranger, rover)
    meet(stranger, dock)
    with stranger.turn() as (_engine, now, out):
        service(stranger).revoke(record_of(rover), now, out)
    net.run(for_s=3.0)
    assert counted(dock, Reason.REVOCATION_ISSUER) > 0
    assert len(dock.engine.revocations) == 0
    succeed(rover, HEIR, ISSUER)
    net.run_until(lambda: signed(dock, rover))


def test_without_keys_of_their_own_two_nodes_begin_again() -> None:
    net = FakeNet(11)
    rover, dock = (net.create(name, **{**CARRIES, "secure": SecureConfig()}) for name in ("rover", "dock"))
    meet(rover, dock)
    old = rover.node_id
    succeed(rover)
    net.run_until(lambda: dock.happened(PeerGone) != [])
    assert dock.happened(PeerGone)[0] == PeerGone(old, DownReason.REVOKED)
    assert dock.engine.peers.get(HEIR.node_id) is None


def test_a_lost_right_is_lost_under_the_new_key() -> None:
    net = FakeNet(12)
    rover, dock = fleet(net, "rover", "dock", **WITH_ISSUER)
    subscribed(net, dock, rover)
    no_publish = Revocation.sign(ISSUER, Revoked.PUBLISH, rover.engine.identity.entity_id, at=1, reason="wrong poses")
    with dock.turn() as (_engine, now, out):
        service(dock).revoke(no_publish, now, out)
    net.run(for_s=1.0)
    succeed(rover, HEIR, ISSUER)
    net.run_until(lambda: signed(dock, rover))
    assert dock.engine.peers.require(HEIR.node_id).muted
    with pytest.raises(AuthError, match="revoked"):
        rover.publish(CHANNEL, [b"no"])


def test_a_second_heir_gains_nothing_and_takes_the_inheritance_from_the_first() -> None:
    """What a thief of the old key can still do, in a fleet without issuers."""
    net = FakeNet(13)
    rover, dock, base = fleet(net, "rover", "dock", "base")
    stolen = Identity.from_seed(rover.engine.identity.seed)
    succeed(rover)
    net.run_until(lambda: signed(dock, rover) and signed(base, rover))
    with base.turn() as (_engine, now, out):
        service(base).revoke(record_of(stolen, SECOND), now, out)
    net.run_until(lambda: all(len(node.engine.revocations) == 2 for node in (rover, dock, base)))
    for node in (rover, dock, base):
        assert node.engine.revocations.heir_of(stolen.entity_id) is None
        assert node.engine.revocations.earlier_of(HEIR.entity_id) == []
    assert all(signed(node, rover) for node in (dock, base))  # its own session and pin are its own
    assert HEIR.node_id in dock.engine.secure.pins
    assert SECOND.node_id not in dock.engine.secure.pins


def test_two_keys_that_succeed_each_other_are_both_refused() -> None:
    net = FakeNet(14)
    rover, dock = fleet(net, "rover", "dock")
    old = Identity.from_seed(rover.engine.identity.seed)
    succeed(rover)
    net.run_until(lambda: signed(dock, rover))
    with dock.turn() as (_engine, now, out):
        service(dock).revoke(record_of(HEIR, old), now, out)
    assert len(dock.engine.peers) == 0
    assert {old.node_id, HEIR.node_id} <= dock.engine.revocations.nodes


def test_a_member_cannot_fill_the_list_with_keys_that_it_invents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MAX_UNENDORSED", 3)
    net = FakeNet(15)
    one, other = fleet(net, "one", "other", **WITH_ISSUER)
    member, victim = fleet(net, "member", "victim")
    invented = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(1, 12)]
    records = [record_of(*pair) for pair in pairwise(invented)]
    meet(member, one)
    for record in records:
        for receiver in (victim, one):
            with member.turn() as (engine, now, out):
                message = encode_revocation(Record(record))
                peer = engine.peers.require(receiver.node_id)
                engine.streams.send_reliable(peer, Subprotocol.REVOCATION, message, now, out)
        net.run(for_s=1.0)
    assert len(victim.engine.revocations) == 3
    assert counted(victim, Reason.REVOCATION_FULL) == len(records) - 3
    assert len(one.engine.revocations) == len(other.engine.revocations) == 0
    assert counted(one, Reason.REVOCATION_ISSUER) == len(records)


def test_requests_readers_and_prefixes_go_on() -> None:
    net = FakeNet(16)
    rover, dock = fleet(net, "rover", "dock")
    with dock.turn() as (engine, now, out):
        engine.requests.responder.serve(NAME)
        engine.open_channel(NAME, now, out)
    with rover.turn() as (engine, now, out):
        engine.requests.responder.serve(NAME)
        engine.open_channel(NAME, now, out)
        engine.interest(dock.node_id, "sensors/", now, out)
        asked = engine.requests.requester.ask(engine.peers.require(dock.node_id), NAME, b"?", now, out, timeout_s=30.0)
    with dock.turn() as (engine, now, out):
        engine.interest(rover.node_id, "sensors/", now, out)
        back = engine.requests.requester.ask(engine.peers.require(rover.node_id), NAME, b"?", now, out, timeout_s=30.0)
    net.run(for_s=1.0)
    (here,), (there,) = dock.happened(Requested), rover.happened(Requested)
    succeed(rover)
    net.run_until(lambda: signed(dock, rover))
    with dock.turn() as (engine, now, out):
        assert engine.requests.responder.reply(here.node_id, here.request, b"yes", now, out)
    with rover.turn() as (engine, now, out):
        assert engine.requests.responder.reply(there.node_id, there.request, b"no", now, out)
    dock.publish(CHANNEL, [b"of dock"], reliable=True)
    rover.publish(CHANNEL, [b"of rover"], reliable=True)
    net.run(for_s=2.0)
    assert [(one.request, one.payload) for one in rover.happened(Replied)] == [(asked, b"yes")]
    assert [(one.request, one.payload) for one in dock.happened(Replied)] == [(back, b"no")]
    assert (rover.payloads(CHANNEL), dock.payloads(CHANNEL)) == ([b"of dock"], [b"of rover"])
    with dock.turn() as (engine, now, out):  # the lease of the interest is renewed under the new id
        assert engine.following.followed(HEIR.node_id)
    net.run(for_s=120.0)
    rover.publish(CHANNEL, [b"later"], reliable=True)
    net.run(for_s=1.0)
    assert dock.payloads(CHANNEL)[-1] == b"later"


def test_a_large_event_and_a_reading_that_are_under_way_end_well() -> None:
    net = FakeNet(17)
    rover, dock = fleet(net, "rover", "dock")
    net.set_path("rover", "dock", FakePath(latency_s=0.02, bandwidth=2e6))
    subscribed(net, dock, rover)
    subscribed(net, rover, dock)
    large = bytes(range(256)) * 2000
    rover.publish(CHANNEL, [large], reliable=True)
    dock.publish(CHANNEL, [large], reliable=True)
    with dock.turn() as (engine, now, out):
        engine.replays.open(engine.peers.require(rover.node_id), NAME, 0, now, out)
    net.run(for_s=0.1)
    assert dock.payloads(CHANNEL) == []
    (wanted,) = rover.happened(HistoryWanted)
    succeed(rover)
    net.run_until(lambda: dock.payloads(CHANNEL) == [large] == rover.payloads(CHANNEL))
    assert wanted.node_id == dock.node_id
    (place,) = {dock.engine.replays.place_of(number) for number in (1,)}
    assert place == (HEIR.node_id, NAME)
