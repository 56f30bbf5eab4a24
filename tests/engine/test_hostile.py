"""Hostile input: each attack is counted with a reason, and an honest session continues undisturbed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from meshbus.engine.base.notices import (
    Acked,
    HandshakeFailed,
    PeerFailed,
    PeerGone,
    SessionUp,
    StreamFailed,
    Unsubscribed,
)
from meshbus.engine.base.packets import PacketBatch
from meshbus.errors import HandshakeFault
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.testing.fakenet import FakeNet, FakeNode, Passage
from meshbus.wire.constants import MAX_EVENT, STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Header
from meshbus.wire.messages.capability import Announcement, encode_announcement
from meshbus.wire.messages.interest import Interest, encode_interest
from meshbus.wire.messages.manifest import encode_manifest
from meshbus.wire.messages.membership import AckReason, Subscribe, Unsubscribe, encode_membership
from meshbus.wire.messages.reliable import (
    FIRST_SEQUENCE,
    Ack,
    Base,
    Fin,
    ReliableMessage,
    Reset,
    encode_reliable,
)
from meshbus.wire.messages.request import Request, encode_request
from meshbus.wire.messages.token import PermissionToken, Scope, decode_chain, encode_chain
from meshbus.wire.messages.window import Grant, encode_grant
from tests.engine.fleet import CHANNEL, meet, numbered, subscribed

STREAM = ChannelName(CHANNEL).stream_id
SECRET = "secret/plans"
ROOT = Identity.from_seed(bytes([77]) * 32)
"""The issuer that Alice trusts."""
SMALL = bytes([1]) + bytes(31)
"""A point of small order: a careless verifier accepts SMALL and 32 zeros as its signature of any message."""


class Scene:
    """Alice publishes, Bob subscribes, and Mallory, who knows the mesh key or not, is somewhere near."""

    def __init__(self, seed: int = 0) -> None:
        self.net = FakeNet(seed)
        self.captured: list[Passage] = []
        self.net.taps.append(self.captured.append)
        self.alice = self.net.create("alice", trusted_issuers=(ROOT.entity_id, SMALL))
        self.bob = self.net.create("bob")
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=ChannelName(CHANNEL)))
        registry.insert(ChannelConfig(name=ChannelName(SECRET), require_token=True))
        with self.alice.turn() as (engine, now, out):
            engine.set_channel_configs(registry, now, out)
        meet(self.alice, self.bob)
        subscribed(self.bob, self.alice)
        subscribed(self.alice, self.bob)
        self._sent = 0
        self.talk()
        self.session = self.session_id()

    def session_id(self) -> int:
        return self.alice.engine.peers.require(self.bob.node_id).link.session_id

    def talk(self) -> None:
        """Publish from both, reliably and not, and check that everything arrives once."""
        for one, other in ((self.alice, self.bob), (self.bob, self.alice)):
            events = numbered(10, 100, first=self._sent)
            got = len(other.payloads(CHANNEL))
            for reliable in (True, False):
                assert one.publish(CHANNEL, events, reliable=reliable).report().delivered >= 1
            self.net.run(for_s=1)
            assert sorted(other.payloads(CHANNEL)[got:]) == sorted(events * 2)
        self._sent += 10

    def assert_undisturbed(self) -> None:
        """Neither the session nor a subscription of the honest nodes has suffered, and events flow."""
        self.talk()
        assert self.alice.has_session_with(self.bob)
        assert self.session_id() == self.session
        for one, other in ((self.alice, self.bob), (self.bob, self.alice)):
            assert one.speaks_profile_with(other)
            about_other = [
                event
                for _, event in one.control
                if isinstance(event, PeerFailed | PeerGone | Unsubscribed | StreamFailed)
                and event.node_id == other.node_id
            ]
            assert about_other == []
            assert other.node_id in one.engine.admission.roster.members(CHANNEL)
            assert [up.node_id for up in one.happened(SessionUp)].count(other.node_id) == 1

    def drops(self, node: FakeNode, what: str = "drop") -> dict[str, int]:
        return node.engine.counters.snapshot().get(what, {})

    def sent(self, source: FakeNode, dest: FakeNode) -> list[bytes]:
        """Return the datagrams that went from one node to another so far."""
        return [p.datagram for p in self.captured if (p.source, p.dest) == (source.name, dest.name)]

    def mallory(self, **settings: Any) -> FakeNode:
        """Establish sessions of a holder of the mesh key with both nodes."""
        mallory = self.net.create("mallory", **settings)
        meet(mallory, self.alice)
        meet(mallory, self.bob)
        return mallory

    def throw(self, dest: FakeNode, *datagrams: bytes, source: str = "mallory", together: bool = False) -> None:
        """Send datagrams to a node, one by one or in one drain."""
        if together:
            for datagram in datagrams:
                self.net.inject(source, dest.name, datagram)
            self.net.run(for_s=0.01)
        else:
            for datagram in datagrams:
                self.net.inject(source, dest.name, datagram)
                self.net.run(for_s=0.002)


ONE_BY_ONE_AND_TOGETHER = pytest.mark.parametrize("together", [False, True])


# ── without the mesh key ────────────────────────────────────────────────────────────────────


@ONE_BY_ONE_AND_TOGETHER
def test_forged_tags(together: bool) -> None:
    scene = Scene()
    captured = [d for d in scene.sent(scene.alice, scene.bob) if len(d) > 84 and d[:2] == b"\x45\x4e"][-8:]
    forged = [
        datagram[:place] + bytes([datagram[place] ^ 1]) + datagram[place + 1 :]
        for datagram in captured
        for place in (10, 33, 45, 50, 60, 68, len(datagram) - 1)
    ]
    before = scene.drops(scene.bob).get("bad_tag", 0)
    scene.throw(scene.bob, *forged, source="alice", together=together)
    assert scene.drops(scene.bob)["bad_tag"] - before == len(forged)
    scene.assert_undisturbed()


@ONE_BY_ONE_AND_TOGETHER
def test_replays(together: bool) -> None:
    scene = Scene()
    packets = [d for d in scene.sent(scene.alice, scene.bob) if d[:2] == b"\x45\x4e" and not d[3] & 0x10]
    got = scene.bob.received
    before = scene.drops(scene.bob).get("replayed", 0)
    for source in ("alice", "mallory"):
        scene.throw(scene.bob, *packets, source=source, together=together)
    assert scene.bob.received == got
    assert scene.drops(scene.bob)["replayed"] - before == 2 * len(packets)
    scene.assert_undisturbed()


def test_a_replayed_handshake_starts_nothing() -> None:
    scene = Scene()
    everything = scene.sent(scene.alice, scene.bob) + scene.sent(scene.bob, scene.alice)
    handshakes = [d for d in everything if d[:2] == b"\x52\x54"]
    assert len(handshakes) == 2
    for _ in range(3):
        for victim in (scene.alice, scene.bob):
            for source in ("alice", "bob", "mallory"):
                scene.throw(victim, *handshakes, source=source)
    scene.net.run(for_s=40)
    for node in (scene.alice, scene.bob):
        assert sum(count for why, count in scene.drops(node).items() if why.startswith("handshake_")) >= 9
    scene.assert_undisturbed()


@ONE_BY_ONE_AND_TOGETHER
def test_truncated_datagrams(together: bool) -> None:
    scene = Scene()
    datagram = max(scene.sent(scene.alice, scene.bob), key=len)
    handshake = next(d for d in scene.sent(scene.alice, scene.bob) if d[:2] == b"\x52\x54")
    cut = [datagram[:size] for size in range(1, len(datagram), 7)] + [handshake[:size] for size in range(1, 142)]
    before = Counter(scene.drops(scene.bob))
    scene.throw(scene.bob, *cut, source="alice", together=together)
    dropped = Counter(scene.drops(scene.bob)) - before
    # One of them has the length of a pingwave, and is taken for one, as on every node.
    assert sum(count for why, count in dropped.items() if why.startswith("pingwave_")) == 1
    assert dropped.total() == len(cut)
    assert {"truncated", "unreadable"} <= set(dropped)
    scene.assert_undisturbed()


@pytest.mark.parametrize("size", [1, 2, 50])
def test_thousands_of_random_datagrams(size: int) -> None:
    scene = Scene()
    rng = random.Random(size)
    known = scene.sent(scene.alice, scene.bob)
    engine, now = scene.bob.engine, scene.net.clock.now
    thrown = 0
    while thrown < 3000:
        batch = []
        for _ in range(size):
            datagram = (
                bytearray(rng.choice(known)) if rng.random() < 0.6 else bytearray(rng.randbytes(rng.randrange(300)))
            )
            for _ in range(rng.randrange(4)):
                if datagram:
                    datagram[rng.randrange(len(datagram))] = rng.randrange(256)
            if rng.random() < 0.2:
                datagram = datagram[: rng.randrange(len(datagram) + 1)]
            batch.append((rng.choice(["alice", "mallory", "carol"]), bytes(datagram)))
        out = engine.receive(PacketBatch.of(batch), now)
        assert out.events == []
        scene.net.carry_out(scene.bob, out)
        thrown += size
    assert sum(scene.drops(scene.bob).values()) > 2000
    scene.assert_undisturbed()


def test_a_wrong_mesh_key() -> None:
    scene = Scene()
    mallory = scene.net.create("mallory", psk=bytes(32))
    mallory.connect(scene.alice)
    scene.net.run(for_s=20)
    (failed,) = mallory.happened(HandshakeFailed)
    assert failed.fault is HandshakeFault.TIMEOUT
    assert "mesh key" in failed.problem
    assert scene.drops(scene.alice)["handshake_unverified"] == 3
    assert scene.alice.engine.peers.get(mallory.node_id) is None
    scene.assert_undisturbed()


def test_a_wrong_public_key() -> None:
    scene = Scene()
    carol = scene.net.create("carol")
    with carol.turn() as (engine, now, out):
        engine.connect(scene.alice.node_id, "alice", scene.bob.engine.public_key, now, out)
    scene.net.run(for_s=20)
    (failed,) = carol.happened(HandshakeFailed)
    assert "public key" in failed.problem
    assert scene.drops(scene.alice)["handshake_unverified"] == 3
    scene.assert_undisturbed()


def test_a_stranger_who_answers_in_anothers_place() -> None:
    """Mallory has the address but not the key of the node that Carol wants."""
    scene = Scene()
    carol, mallory = scene.net.create("carol"), scene.net.create("mallory")
    with carol.turn() as (engine, now, out):
        engine.connect(scene.alice.node_id, "mallory", scene.alice.engine.public_key, now, out)
    scene.net.run(for_s=20)
    assert len(carol.happened(HandshakeFailed)) == 1
    assert scene.drops(mallory)["transit_stranger"] == 3
    scene.assert_undisturbed()


# ── with the mesh key ───────────────────────────────────────────────────────────────────────


def claim(node: FakeNode, node_id: int) -> None:
    """Make a node use an id that is not its own."""
    node.engine.identity.node_id = node_id


def test_a_claimed_foreign_node_id_does_not_push_its_owner_out() -> None:
    scene = Scene()
    mallory = scene.net.create("mallory")
    claim(mallory, scene.bob.node_id)
    mallory.connect(scene.alice)
    scene.net.run(for_s=40)
    assert mallory.engine.peers.get(scene.alice.node_id) is not None  # it believes so
    assert scene.drops(scene.alice, "refuse")["live_session"] >= 1
    scene.alice.publish(CHANNEL, [b"for bob only"])
    scene.net.run(for_s=1)
    assert mallory.payloads() == []
    assert scene.bob.payloads(CHANNEL)[-1] == b"for bob only"
    scene.assert_undisturbed()


def test_a_claimed_foreign_node_id_brings_no_rights() -> None:
    """No node has a session under this id, so Mallory gets one; but she cannot sign for its entity."""
    scene = Scene()
    carol = Identity.from_seed(bytes([9]) * 32)
    mallory = scene.net.create("mallory")
    claim(mallory, carol.node_id)
    mallory.connect(scene.alice)
    scene.net.run(for_s=8)
    peer = scene.alice.engine.peers.require(carol.node_id)
    assert peer.claims.entity_id is None
    assert scene.drops(scene.alice)["announcement_foreign"] >= 1
    # Her own key under Carol's id, and Carol's key under her own signature.
    good = mallory.engine.announcer.current
    assert good is not None
    lies = [
        Announcement(
            node_id=carol.node_id,
            entity_id=mallory.engine.identity.entity_id,
            version=good.version + 1,
            timestamp_ns=good.timestamp_ns,
            ttl_secs=300,
        ).sign(mallory.engine.identity),
        Announcement(
            node_id=carol.node_id,
            entity_id=carol.entity_id,
            version=good.version + 2,
            timestamp_ns=good.timestamp_ns,
            ttl_secs=300,
            signature=bytes(64),
        ),
        Announcement(
            node_id=carol.node_id,
            entity_id=carol.entity_id,
            version=good.version + 3,
            timestamp_ns=good.timestamp_ns,
            ttl_secs=300,
        ),
    ]
    for lie, reason in zip(
        lies, ("announcement_node_id", "announcement_signature", "announcement_unsigned"), strict=True
    ):
        say(mallory, scene.alice, Subprotocol.CAPABILITY, encode_announcement(lie))
        scene.net.run(for_s=0.1)
        assert scene.drops(scene.alice)[reason] == 1
    assert peer.claims.entity_id is None
    request = mallory.subscribe(scene.alice, SECRET, token=token(carol))
    scene.net.run(for_s=1)
    assert refusal(mallory, request) is AckReason.UNAUTHORIZED
    # Twice: nothing was agreed with this node, so the token comes again in the form of later net-mesh versions.
    assert scene.drops(scene.alice, "refuse")["unpinned"] == 2
    scene.assert_undisturbed()


# ── tokens ──────────────────────────────────────────────────────────────────────────────────


def token(
    subject: Identity, *, issuer: Identity = ROOT, scope: int = Scope.SUBSCRIBE, ttl_s: int = 10_000, now: float = 1.7e9
) -> bytes:
    issued = PermissionToken.issue(
        issuer, subject.entity_id, scope, SECRET, ttl_s=ttl_s, now=now, entropy=random.Random(1).randbytes
    )
    return encode_chain([issued])


def refusal(node: FakeNode, request: int) -> AckReason:
    (acked,) = [acked for acked in node.happened(Acked) if acked.request == request]
    assert not acked.accepted
    return acked.reason


def test_tokens_that_prove_nothing() -> None:
    scene = Scene()
    mallory = scene.mallory()
    me, bob = mallory.engine.identity, scene.bob.engine.identity
    attempts = {
        "untrusted": token(me, issuer=me),  # self-issued
        "wrong_subject": token(bob),  # somebody else's
        "expired": token(me, ttl_s=5, now=1.69e9),
        "not_yet_valid": token(me, now=1.8e9),
        "wrong_scope": token(me, scope=Scope.PUBLISH),
        "bad_signature": token(me)[:-1] + b"\0",
        "malformed": token(me)[:-1],
    }
    for fault, presented in attempts.items():
        request = mallory.subscribe(scene.alice, SECRET, token=presented)
        scene.net.run(for_s=0.5)
        assert refusal(mallory, request) is AckReason.UNAUTHORIZED, fault
        assert scene.drops(scene.alice, "token")[fault] == 1
    assert scene.drops(scene.alice, "refuse")["token"] == len(attempts)
    assert scene.alice.engine.admission.roster.members(SECRET) == []
    # The honest one gets in with what it was given.
    subscribed(scene.bob, scene.alice, SECRET, token=token(bob))
    scene.assert_undisturbed()


def test_a_planted_token_authorizes_no_node() -> None:
    """Mallory presents tokens made for others: they are not kept, so they help nobody later."""
    scene = Scene()
    mallory = scene.mallory()
    me, bob = mallory.engine.identity, scene.bob.engine.identity
    for planted in (token(bob, issuer=me), token(bob), token(me, issuer=me)):
        mallory.subscribe(scene.alice, SECRET, token=planted)
        scene.net.run(for_s=0.5)
    request = scene.bob.subscribe(scene.alice, SECRET)  # without a token of its own
    scene.net.run(for_s=0.5)
    assert refusal(scene.bob, request) is AckReason.UNAUTHORIZED
    scene.assert_undisturbed()


def test_a_small_order_issuer() -> None:
    """Even a node that is configured to trust such an "issuer" does not accept its signatures."""
    scene = Scene()
    mallory = scene.mallory()
    genuine = decode_chain(token(mallory.engine.identity))[0]
    forged = msgspec.structs.replace(genuine, issuer=SMALL, signature=SMALL + bytes(32))
    Ed25519PublicKey.from_public_bytes(SMALL).verify(forged.signature, b"anything")  # this reader was careless
    request = mallory.subscribe(scene.alice, SECRET, token=encode_chain([forged]))
    scene.net.run(for_s=0.5)
    assert refusal(mallory, request) is AckReason.UNAUTHORIZED
    assert scene.drops(scene.alice, "token") == {"bad_signature": 1}
    assert scene.alice.engine.admission.roster.members(SECRET) == []
    scene.assert_undisturbed()


def test_a_token_that_expires_shuts_its_holder_out() -> None:
    scene = Scene()
    bob = scene.bob.engine.identity
    unix = scene.net.clock.wall(scene.net.clock.now) / 1e9
    subscribed(scene.bob, scene.alice, SECRET, token=token(bob, now=unix, ttl_s=60))
    publisher = PermissionToken.issue(
        ROOT, scene.alice.engine.identity.entity_id, Scope.PUBLISH, SECRET, ttl_s=10_000, now=unix, entropy=bytes
    )
    scene.alice.engine.tokens.insert_chain((publisher,))
    assert scene.alice.publish(SECRET, [b"while it lasts"]).report().delivered == 1
    scene.net.run(for_s=200)
    assert scene.alice.publish(SECRET, [b"too late"]).report().is_empty
    assert [(gone.channel, gone.reason) for gone in scene.alice.happened(Unsubscribed)] == [(SECRET, "token")]
    scene.net.run(for_s=1)
    assert scene.bob.payloads(SECRET) == [b"while it lasts"]
    scene.talk()


def test_the_seventeenth_failure_is_throttled_and_others_are_not() -> None:
    scene = Scene()
    mallory = scene.mallory()
    reasons = []
    for _ in range(18):
        request = mallory.subscribe(scene.alice, SECRET)
        scene.net.run(for_s=0.05)
        reasons.append(refusal(mallory, request))
    assert reasons == [AckReason.UNAUTHORIZED] * 16 + [AckReason.RATE_LIMITED] * 2
    subscribed(scene.bob, scene.alice, SECRET, token=token(scene.bob.engine.identity))
    scene.assert_undisturbed()


# ── inside a session ────────────────────────────────────────────────────────────────────────


def say(node: FakeNode, other: FakeNode, subprotocol_id: int, *messages: bytes, stream_id: int | None = None) -> None:
    """Send messages to a peer, whatever they are."""
    with node.turn() as (engine, _now, out):
        for message in messages:
            engine.peers.require(other.node_id).send_message(subprotocol_id, message, out, stream_id=stream_id)


def test_hostile_acknowledgements_and_bases() -> None:
    scene = Scene()
    mallory = scene.mallory()
    subscribed(mallory, scene.alice)
    rng = random.Random(3)
    anything = [0, 1, (1 << 64) - 1, FIRST_SEQUENCE, 1 << 62, STREAM]
    messages = []
    for _ in range(1500):
        stream, number = rng.choice([STREAM, 5, *anything]), rng.choice([*anything, rng.randrange(1 << 64)])
        ranges = tuple((rng.choice(anything), rng.choice([1, 0xFFFFFFFF])) for _ in range(rng.randrange(33)))
        lies: list[ReliableMessage] = [
            Ack(stream_id=stream, cumulative=number, free=rng.choice([0, 0xFFFFFFFF]), ranges=ranges),
            Base(stream_id=stream, sequence=number, pub_seq=rng.choice([None, 0, (1 << 64) - 2]), start=True),
            Base(stream_id=stream, sequence=number, pub_seq=number >> 1, start=False),
            Fin(stream_id=stream, total=number),
            Reset(stream_id=stream, reason=rng.choice([0, 1, 2, 0x100, 0xFFFF])),
        ]
        messages.append(encode_reliable(rng.choice(lies)))
    for victim in (scene.alice, scene.bob):
        say(mallory, victim, Subprotocol.RELIABLE, *messages)
        scene.net.run(for_s=1)
    reasons = scene.drops(scene.alice)
    assert {"bad_base", "ack_unknown_stream", "reliable_unknown_stream"} <= set(reasons)
    scene.talk()
    say(mallory, scene.alice, Subprotocol.RELIABLE, *messages)
    scene.net.run(for_s=1)
    scene.assert_undisturbed()


def test_hostile_grants() -> None:
    scene = Scene()
    mallory = scene.mallory(profile=False)
    subscribed(mallory, scene.alice)
    with mallory.turn() as (engine, now, _out):
        engine.streams.hold(scene.alice.node_id, STREAM, now, held=True)
    publication = scene.alice.publish(CHANNEL, numbered(20, 8000), wait_s=5.0)
    scene.net.run(for_s=0.1)
    stream = scene.alice.engine.peers.require(mallory.node_id).tx_stream(STREAM)
    # Mallory confirms what she never got, again and again: she is sent no more than a window at a time.
    for total in (0, 1, (1 << 64) - 1, (1 << 64) - 1, 1 << 40, 5):
        say(
            mallory, scene.alice, Subprotocol.STREAM_WINDOW, encode_grant(Grant(stream_id=STREAM, total_consumed=total))
        )
        say(
            mallory,
            scene.alice,
            Subprotocol.STREAM_WINDOW,
            encode_grant(Grant(stream_id=1, total_consumed=total)),
            b"?",
        )
        scene.net.run(for_s=0.1)
        assert 0 <= stream.credit <= STREAM_WINDOW
    assert scene.drops(scene.alice)["grant_excess"] >= 2
    assert scene.drops(scene.alice)["grant_unknown_stream"] == 6
    assert scene.drops(scene.alice)["grant_malformed"] == 6
    scene.net.run(for_s=6)
    assert publication.done
    scene.bob.forget()
    scene.alice.forget()
    scene._sent = 1000
    scene.talk()
    assert scene.session_id() == scene.session


@ONE_BY_ONE_AND_TOGETHER
def test_giant_event_counts(together: bool) -> None:
    scene = Scene()
    mallory = scene.mallory()
    link = mallory.engine.peers.require(scene.bob.node_id).link
    lies = []
    for count in (0, 1, 100, 2027):
        for payload in (b"", b"\0", pack_frames([b"a", b"b"]), b"\xff\xff\xff\xff" * 4, bytes(8108)):
            for subprotocol_id in (0, Subprotocol.MEMBERSHIP, Subprotocol.STREAM_WINDOW, 0x9999):
                header = Header(subprotocol_id=subprotocol_id, stream_id=3, event_count=count)
                lies.append(link.sealer.seal(header, payload))
    impossible = bytearray(lies[0])
    impossible[66:68] = (2028).to_bytes(2, "little")
    scene.throw(scene.bob, *lies, bytes(impossible), together=together)
    assert scene.drops(scene.bob)["bad_length"] == 1
    got = [batch for batch in scene.bob.events if batch.publisher == mallory.node_id]
    # What is framed is there, what is not framed is not: 2027 empty events fit the largest payload.
    assert max(len(batch) for batch in got) <= 2027 * len(lies)
    assert all(batch.channel is None for batch in got)
    scene.bob.events = [batch for batch in scene.bob.events if batch.publisher != mallory.node_id]
    scene.assert_undisturbed()


def test_oversize_and_unreadable_announcements() -> None:
    scene = Scene()
    mallory = scene.mallory()
    rng = random.Random(5)
    current = mallory.engine.announcer.current
    assert current is not None
    wide = tuple(f"tag:{n}" for n in range(700))
    huge = Announcement(
        node_id=mallory.node_id,
        entity_id=mallory.engine.identity.entity_id,
        version=current.version + 1,
        timestamp_ns=current.timestamp_ns,
        ttl_secs=0xFFFFFFFF,
        tags=wide,
    ).sign(mallory.engine.identity)
    message = encode_announcement(huge)
    assert 7000 < len(message) <= MAX_EVENT
    lies = [
        message,
        b"{" * MAX_EVENT,
        b"[" * 5000,
        b'{"node_id":' + b"9" * 8000 + b"}",
        message[:-1],
        message.replace(b"tag:1", b"\xff\xfe:1"),
        rng.randbytes(MAX_EVENT),
        b"",
    ]
    for lie in lies:
        say(mallory, scene.alice, Subprotocol.CAPABILITY, lie)
        scene.net.run(for_s=0.1)
    assert scene.drops(scene.alice)["announcement_malformed"] == len(lies) - 1
    # The one that fits is heard; it is kept for a day at most, and shuts nobody else out.
    assert len(scene.alice.engine.peers.require(mallory.node_id).claims.capabilities.tags) == 700
    scene.assert_undisturbed()


def test_a_flood_of_announcements_is_limited() -> None:
    scene = Scene()
    mallory = scene.mallory()
    current = mallory.engine.announcer.current
    assert current is not None
    flood = [
        encode_announcement(
            Announcement(
                node_id=mallory.node_id,
                entity_id=mallory.engine.identity.entity_id,
                version=current.version + n,
                timestamp_ns=0,
                ttl_secs=300,
                signature=bytes(64),
            )
        )
        for n in range(1, 1001)
    ]
    say(mallory, scene.alice, Subprotocol.CAPABILITY, *flood)
    scene.net.run(for_s=0.01)
    assert scene.drops(scene.alice)["announcement_rate"] > 500
    scene.assert_undisturbed()


SERVICES = (
    Subprotocol.NEGOTIATION,
    Subprotocol.MEMBERSHIP,
    Subprotocol.STREAM_WINDOW,
    Subprotocol.CAPABILITY,
    Subprotocol.REFLEX,
    Subprotocol.RELIABLE,
    Subprotocol.INTEREST,
    Subprotocol.REQUEST,
    0x0900,
    0x9999,
    0,
)


def _samples(mallory: FakeNode) -> Iterator[tuple[int, bytes]]:
    channel = ChannelName(CHANNEL)
    announcement = mallory.engine.announcer.current
    assert announcement is not None
    yield Subprotocol.NEGOTIATION, encode_manifest(mallory.engine.registry.manifest())
    yield Subprotocol.MEMBERSHIP, encode_membership(Subscribe(nonce=1, channel=channel, token=bytes(169)))
    yield Subprotocol.MEMBERSHIP, encode_membership(Unsubscribe(nonce=2, channel=channel))
    yield Subprotocol.STREAM_WINDOW, encode_grant(Grant(stream_id=STREAM, total_consumed=9))
    yield Subprotocol.CAPABILITY, encode_announcement(announcement)
    yield Subprotocol.RELIABLE, encode_reliable(Ack(stream_id=STREAM, cumulative=5, free=5, ranges=((9, 2),)))
    yield Subprotocol.RELIABLE, encode_reliable(Base(stream_id=STREAM, sequence=5, pub_seq=1, start=True))
    yield Subprotocol.INTEREST, encode_interest(Interest(req=1, prefix="sensors/", token=bytes(169)))
    yield Subprotocol.REQUEST, encode_request(Request(req=1, deadline_ms=5, channel=channel, payload=b"?"))


@pytest.mark.parametrize("together", [1, 3, 60])
def test_thousands_of_broken_messages_from_a_peer(together: int) -> None:
    """Everything is sealed as it should be; only the content lies."""
    scene = Scene(together)
    mallory = scene.mallory()
    subscribed(mallory, scene.alice)
    rng = random.Random(together)
    samples = list(_samples(mallory))
    link = mallory.engine.peers.require(scene.alice.node_id).link
    thrown = 0
    while thrown < 3000:
        batch = []
        for _ in range(together):
            subprotocol_id, message = rng.choice(samples)
            if rng.random() < 0.3:
                subprotocol_id = rng.choice(SERVICES)
            content = bytearray(message if rng.random() < 0.7 else rng.randbytes(rng.randrange(80)))
            for _ in range(rng.randrange(4)):
                if content:
                    content[rng.randrange(len(content))] = rng.randrange(256)
            header = Header(
                subprotocol_id=subprotocol_id,
                stream_id=rng.choice([subprotocol_id, STREAM, 0, rng.randrange(1 << 64)]),
                sequence=rng.choice([0, 1, FIRST_SEQUENCE + 3, rng.randrange(1 << 64)]),
                flags=rng.choice([0, 1, 2, 4, 8, 0x40, 0xCF]),
                origin_hash=rng.choice([0, 1, rng.randrange(1 << 64)]),
                event_count=rng.choice([0, 1, 1, 1, 7, 2027]),
                priority=rng.randrange(256),
                hop_ttl=rng.randrange(256),
                channel_hash=rng.randrange(1 << 16),
            )
            batch.append(("mallory", link.sealer.seal(header, pack_frames([bytes(content)]))))
        out = scene.alice.engine.receive(PacketBatch.of(batch), scene.net.clock.now)
        scene.net.carry_out(scene.alice, out)
        thrown += together
        scene.net.run(for_s=0.001)
    scene.net.run(for_s=2)
    reasons = scene.drops(scene.alice)
    assert {"membership_malformed", "reliable_malformed", "announcement_malformed", "grant_malformed"} <= set(reasons)
    assert {"interest_malformed", "request_malformed", "manifest_malformed"} <= set(reasons)
    scene.alice.events = [batch for batch in scene.alice.events if batch.publisher != mallory.node_id]
    scene.assert_undisturbed()


def test_a_peer_cannot_act_for_another() -> None:
    """Acks, replies and events of one peer never count as those of another."""
    scene = Scene()
    mallory = scene.mallory()
    scene.bob.forget()
    # Events on the stream of a channel that Bob gets from Alice, with Alice's origin.
    link = mallory.engine.peers.require(scene.bob.node_id).link
    header = Header(
        stream_id=STREAM,
        channel_hash=STREAM & 0xFFFF,
        origin_hash=scene.alice.engine.identity.origin_hash,
        event_count=1,
    )
    scene.throw(scene.bob, *(link.sealer.seal(header, pack_frames([b"fake"])) for _ in range(5)), together=True)
    assert scene.bob.payloads() == []
    assert scene.drops(scene.bob)["not_subscribed"] == 5
    scene._sent = 5000
    scene.talk()


def test_many_sessions_of_strangers_do_not_crowd_out_the_honest() -> None:
    scene = Scene()
    for n in range(30):
        stranger = scene.net.create(f"stranger{n}", announces=False)
        stranger.connect(scene.alice)
    scene.net.run(for_s=5)
    assert len(scene.alice.engine.peers) > 20
    scene.assert_undisturbed()


def test_announcing_as_someone_small() -> None:
    """An entity of small order could sign anything; no signature by it is accepted."""
    scene = Scene()
    mallory = scene.mallory()
    lie = Announcement(
        node_id=mallory.node_id,
        entity_id=SMALL,
        version=1 << 62,
        timestamp_ns=0,
        ttl_secs=300,
        signature=SMALL + bytes(32),
    )
    say(mallory, scene.alice, Subprotocol.CAPABILITY, encode_announcement(lie))
    scene.net.run(for_s=0.1)
    assert scene.drops(scene.alice)["announcement_signature"] == 1
    assert scene.alice.engine.peers.require(mallory.node_id).claims.entity_id == mallory.engine.identity.entity_id
    scene.assert_undisturbed()
