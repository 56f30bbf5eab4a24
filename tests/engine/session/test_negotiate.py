"""Test the negotiation of the profile between two sides; a plain peer never receives a byte of it."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from meshbus.engine.base.notices import DownReason, Negotiated, PeerFailed, PeerGone, PeerPlain
from meshbus.engine.base.packets import Output, PacketBatch
from meshbus.engine.core import Engine
from meshbus.engine.services import SERVICES
from meshbus.engine.session.link import Link
from meshbus.engine.session.negotiate import PLAIN_S, RETRY_S, SETTLE_S, TRIES, Profile
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.engine.session.service import Row, Service
from meshbus.engine.settings import AnnounceConfig
from meshbus.names.identity import Identity
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.registry import Mismatch, NegotiatedSet
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.manifest import decode_manifest, encode_manifest
from meshbus.wire.subprotocol import SubprotocolDescriptor, SubprotocolManifest, SubprotocolVersion
from tests.engine.wires import FarEnd
from tests.seeds import for_each_seed

LOWER, HIGHER = 10, 20
BASE = (Subprotocol.NEGOTIATION, Subprotocol.RELIABLE)


def describe(
    subprotocol_id: int, version: tuple[int, int] = (1, 0), floor: tuple[int, int] | None = None
) -> SubprotocolDescriptor:
    return SubprotocolDescriptor(
        id=subprotocol_id,
        name=f"test-{subprotocol_id:x}",
        version=SubprotocolVersion(*version),
        min_compatible=None if floor is None else SubprotocolVersion(*floor),
    )


TABLE = (*SERVICES, Row(lambda _context: Service(), Subprotocol.LEADERSHIP, profile=True, needs=Subprotocol.REDEX))


def offering(*ids: int, identity: Identity | None = None, node_id: int | None = None, announces: bool = True) -> Engine:
    """Build an engine that offers these subprotocols and no others."""
    engine = rig(identity, node_id=node_id, table=TABLE, announce=AnnounceConfig(enrich=announces))
    for descriptor in engine.registry.all_descriptors():
        engine.registry.unregister(descriptor.id)
    for subprotocol_id in ids:
        engine.registry.register(describe(subprotocol_id))
    return engine


class Side:
    """One of two nodes: its negotiator, and the other end of its session with the other node."""

    def __init__(self, node_id: int, other_id: int, *ids: int, announces: bool = True) -> None:
        engine = offering(*(ids or BASE), node_id=node_id, announces=announces)
        self.peers, self.registry, self.counters = engine.peers, engine.registry, engine.counters
        self.negotiator = engine.negotiator
        self.other_id = other_id
        self.sessions = 0
        self.out = Output()
        self.far: FarEnd
        self.session()

    @property
    def peer(self) -> Peer:
        return self.peers.require(self.other_id)

    @property
    def agreed(self) -> frozenset[int]:
        return self.peer.negotiated.compatible

    def session(self, now: float = 0.0) -> list[bytes]:
        """Start a new session with the other node."""
        self.far = FarEnd(self.peers, self.other_id, now, session=self.sessions)
        self.sessions += 1
        self.out = Output()
        self.negotiator.peer_up(self.peer, now, self.out)
        return self.sent()

    def announce(self, *tags: str, now: float = 0.0) -> list[bytes]:
        """Receive the other node's announcement, and return the manifests that are sent."""
        self.peer.claims = PeerClaims(bytes(32), CapabilitySet(tags))
        return self.stand(now)

    def stand(self, now: float = 0.0) -> list[bytes]:
        """Receive the same announcement again."""
        self.out = Output()
        self.negotiator.vouched(self.peer, now, self.out)
        return self.sent()

    def hear(self, *manifests: bytes, now: float = 0.0) -> list[bytes]:
        self.out = Output()
        for manifest in manifests:
            self.negotiator.receive(self.peer, manifest, now, self.out)
        return self.sent()

    def tick(self, now: float) -> list[bytes]:
        self.out = Output()
        self.negotiator.tick(now, self.out)
        return self.sent()

    def change(self, now: float) -> list[bytes]:
        self.out = Output()
        self.negotiator.registry_changed(now, self.out)
        return self.sent()

    def gone(self) -> None:
        self.negotiator.peer_down(PeerGone(self.other_id, DownReason.CLOSED), 0.0, self.out)

    def sent(self) -> list[bytes]:
        messages = self.far.read(self.out)
        assert {subprotocol_id for subprotocol_id, _ in messages} <= {Subprotocol.NEGOTIATION}
        return [message for _, message in messages]

    @property
    def manifest(self) -> bytes:
        return encode_manifest(self.registry.manifest())


