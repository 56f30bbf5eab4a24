from __future__ import annotations

from typing import Any

import msgspec
import pytest

from meshbus.engine.base.notices import Negotiated, PeerInsecure, PeerSecured
from meshbus.engine.base.packets import Output
from meshbus.engine.session import pins as pins_module
from meshbus.engine.session.link import IN_THE_CLEAR
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.session.peer import MAX_HELD
from meshbus.engine.session.secure import OVERLAP_S
from meshbus.engine.settings import HandshakeConfig, SecureConfig, SecureMode
from meshbus.errors import PartialDelivery
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import columns_of, encode_frames
from meshbus.wire.header import Header
from meshbus.wire.messages.manifest import decode_manifest, encode_manifest
from meshbus.wire.messages.secure import Accept, Done, Offer, decode_secure, encode_secure
from meshbus.wire.subprotocol import SubprotocolManifest
from tests.engine.fleet import CHANNEL, answer, meet, numbered, subscribed
from tests.engine.middle import Read, TappedNet, framed, frames

AUTO = SecureConfig(mode=SecureMode.AUTO)
REQUIRE = SecureConfig(mode=SecureMode.REQUIRE)
PATIENCE_S = AUTO.patience_s
SECRET = b"the position of the convoy"


def two(net: FakeNet, left: SecureConfig = AUTO, right: SecureConfig = AUTO) -> tuple[FakeNode, FakeNode]:
    return net.create("left", secure=left), net.create("right", secure=right)


def are_secure(one: FakeNode, other: FakeNode) -> bool:
    links = [node.engine.peers.get(peer.node_id) for node, peer in ((one, other), (other, one))]
    return all(peer is not None and peer.link.epoch > 0 for peer in links)


def secured(net: FakeNet, one: FakeNode, other: FakeNode) -> None:
    one.connect(other)
    net.run_until(lambda: are_secure(one, other) and one.speaks_profile_with(other))
    net.run(for_s=0.1)


def knowing(node: FakeNode, *others: FakeNode, mode: SecureMode = SecureMode.AUTO) -> SecureConfig:
    """Return the settings of a node that has seen others secure."""
    return SecureConfig(mode=mode, pins={other.node_id: other.engine.identity.entity_id for other in others})


def acquainted(net: FakeNet) -> tuple[FakeNode, FakeNode]:
    """Return two nodes without a session that have seen each other secure before."""
    first, second = two(net)
    return tuple(  # type: ignore[return-value]
        net.create(node.name, secure=knowing(node, other)) for node, other in ((first, second), (second, first))
    )


def link_of(node: FakeNode, other: FakeNode) -> Any:
    return node.engine.peers.require(other.node_id).link


def count(node: FakeNode, reason: Reason) -> int:
    return node.engine.counters.get(*reason.counter)


# ── what it is for ──────────────────────────────────────────────────────────────────────────


def test_a_session_becomes_secure_by_itself_and_both_sides_report_and_pin_it() -> None:
    net = FakeNet()
    left, right = two(net)
    secured(net, left, right)
    for node, other in ((left, right), (right, left)):
        entity_id = other.engine.identity.entity_id
        assert node.happened(PeerSecured) == [PeerSecured(other.node_id, entity_id, pinned=True)]
        assert node.engine.secure.pins.get(other.node_id) == entity_id
        assert not node.happened(PeerInsecure)
        assert node.engine.counters.get("secure", "established") == 1
    mine, theirs = link_of(left, right), link_of(right, left)
    assert mine.sealer.session_id == theirs.sealer.session_id != mine.session_id == theirs.session_id


def test_holders_of_the_mesh_key_read_plain_sessions_and_not_secure_ones() -> None:
    for mode, readable in ((SecureMode.OFF, True), (SecureMode.AUTO, False)):
        net = TappedNet()
        left, right = two(net, SecureConfig(mode=mode), SecureConfig(mode=mode))
        meet(left, right)
        subscribed(right, left)
        left.publish(CHANNEL, [SECRET])
        left.publish(CHANNEL, [SECRET], reliable=True)
        net.run(for_s=1)
        assert right.payloads(CHANNEL) == [SECRET, SECRET]
        heard = [event for packet in net.read for event in frames(packet.payload)]
        assert (SECRET in heard) is readable, mode
        if not readable:
            assert {packet.header.subprotocol_id for packet in net.read} <= IN_THE_CLEAR
            assert any(header.subprotocol_id == Subprotocol.EVENTS for header in net.unread)