TAG = "subprotocol:0x0600"


def pair(lower: tuple[int, ...] = (), higher: tuple[int, ...] = ()) -> tuple[Side, Side]:
    return Side(LOWER, HIGHER, *lower), Side(HIGHER, LOWER, *higher)


def agree(low: Side, high: Side, now: float = 0.0) -> None:
    high.announce(TAG, now=now)
    low.hear(*high.hear(*low.announce(TAG, now=now), now=now), now=now)


# ── the exchange ────────────────────────────────────────────────────────────────────────────


def test_the_lower_offers_the_higher_answers_and_both_agree() -> None:
    low, high = pair()
    assert high.announce(TAG) == []
    offer = low.announce(TAG)
    assert offer == [low.manifest]
    assert low.agreed == frozenset(), "nothing is used before the answer"
    answer = high.hear(*offer)
    assert answer == [high.manifest]
    assert high.out.control == [Negotiated(LOWER, frozenset(BASE))]
    assert low.hear(*answer) == [], "nobody answers an answer"
    assert low.out.control == [Negotiated(HIGHER, frozenset(BASE))]
    assert low.agreed == high.agreed == frozenset(BASE)
    assert low.negotiator.next_timer() is None
    repeated = high.tick(1.0) + high.tick(2.0) + high.tick(3.0)
    assert repeated == [high.manifest] * (TRIES - 1), "nothing confirms an answer"
    assert low.hear(*repeated) == []
    assert low.out.control == []
    assert high.negotiator.next_timer() is None


def test_both_agree_on_what_both_have_at_versions_that_get_along() -> None:
    low, high = pair(
        (*BASE, Subprotocol.INTEREST, Subprotocol.HISTORY), (*BASE, Subprotocol.HISTORY, Subprotocol.SECURE)
    )
    low.registry.register(describe(Subprotocol.RELIABLE, (1, 4), (1, 0)), replace=True)
    low.registry.register(describe(0x5000, (3, 0), (2, 0)))
    high.registry.register(describe(0x5000, (1, 9)))
    agree(low, high)
    assert low.agreed == high.agreed == {*BASE, Subprotocol.HISTORY}


def test_a_newer_version_that_tolerates_the_older_is_agreed_on() -> None:
    low, high = pair()
    low.registry.register(describe(Subprotocol.RELIABLE, (2, 0), (1, 0)), replace=True)
    agree(low, high)
    assert low.agreed == high.agreed == frozenset(BASE)


def test_incompatible_versions_are_reported_and_not_used() -> None:
    low, high = pair()
    low.registry.register(describe(Subprotocol.RELIABLE, (2, 0)), replace=True)
    agree(low, high)
    assert low.agreed == high.agreed == {Subprotocol.NEGOTIATION}
    assert low.peer.negotiated.incompatible == (
        Mismatch(Subprotocol.RELIABLE, SubprotocolVersion(2), SubprotocolVersion(1)),
    )


@pytest.mark.parametrize("useless", [Subprotocol.REQUEST, Subprotocol.HISTORY, Subprotocol.LEADERSHIP])
def test_what_lacks_something_it_needs_is_left_out(useless: int) -> None:
    low, high = pair((Subprotocol.NEGOTIATION, useless), (Subprotocol.NEGOTIATION, useless))
    agree(low, high)
    assert low.agreed == high.agreed == {Subprotocol.NEGOTIATION}
    needed = (*BASE, Subprotocol.REDEX, useless)
    low, high = pair(needed, needed)
    agree(low, high)
    assert low.agreed == high.agreed == frozenset(needed)


# ── losses ──────────────────────────────────────────────────────────────────────────────────


def test_without_an_answer_the_peer_stays_plain() -> None:
    low, _ = pair()
    sent = low.announce(TAG, now=5.0)
    times = []
    while (due := low.negotiator.next_timer()) is not None:
        assert low.tick(due - 0.01) == []
        sent += low.tick(due)
        times.append(due)
    assert times == [5.0 + RETRY_S * n for n in range(1, TRIES + 1)]
    assert sent == [low.manifest] * TRIES
    assert low.counters.get("negotiation", "no_answer") == 1
    assert low.agreed == frozenset()


def test_a_late_answer_still_counts() -> None:
    low, high = pair()
    low.announce(TAG)
    for now in (1.0, 2.0, 3.0):
        low.tick(now)
    low.hear(high.manifest, now=60.0)
    assert low.agreed == frozenset(BASE)


def test_a_peer_that_announces_itself_again_gets_another_chance() -> None:
    low, high = pair()
    low.announce(TAG)
    assert low.stand(0.5) == [], "it may still answer"
    for now in (1.0, 2.0, 3.0):
        low.tick(now)
    assert low.stand(5.0) == [low.manifest]
    for now in (6.0, 7.0, 8.0):
        low.tick(now)
    assert low.announce(TAG, now=150.0) == [low.manifest]
    low.hear(high.manifest, now=150.1)
    assert low.announce(TAG, now=300.0) == [], "a peer that answered is left alone"
    assert low.counters.get("negotiation", "no_answer") == 2


def test_repeated_offers_get_repeated_answers_and_no_more() -> None:
    low, high = pair()
    high.announce(TAG)
    offers = low.announce(TAG) + low.tick(1.0)
    answers = high.hear(*offers, now=1.5)
    assert answers == [high.manifest] * 2
    assert low.hear(*answers, now=2.0) == []
    assert len(low.out.control) == 1


def test_an_offer_before_the_announcement_waits_for_it() -> None:
    low, high = pair()
    assert high.hear(*low.announce(TAG)) == []
    assert high.counters.get("hold", "manifest_unannounced") == 1
    assert high.agreed == frozenset()
    assert low.hear(*high.announce(TAG, now=0.5), now=0.5) == []
    assert low.agreed == high.agreed == frozenset(BASE)


def test_a_profile_message_before_the_answer_asks_again() -> None:
    low, high = pair()
    high.announce(TAG)
    high.hear(*low.announce(TAG))
    for now in (1.0, 2.0, 3.0):
        low.tick(now)
    low.out = Output()
    low.negotiator.not_agreed(low.peer, 4.0, low.out)
    low.negotiator.not_agreed(low.peer, 4.1, low.out)
    offer = low.sent()
    assert offer == [low.manifest]
    low.hear(*high.hear(*offer, now=4.2), now=4.3)
    assert low.agreed == frozenset(BASE)
    low.out = Output()
    low.negotiator.not_agreed(low.peer, 9.0, low.out)
    high.negotiator.not_agreed(high.peer, 9.0, high.out)
    assert low.sent() == []


# ── who never gets one ──────────────────────────────────────────────────────────────────────


def every_occasion(side: Side) -> list[bytes]:
    """Everything that could make a side send a manifest, without a change of the other's announcement."""
    return [
        *side.stand(),
        *side.hear(side.manifest),
        *side.stand(),
        *side.change(1.0),
        *side.tick(10.0),
        *side.session(20.0),
        *side.hear(side.manifest),
    ]