def test_nothing_of_an_application_is_sent_in_the_clear_to_a_peer_that_was_secure_before() -> None:
    net = TappedNet()
    left, right = acquainted(net)
    left.connect(right)
    net.run_until(lambda: right.engine.peers.get(left.node_id) is not None)
    right.subscribe(left, CHANNEL)  # at once: nothing is agreed yet
    net.run(for_s=2)
    left.publish(CHANNEL, [SECRET])
    net.run(for_s=1)
    assert right.payloads(CHANNEL) == [SECRET]
    assert {packet.header.subprotocol_id for packet in net.read} <= IN_THE_CLEAR
    assert count(left, Reason.INSECURE) == count(right, Reason.INSECURE) == 0


def test_a_session_through_a_relay_is_secure_between_its_ends_with_large_events_and_new_keys() -> None:
    net = FakeNet(6)
    config = SecureConfig(mode=SecureMode.AUTO, rekey_s=4.0)
    relay, (left, right) = net.create("relay", secure=config), two(net, config, config)
    net.set_path("left", "right", FakePath(loss=1.0))
    for node in (left, right):
        node.connect(relay)
    net.run(for_s=12)
    with left.turn() as (engine, now, out):
        engine.connect(right.node_id, None, right.engine.public_key, now, out)
    net.run_until(lambda: left.speaks_profile_with(right) and are_secure(left, right))
    assert link_of(left, right).route
    subscribed(right, left)
    events = [bytes([number]) * 200_000 for number in range(12)]
    for event in events:
        left.publish(CHANNEL, [event], reliable=True)
        net.run(for_s=1)
    net.run_until(lambda: right.payloads(CHANNEL) == events)
    assert link_of(left, right).epoch > 1
    # The relay has sessions of its own with both, and keys of none other.
    mine = {id_ for node in (left, right) for id_ in link_of(relay, node).session_ids}
    assert not mine & {*link_of(left, right).session_ids, *link_of(right, left).session_ids}


def test_a_plain_peer_notices_nothing() -> None:
    net = TappedNet()
    left, right = two(net, right=SecureConfig(mode=SecureMode.OFF))
    meet(left, right)
    subscribed(right, left)
    left.publish(CHANNEL, [SECRET])
    net.run(for_s=PATIENCE_S + 1)
    assert right.payloads(CHANNEL) == [SECRET]
    assert not left.happened(PeerInsecure)
    assert Subprotocol.SECURE not in {packet.header.subprotocol_id for packet in net.read}


def test_peers_that_are_configured_as_plain_stay_plain_whatever_they_announce() -> None:
    net = FakeNet()
    left, right = two(net)
    for node, other in ((left, right), (right, left)):
        node.engine.negotiator.configure(other.node_id, Profile.PLAIN)
    left.connect(right, profile=Profile.PLAIN)
    net.run(for_s=1)
    subscribed(right, left)
    left.publish(CHANNEL, [SECRET])
    net.run(for_s=PATIENCE_S + 1)
    assert right.payloads(CHANNEL) == [SECRET]
    assert not left.happened(PeerInsecure)


# ── somebody in the middle, with the mesh key ───────────────────────────────────────────────


def with_other_share(packet: Read, identity: Identity | None = None) -> bytes:
    """Put a key of our own into an exchange; with an identity, sign it with that."""
    if packet.header.subprotocol_id != Subprotocol.SECURE:
        return packet.payload
    message = decode_secure(frames(packet.payload)[0])
    if isinstance(message, Done):
        return packet.payload
    ours = msgspec.structs.replace(message, ephemeral=bytes(range(32)))
    if identity is not None:
        ours = msgspec.structs.replace(ours, entity_id=identity.entity_id, signature=identity.sign(b"anything"))
    return framed(encode_secure(ours))


@pytest.mark.parametrize("kind", [Offer, Accept])
@pytest.mark.parametrize("own_identity", [False, True])
def test_a_key_that_was_exchanged_on_the_way_is_detected(kind: type, own_identity: bool) -> None:
    net = TappedNet()
    left, right = two(net)
    mallory = Identity.generate(net.entropy("mallory")) if own_identity else None

    def change(packet: Read) -> bytes:
        is_kind = packet.header.subprotocol_id == Subprotocol.SECURE and isinstance(
            decode_secure(frames(packet.payload)[0]), kind
        )
        return with_other_share(packet, mallory) if is_kind else packet.payload

    net.change = change
    left.connect(right)
    net.run(for_s=PATIENCE_S + 3)
    victim = right if kind is Offer else left
    reason = Reason.SECURE_WRONG_ENTITY if own_identity else Reason.SECURE_BAD_SIGNATURE
    assert count(victim, reason) > 0
    for node in (left, right):
        assert len(node.happened(PeerInsecure)) == 1
        assert count(node, Reason.REFUSE_DOWNGRADE) == 1
    assert not are_secure(left, right)
    # When he goes away, the exchange succeeds after all.
    net.change = lambda packet: packet.payload
    net.run_until(lambda: are_secure(left, right))


def without(subprotocol_id: int) -> Any:
    return lambda packet: None if packet.header.subprotocol_id == subprotocol_id else packet.payload


def stripped_manifest(packet: Read) -> bytes:
    if packet.header.subprotocol_id != Subprotocol.NEGOTIATION:
        return packet.payload
    manifest = decode_manifest(frames(packet.payload)[0])
    left = tuple(entry for entry in manifest.entries if entry.id != Subprotocol.SECURE)
    return framed(encode_manifest(SubprotocolManifest(left)))


@pytest.mark.parametrize(
    "change",
    [without(Subprotocol.CAPABILITY), without(Subprotocol.NEGOTIATION), without(Subprotocol.SECURE), stripped_manifest],
    ids=["announcement", "negotiation", "exchange", "manifest"],
)
def test_what_is_taken_away_on_the_way_leads_to_no_silent_downgrade(change: Any) -> None:
    net = TappedNet()
    left, right = acquainted(net)
    net.change = change
    left.connect(right)
    net.run_until(lambda: right.engine.peers.get(left.node_id) is not None)
    right.subscribe(left, CHANNEL)
    net.run(for_s=PATIENCE_S + 1)
    for node, other in ((left, right), (right, left)):
        (reported,) = node.happened(PeerInsecure)
        assert reported.node_id == other.node_id
        assert "pins reset" in reported.problem
        assert count(node, Reason.REFUSE_DOWNGRADE) == 1
    assert {packet.header.subprotocol_id for packet in net.read} <= IN_THE_CLEAR
    assert count(right, Reason.UNSENT_INSECURE) > 0


def test_a_stripped_manifest_is_refused_at_the_first_contact_too_because_the_announcement_is_signed() -> None:
    net = TappedNet()
    left, right = two(net)
    net.change = stripped_manifest
    left.connect(right)
    net.run(for_s=PATIENCE_S + 3)
    assert all(len(node.happened(PeerInsecure)) == 1 for node in (left, right))


def test_data_that_somebody_else_sends_in_the_name_of_a_secure_peer_is_refused() -> None:
    net = TappedNet()
    left, right = acquainted(net)
    secured(net, left, right)
    subscribed(right, left)

    def forge(subprotocol_id: int, counter: int, copies: int = 1) -> None:
        for number in range(counter, counter + copies):
            nonce = bytes(4) + number.to_bytes(8, "little")
            header = Header(subprotocol_id=subprotocol_id, nonce=nonce, event_count=1)
            packet = net.seal(left, link_of(right, left).session_id, header, framed(SECRET))
            FakeNet.inject(net, left.name, right.name, packet)
        net.run(for_s=0.01)

    # While packets under the old keys may be on the way: one by one, in a run, and what would decide what comes next.
    forge(Subprotocol.EVENTS, 100)
    forge(Subprotocol.EVENTS, 200, copies=8)
    forge(Subprotocol.MEMBERSHIP, 300)
    forge(Subprotocol.NEGOTIATION, 400)
    forge(Subprotocol.SECURE, 500)
    assert count(right, Reason.INSECURE) == 1 + 8 + 3
    # Afterwards the keys are gone.
    net.run(for_s=OVERLAP_S)
    forge(Subprotocol.EVENTS, 600)
    assert count(right, Reason.INSECURE) == 1 + 8 + 3
    assert count(right, Reason.UNKNOWN_SESSION) == 1
    assert right.payloads() == []


# ── require, pins ───────────────────────────────────────────────────────────────────────────


def test_a_node_that_requires_it_exchanges_no_data_with_others() -> None:
    net = FakeNet()
    strict, other = two(net, REQUIRE, SecureConfig(mode=SecureMode.OFF))
    other.connect(strict)
    net.run_until(lambda: other.has_session_with(strict))
    request = other.subscribe(strict, CHANNEL)
    net.run(for_s=PATIENCE_S + 1)
    (reported,) = strict.happened(PeerInsecure)
    assert "'require'" in reported.problem
    assert count(strict, Reason.INSECURE) > 0
    acked = answer(other, request)
    assert acked is not None
    assert acked.timed_out