@pytest.mark.parametrize("ids", [(LOWER, HIGHER), (HIGHER, LOWER)])
def test_a_peer_that_does_not_ask_never_gets_one(ids: tuple[int, int]) -> None:
    plain = Side(*ids)
    assert every_occasion(plain) == []
    plain.announce("subprotocol:0x0500", "nat:unknown")
    assert every_occasion(plain) == []
    silent = Side(*ids, announces=False)
    silent.announce(TAG)
    assert every_occasion(silent) == [], "who does not announce it does not offer it"
    forbidden = Side(*ids)
    forbidden.negotiator.configure(ids[1], Profile.PLAIN)
    forbidden.announce(TAG)
    assert every_occasion(forbidden) == []
    unable = Side(*ids, Subprotocol.RELIABLE)
    unable.announce(TAG)
    assert every_occasion(unable) == []
    assert unable.counters.get("drop", "manifest_unwanted") == 2


def test_a_configured_peer_gets_one_at_once() -> None:
    low, high = pair()
    low.negotiator.configure(HIGHER, Profile.MESHBUS)
    high.negotiator.configure(LOWER, Profile.MESHBUS)
    low.hear(*high.hear(*low.session()))
    assert low.agreed == high.agreed == frozenset(BASE)


def test_a_peer_restarted_as_a_plain_node_gets_none() -> None:
    low, high = pair()
    agree(low, high)
    assert low.session(100.0) == []
    assert low.out.control == [Negotiated(HIGHER, frozenset())]
    assert low.hear(high.manifest, now=101.0) == []
    assert low.agreed == frozenset(), "claims of the old session do not count in the new one"
    assert low.stand(102.0) == [low.manifest], "until they are repeated in it"


# ── changes ─────────────────────────────────────────────────────────────────────────────────


def test_a_new_session_starts_over() -> None:
    low, high = pair()
    agree(low, high)
    low.session(100.0)
    high.session(100.0)
    assert low.agreed == high.agreed == frozenset()
    agree(low, high, 100.5)
    assert low.agreed == high.agreed == frozenset(BASE)


def test_a_failure_within_a_session_changes_nothing() -> None:
    low, high = pair()
    agree(low, high)
    low.peer.claims = PeerClaims()
    assert low.agreed == frozenset(BASE)
    assert low.announce(TAG, "other", now=50.0) == []


def test_the_lower_id_announces_a_change_with_a_new_offer() -> None:
    low, high = pair((*BASE, Subprotocol.INTEREST), (*BASE, Subprotocol.INTEREST))
    agree(low, high)
    low.registry.unregister(Subprotocol.INTEREST)
    offer = low.change(10.0)
    assert low.agreed == frozenset(BASE), "less is used at once"
    assert low.out.control == [Negotiated(HIGHER, frozenset(BASE))]
    low.hear(*high.hear(*offer, now=10.1), now=10.2)
    assert high.agreed == frozenset(BASE)
    assert low.negotiator.next_timer() is None


def test_an_unanswered_change_is_repeated_and_keeps_what_was_agreed() -> None:
    low, high = pair()
    agree(low, high)
    assert low.change(10.0) + low.tick(11.0) + low.tick(12.0) + low.tick(13.0) == [low.manifest] * TRIES
    assert low.agreed == frozenset(BASE)
    assert low.counters.get("negotiation", "no_answer") == 0


def test_the_higher_id_announces_a_change_with_three_manifests() -> None:
    low, high = pair((*BASE, Subprotocol.INTEREST))
    agree(low, high)
    high.registry.register(describe(Subprotocol.INTEREST))
    told = high.change(10.0)
    assert high.agreed == {*BASE, Subprotocol.INTEREST}
    assert low.hear(*told, now=10.1) == []
    assert low.agreed == {*BASE, Subprotocol.INTEREST}
    assert high.tick(11.0) + high.tick(12.0) + high.tick(13.0) == [high.manifest] * (TRIES - 1)
    assert high.negotiator.next_timer() is None


def test_other_announced_subprotocols_are_a_reason_to_offer_again() -> None:
    low, high = pair((*BASE, Subprotocol.INTEREST))
    agree(low, high)
    high.registry.register(describe(Subprotocol.INTEREST))
    offer = low.announce(TAG, "subprotocol:0x4d03", now=10.0)
    low.hear(*high.hear(*offer, now=10.0), now=10.0)
    assert low.agreed == high.agreed == {*BASE, Subprotocol.INTEREST}


def test_a_tag_taken_back_ends_the_agreement() -> None:
    low, high = pair()
    agree(low, high)
    for side in (low, high):
        assert side.agreed == frozenset(BASE)
        assert side.announce("nat:unknown", now=10.0) == []
        assert side.out.control == [Negotiated(side.other_id, frozenset())]
        assert side.peer.negotiated == NegotiatedSet()


def test_a_manifest_ahead_of_the_announcement_counts_for_the_lower_too() -> None:
    low, high = pair()
    low.hear(high.manifest)
    assert low.agreed == frozenset()
    assert low.announce(TAG) == [low.manifest], "the higher may not have ours"
    assert low.agreed == frozenset(BASE)


# ── hostile and gone ────────────────────────────────────────────────────────────────────────


def test_what_is_no_manifest_is_counted() -> None:
    low, high = pair()
    agree(low, high)
    for damaged in (b"", b"\1", low.manifest[:-1], low.manifest + b"\0"):
        assert low.hear(damaged) == []
    assert low.counters.get("drop", "manifest_malformed") == 4
    assert low.agreed == frozenset(BASE)


def test_an_empty_manifest_agrees_on_nothing() -> None:
    low, high = pair()
    agree(low, high)
    assert decode_manifest(high.hear(encode_manifest(SubprotocolManifest()))[0]) == high.registry.manifest()
    assert high.agreed == frozenset()


def test_a_removed_peer_is_forgotten() -> None:
    low, _ = pair()
    low.announce(TAG)
    peer = low.peer
    low.negotiator.peer_down(PeerFailed(HIGHER, DownReason.SILENT), 0.5, low.out)
    assert low.negotiator.next_timer() is not None, "a peer that failed may come back in the same session"
    low.gone()
    assert low.negotiator.next_timer() is None
    low.negotiator.vouched(peer, 1.0, low.out)
    low.negotiator.not_agreed(peer, 1.0, low.out)
    low.negotiator.receive(peer, low.manifest, 1.0, low.out)
    assert low.counters.get("drop", "manifest_unwanted") == 1
    low.session(5.0)
    low.announce(TAG, now=5.0)
    low.peers.remove(HIGHER)
    low.negotiator.registry_changed(5.5, low.out)
    low.negotiator.tick(6.0, low.out)
    assert low.negotiator.next_timer() is None


# ── together with announcements, over a link that loses packets ─────────────────────────────


def agree_over(loss: float, seed: int, until: float) -> float | None:
    """Connect two nodes by a link that loses packets; return when both have agreed."""
    rng = random.Random(seed)
    engines = [offering(*BASE, identity=Identity.from_seed(bytes([number]) * 32)) for number in (1, 2)]
    waiting: list[tuple[float, int, int, bytes]] = []

    def post(sender: int, out: Output, now: float) -> None:
        for datagram in (datagram for train in out.trains for datagram in train.datagrams()):
            if rng.random() >= loss:
                heappush(waiting, (now + rng.uniform(0.01, 0.2), rng.getrandbits(32), 1 - sender, datagram))

    peers = []
    for number, (engine, role) in enumerate(zip(engines, Role, strict=True)):
        engine.announce(CapabilitySet(), 0.0, Output())
        link = Link(derive_keys(bytes(32), role), role, 1 - number, 0.0)
        peers.append(engine.peers.establish(engines[1 - number].node_id, link, 0.0))
    for number, engine in enumerate(engines):
        out = Output()
        engine.services.peer_up(peers[number], 0.0, out)
        post(number, out, 0.0)
    now = 0.0
    while now < until:
        timers = [timer for engine in engines if (timer := engine.next_timer()) is not None]
        now = max(now, min(waiting[0][0] if waiting else until, *timers))
        for number, engine in enumerate(engines):
            post(number, engine.tick(now), now)
        while waiting and waiting[0][0] <= now:
            _, _, receiver, datagram = heappop(waiting)
            post(receiver, engines[receiver].receive(PacketBatch.of([(1 - receiver, datagram)]), now), now)
        if all(peer.negotiated.compatible == frozenset(BASE) for peer in peers):
            return now
    return None