def test_a_publish_to_a_peer_that_is_not_secure_fails_with_the_reason() -> None:
    net = FakeNet()
    strict, other = two(net, REQUIRE)
    secured(net, strict, other)
    subscribed(other, strict)
    link = link_of(strict, other)
    link.refused = True
    publication = strict.publish(CHANNEL, [SECRET])
    net.run(for_s=1)
    with pytest.raises(PartialDelivery, match="insecure"):
        publication.report()


def test_a_pin_that_is_reset_lets_a_plain_session_go_on() -> None:
    net = FakeNet()
    left, right = two(net)
    left = net.create("left", secure=knowing(left, right))
    right = net.create("right", secure=SecureConfig(mode=SecureMode.OFF))
    left.connect(right)
    net.run(for_s=PATIENCE_S + 1)
    assert left.happened(PeerInsecure)
    assert left.engine.secure.forget(right.node_id)
    assert not left.engine.secure.forget(right.node_id)
    subscribed(right, left)
    left.publish(CHANNEL, [SECRET])
    net.run(for_s=1)
    assert right.payloads(CHANNEL) == [SECRET]


def test_another_entity_with_the_node_id_of_a_pinned_one_is_refused() -> None:
    net = FakeNet()
    left, right = two(net)
    pins = {right.node_id: bytes(32)}
    left = net.create("left", secure=SecureConfig(mode=SecureMode.AUTO, pins=pins))
    left.connect(right)
    net.run(for_s=PATIENCE_S + 1)
    assert count(left, Reason.SECURE_WRONG_ENTITY) > 0
    assert left.happened(PeerInsecure)


def test_pins_that_find_no_room_leave_sessions_secure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "MAX_PINS", 1)
    net = FakeNet()
    left, right = two(net)
    third = net.create("third", secure=AUTO)
    secured(net, right, left)
    secured(net, third, left)
    assert [notice.pinned for notice in left.happened(PeerSecured)] == [True, False]
    assert count(left, Reason.REFUSE_PINS_FULL) == 1


def test_messages_that_wait_are_bounded() -> None:
    net = FakeNet()
    left, right = acquainted(net)
    left.connect(right)
    net.run_until(lambda: left.engine.peers.get(right.node_id) is not None)
    peer = left.engine.peers.require(right.node_id)
    assert peer.link.holds
    for _ in range(MAX_HELD + 50):
        peer.send_message(Subprotocol.MEMBERSHIP, b"?", Output())
    peer.send_packed(Subprotocol.REDEX, encode_frames(*columns_of([b"!", b"!"]), max_payload=1), Output())
    assert len(peer.held) == MAX_HELD
    net.run_until(lambda: are_secure(left, right))
    assert not peer.held
    assert count(left, Reason.UNSENT_INSECURE) >= 50 + 2


# ── new keys again and again ────────────────────────────────────────────────────────────────


def test_old_keys_are_forgotten_soon_after_the_other_side_uses_the_new_ones() -> None:
    net = FakeNet()
    left, right = two(net)
    secured(net, left, right)
    assert len(link_of(left, right).session_ids) == 2
    net.run(for_s=OVERLAP_S + 0.1)
    for node, other in ((left, right), (right, left)):
        link = link_of(node, other)
        assert link.session_ids == (link.sealer.session_id,)
        assert link.closed
        assert node.engine.peers.by_session(link.session_id) is None


@pytest.mark.parametrize("limit", [{"rekey_s": 20.0}, {"rekey_packets": 30}])
def test_keys_are_replaced_by_age_and_by_use(limit: dict[str, Any]) -> None:
    net = FakeNet()
    config = SecureConfig(mode=SecureMode.AUTO, **limit)
    left, right = two(net, config, config)
    secured(net, left, right)
    subscribed(right, left)
    ids = {link_of(left, right).sealer.session_id}
    for number in range(60):
        left.publish(CHANNEL, numbered(5, first=5 * number))
        net.run(for_s=1)
        ids.add(link_of(left, right).sealer.session_id)
    assert right.payloads(CHANNEL) == numbered(300)
    assert len(ids) == link_of(left, right).epoch == link_of(right, left).epoch > 2
    assert left.engine.counters.get("secure", "rekeyed") == len(ids) - 1
    assert not any(len(notice.compatible) < 2 for notice in left.happened(Negotiated)[2:])