def test_two_nodes_agree_in_three_flights() -> None:
    time = agree_over(0.0, 1, 10.0)
    assert time is not None
    assert time <= 3 * 0.2


@for_each_seed(range(40))
def test_two_nodes_agree_though_a_third_of_the_packets_is_lost(seed: int) -> None:
    assert agree_over(0.3, seed, 1000.0) is not None


def test_most_agree_within_seconds() -> None:
    times = [agree_over(0.3, seed, 10.0) for seed in range(200)]
    assert sum(time is not None for time in times) > 190


def test_events_do_not_wait_for_a_peer_that_announced_itself_as_plain() -> None:
    low, _ = pair()
    assert not low.negotiator.is_plain(low.peer)  # it may yet announce itself
    low.announce()
    assert low.negotiator.is_plain(low.peer)
    low.announce(TAG)
    assert not low.negotiator.is_plain(low.peer)
    low.negotiator.configure(low.other_id, Profile.PLAIN)
    assert low.negotiator.is_plain(low.peer)
    low.gone()
    assert low.negotiator.is_plain(low.peer)


def test_reliable_events_wait_only_while_the_negotiation_is_open() -> None:
    lower = Side(LOWER, HIGHER)
    assert lower.peer.settles_at == SETTLE_S
    lower.negotiator.configure(HIGHER, Profile.PLAIN)
    lower.session(now=5.0)
    assert lower.peer.settles_at == 0.0, "configured: nothing is negotiated"
    lower.negotiator.configure(HIGHER, Profile.AUTO)
    lower.session(now=7.0)
    assert lower.peer.settles_at == 7.0 + SETTLE_S
    lower.negotiator.vouched(lower.peer, 7.1, lower.out)
    assert lower.peer.settles_at == 0.0, "it announced itself without the profile"


def test_reliable_events_stop_waiting_with_the_agreement() -> None:
    lower = Side(LOWER, HIGHER)
    lower.negotiator.configure(HIGHER, Profile.MESHBUS)
    lower.session(now=1.0)
    assert lower.peer.settles_at == 1.0 + SETTLE_S
    theirs = Side(HIGHER, LOWER).registry.manifest()
    lower.negotiator.receive(lower.peer, encode_manifest(theirs), 1.1, lower.out)
    assert lower.agreed == frozenset({Subprotocol.RELIABLE, Subprotocol.NEGOTIATION})
    assert lower.peer.settles_at == 0.0


# ── plain peers are reported ────────────────────────────────────────────────────────────────


def test_a_peer_that_never_announces_itself_is_reported_as_plain_once() -> None:
    low, _ = pair()
    assert low.negotiator.next_timer() == PLAIN_S
    low.tick(PLAIN_S - 0.01)
    assert low.out.control == []
    low.tick(PLAIN_S)
    assert low.out.control == [PeerPlain(HIGHER)]
    low.announce("robot", now=9.0)
    assert low.out.control == [], "it was reported already"
    low.session(now=20.0)
    low.announce("robot", now=20.1)
    assert low.out.control == [PeerPlain(HIGHER)], "a new session may be with other software"


def test_a_peer_that_announces_the_profile_is_reported_as_plain_if_it_never_answers() -> None:
    low, high = pair()
    low.announce(TAG)
    for now in (1.0, 2.0):
        low.tick(now)
        assert low.out.control == []
    low.tick(3.0)
    assert low.out.control == [PeerPlain(HIGHER)]
    low.hear(high.manifest, now=4.0)
    assert low.out.control == [Negotiated(HIGHER, frozenset(BASE))]


def test_a_peer_that_agrees_is_not_reported() -> None:
    low, high = pair()
    agree(low, high)
    low.tick(60.0)
    assert low.out.control == []


def test_a_peer_that_is_configured_as_plain_is_reported_at_once() -> None:
    low, _ = pair()
    low.negotiator.configure(HIGHER, Profile.PLAIN)
    low.session(now=1.0)
    low.tick(1.0)
    assert low.out.control == [PeerPlain(HIGHER)]