def test_nothing_is_lost_while_keys_change_under_heavy_loss_and_reordering() -> None:
    for seed in range(4):
        path = FakePath(loss=0.3, duplication=0.1, reordering=0.3, jitter_s=0.01)
        net = FakeNet(seed, path=path)
        config = SecureConfig(mode=SecureMode.AUTO, rekey_s=4.0)
        left, right = two(net, config, config)
        left.connect(right, handshake=HandshakeConfig(tries=50, timeout_s=1))
        net.run_until(lambda: left.speaks_profile_with(right), timeout_s=120)  # noqa: B023
        subscribed(right, left)
        for number in range(30):
            left.publish(CHANNEL, numbered(20, first=20 * number), reliable=True)
            net.run(for_s=1)
        net.run_until(lambda: len(right.payloads(CHANNEL)) == 600, timeout_s=120)  # noqa: B023
        assert right.payloads(CHANNEL) == numbered(600), seed
        assert link_of(left, right).epoch > 2, seed
        # Packets under forgotten keys are late repetitions; nothing was sealed with keys that the other side lacks.
        assert count(left, Reason.BAD_TAG) == count(right, Reason.BAD_TAG) == 0, seed


def is_answered(node: FakeNode, other: FakeNode) -> bool:
    session = node.engine.secure._sessions.get(other.node_id)
    return session is not None and session.answered is not None


def test_a_lost_done_is_repeated_until_the_other_side_uses_the_new_keys() -> None:
    net = FakeNet()
    left, right = two(net)
    left.connect(right)
    net.run_until(lambda: is_answered(right, left))
    net.set_path("left", "right", FakePath(loss=1.0), both=False)
    net.run(for_s=3)
    assert link_of(right, left).epoch == 0
    assert link_of(left, right).epoch == 1
    net.set_path("left", "right", FakePath(), both=False)
    net.run_until(lambda: are_secure(left, right), timeout_s=10)


def test_messages_that_nothing_waits_for_are_counted_and_change_nothing() -> None:
    net = FakeNet()
    left, right = two(net)
    secured(net, left, right)
    share = {"ephemeral": bytes(32), "entity_id": right.engine.identity.entity_id, "signature": bytes(64)}
    for message in (
        encode_secure(Done(epoch=9)),
        encode_secure(Offer(epoch=2, **share)),
        encode_secure(Accept(epoch=2, **share)),
    ):
        with right.turn() as (engine, _now, out):
            engine.peers.require(left.node_id).send_message(Subprotocol.SECURE, message, out)
    net.run(for_s=0.1)
    assert count(left, Reason.SECURE_UNEXPECTED) == 3
    with right.turn() as (engine, _now, out):
        engine.peers.require(left.node_id).send_message(Subprotocol.SECURE, b"\x07", out)
    net.run(for_s=0.1)
    assert count(left, Reason.SECURE_MALFORMED) == 1
    assert link_of(left, right).epoch == 1


def test_a_forged_offer_for_the_next_keys_is_refused() -> None:
    net = FakeNet()
    left, right = two(net)
    secured(net, left, right)
    share = {"ephemeral": bytes(32), "entity_id": left.engine.identity.entity_id, "signature": bytes(64)}
    for offer, reason in (
        (Offer(epoch=2, **share), Reason.SECURE_BAD_SIGNATURE),
        (Offer(epoch=3, **share), Reason.SECURE_UNEXPECTED),
        (Offer(epoch=2, **{**share, "entity_id": bytes(32)}), Reason.SECURE_WRONG_ENTITY),
    ):
        before = count(right, reason)
        with left.turn() as (engine, _now, out):
            engine.peers.require(right.node_id).send_message(Subprotocol.SECURE, encode_secure(offer), out)
        net.run(for_s=0.1)
        assert count(right, reason) == before + 1
    assert link_of(right, left).epoch == 1


def test_a_new_session_begins_anew() -> None:
    net = FakeNet()
    left, right = two(net)
    secured(net, left, right)
    first = link_of(left, right).session_id
    net.remove("right")
    right = net.create("right", identity=right.engine.identity, secure=AUTO, entropy=net.entropy("again"))
    right.connect(left)
    net.run_until(lambda: right.speaks_profile_with(left) and are_secure(left, right), timeout_s=120)
    assert link_of(left, right).session_id != first
    assert [notice.pinned for notice in left.happened(PeerSecured)] == [True, False]
