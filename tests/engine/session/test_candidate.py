from __future__ import annotations

from hashlib import blake2s

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.session.candidate import (
    MAX_CANDIDATES,
    MAX_HELD,
    MAX_HELD_BYTES,
    MAX_PER_HOST,
    MAX_PER_NODE,
    PROBE_S,
    PROOF_AFTER_S,
    Candidates,
    same_place,
    straight_from,
)
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Health, Peer, PeerTable
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Header, unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.route import RouteHeader
from meshbus.wire.seal import Sealer

NODE = 0x22_0000_0002
HOME, AWAY = ("10.0.0.2", 9000), ("10.0.0.66", 6666)


class Pair:
    """A session of this node, and its other end."""

    def __init__(
        self,
        name: str,
        *,
        address: Address = HOME,
        route: RouteHeader | None = None,
        role: Role = Role.RESPONDER,
        now: float = 0.0,
    ) -> None:
        secret = blake2s(name.encode()).digest()
        other = Role.INITIATOR if role is Role.RESPONDER else Role.RESPONDER
        self.link = Link(derive_keys(secret, role), role, address, now, route=route)
        self.far = Sealer(derive_keys(secret, other))

    def speak(self) -> None:
        """Verify a packet of the current session."""
        self.link.opener.open(self.far.heartbeat())


RELAYED = RouteHeader(src_id=1, dest_id=NODE)


def peer_with(pair: Pair) -> Peer:
    return PeerTable().establish(NODE, pair.link, 0.0)


def proved(candidates: Candidates, pair: Pair, now: float = 0.0) -> None:
    """Add a candidate, and prove it with a packet."""
    candidates.add(NODE, pair.link, now)
    assert candidates.claim(pair.link.session_id, pair.link.address, pair.far.heartbeat()) is not None


def test_a_session_is_confirmed_by_message_2_or_by_a_packet() -> None:
    ours, theirs = Pair("a", role=Role.INITIATOR), Pair("b")
    assert ours.link.proved
    assert not theirs.link.proved
    theirs.speak()
    assert theirs.link.proved


def test_what_came_through_a_relay_is_not_straight_from_its_address() -> None:
    assert straight_from(Pair("a").link, HOME)
    assert not straight_from(Pair("a").link, AWAY)
    assert not straight_from(Pair("a", route=RELAYED).link, HOME)


def test_an_ipv6_socket_adds_fields_to_an_address() -> None:
    assert same_place(("::1", 9), ("::1", 9, 0, 0))
    assert same_place("node", "node")
    assert not same_place(("::1", 9), ("::1", 8, 0, 0))
    assert not same_place(("::1", 9), "node")


def test_a_genuine_packet_proves_and_is_kept_unopened() -> None:
    candidates, pair = Candidates(Counters()), Pair("a")
    candidates.add(NODE, pair.link, 0.0)
    assert pair.link.session_id in candidates
    packet = pair.far.seal(Header(event_count=1), b"\1\0\0\0x")
    candidate = candidates.claim(pair.link.session_id, AWAY, packet)
    assert candidate is not None
    assert candidate.proved
    assert candidate.held == [(AWAY, packet)]
    _, payload = pair.link.opener.open(packet)  # its own window has not seen it yet
    assert payload == b"\1\0\0\0x"


def test_forged_repeated_and_foreign_packets_prove_nothing() -> None:
    counters = Counters()
    candidates, pair, other = Candidates(counters), Pair("a"), Pair("b")
    candidates.add(NODE, pair.link, 0.0)
    beat = pair.far.heartbeat()
    forged = beat[:-1] + bytes([beat[-1] ^ 1])
    assert candidates.claim(pair.link.session_id, HOME, forged) is None
    assert candidates.claim(pair.link.session_id, HOME, beat + b"\0") is None
    assert candidates.claim(other.link.session_id, HOME, other.far.heartbeat()) is None
    assert not candidates.of(NODE)[0].proved
    assert candidates.claim(pair.link.session_id, HOME, beat) is not None
    assert candidates.claim(pair.link.session_id, HOME, beat) is None
    assert counters.snapshot() == {"drop": {"bad_tag": 1, "malformed_packet": 1, "replayed": 1, "unknown_session": 1}}


@pytest.mark.parametrize("why", ["never_confirmed", "failed", "same_address"])
def test_nothing_is_contested_where_nothing_is_lost(why: str) -> None:
    current = Pair("current", address=HOME)
    peer = peer_with(current)
    if why != "never_confirmed":
        current.speak()
    if why == "failed":
        peer.health = Health.FAILED
    candidates = Candidates(Counters())
    proved(candidates, Pair("new", address=HOME if why == "same_address" else AWAY))
    out = Output()
    assert not candidates.contested(candidates.of(NODE)[0], peer, 0.0, out)
    assert not out.trains


@pytest.mark.parametrize("relayed", ["current", "new", "both"])
def test_a_relay_is_not_the_address_of_a_peer(relayed: str) -> None:
    current = Pair("current", route=RELAYED if relayed != "new" else None)
    current.speak()
    candidates = Candidates(Counters())
    proved(candidates, Pair("new", route=RELAYED if relayed != "current" else None))
    assert candidates.contested(candidates.of(NODE)[0], peer_with(current), 0.0, Output())


def test_a_live_session_keeps_its_place() -> None:
    counters = Counters()
    candidates = Candidates(counters, contest_s=2.0)
    current = Pair("current")
    current.speak()
    peer = peer_with(current)
    proved(candidates, Pair("new", address=AWAY))
    (candidate,) = candidates.of(NODE)
    now = 0.0
    for _ in range(20):
        out = Output()
        assert candidates.contested(candidate, peer, now, out)
        assert candidate.due > now
        now += 1.0
        current.speak()
    assert counters.snapshot() == {"refuse": {"live_session": 1}}


def test_a_silent_session_is_asked_and_then_loses_it() -> None:
    candidates = Candidates(Counters(), contest_s=2.0)
    current = Pair("current")
    current.speak()
    peer = peer_with(current)
    proved(candidates, Pair("new", address=AWAY))
    (candidate,) = candidates.of(NODE)
    out = Output()
    now = 0.0
    while candidates.contested(candidate, peer, now, out):
        now = candidate.due
    assert now == 2.0
    assert len(out.trains) == 2.0 / PROBE_S
    for train in out.trains:
        assert train.address == HOME
        assert unpack_header(train.data).subprotocol_id == Subprotocol.REFLEX


@given(st.floats(0.0, 1e6), st.floats(0.01, 100.0))
def test_the_next_look_is_always_later(start: float, contest_s: float) -> None:
    candidates = Candidates(Counters(), confirm_s=1000.0, contest_s=contest_s)
    peer = peer_with(Pair("current", role=Role.INITIATOR))
    proved(candidates, Pair("new", address=AWAY), start)
    (candidate,) = candidates.of(NODE)
    now = start
    while candidates.contested(candidate, peer, now, Output()):
        assert candidate.due > now
        now = candidate.due
    assert now == pytest.approx(start + contest_s)


def test_a_packet_of_the_current_session_restarts_the_wait() -> None:
    candidates = Candidates(Counters(), contest_s=2.0)
    current = Pair("current")
    current.speak()
    peer = peer_with(current)
    proved(candidates, Pair("new", address=AWAY))
    (candidate,) = candidates.of(NODE)
    assert candidates.contested(candidate, peer, 0.0, Output())
    current.speak()
    assert candidates.contested(candidate, peer, 1.9, Output())
    assert candidates.contested(candidate, peer, 3.8, Output())
    assert not candidates.contested(candidate, peer, 3.9, Output())


def test_a_new_current_session_starts_the_wait_again_too() -> None:
    counters = Counters()
    candidates = Candidates(counters, contest_s=2.0)
    peer = peer_with(Pair("current", role=Role.INITIATOR))
    proved(candidates, Pair("new", address=AWAY))
    (candidate,) = candidates.of(NODE)
    assert candidates.contested(candidate, peer, 0.0, Output())
    peer.link = Pair("newer", role=Role.INITIATOR).link
    assert candidates.contested(candidate, peer, 2.5, Output())
    assert not candidates.contested(candidate, peer, 4.5, Output())
    assert counters.total("refuse") == 0


def test_candidates_run_out_with_a_reason() -> None:
    counters = Counters()
    candidates = Candidates(counters, confirm_s=10.0)
    current = Pair("current")
    current.speak()
    peer = peer_with(current)
    candidates.add(NODE, Pair("unproved").link, 0.0)
    proved(candidates, Pair("hostile", address=AWAY))
    hostile = candidates.of(NODE)[1]
    assert candidates.next_timer() == 10.0
    for now in (0.0, 0.1):
        candidates.contested(hostile, peer, now, Output())
        current.speak()
    assert candidates.next_timer() == hostile.due < 10.0
    assert candidates.expire(hostile.due) == [hostile]
    assert candidates.expire(10.0) == []
    assert len(candidates) == 0
    assert candidates.next_timer() is None
    assert counters.snapshot() == {"drop": {"handshake_unconfirmed": 1}, "refuse": {"live_session": 1}}


def test_waiting_looks_again_soon_but_not_after_the_end() -> None:
    candidates = Candidates(Counters(), confirm_s=10.0)
    candidate = candidates.add(NODE, Pair("a").link, 0.0)
    candidates.wait(candidate, 1.0)
    assert candidate.due == candidates.next_timer() == 1.0
    candidates.wait(candidate, 12.0)
    assert candidate.due == candidates.next_timer() == 10.0


def test_taking_one_forgets_the_older_ones() -> None:
    candidates = Candidates(Counters())
    pairs = [Pair(str(number)) for number in range(3)]
    for pair in pairs:
        candidates.add(NODE, pair.link, 0.0)
    stranger = Pair("stranger")
    candidates.add(NODE + 1, stranger.link, 0.0)
    candidates.take(candidates.of(NODE)[1])
    assert [candidate.link for candidate in candidates.of(NODE)] == [pairs[2].link]
    candidates.drop(NODE)
    assert candidates.of(NODE) == []
    assert stranger.link.session_id in candidates


def test_of_too_many_the_oldest_unproved_goes() -> None:
    counters = Counters()
    candidates = Candidates(counters)
    first = Pair("proved")
    proved(candidates, first)
    rest = [Pair(str(number)) for number in range(MAX_PER_NODE)]
    for pair in rest:
        candidates.add(NODE, pair.link, 0.0)
    kept = [candidate.link for candidate in candidates.of(NODE)]
    assert kept == [first.link, *(pair.link for pair in rest[1:])]
    assert counters.get("drop", "handshake_crowded") == 1


def test_all_nodes_together_are_bounded() -> None:
    counters = Counters()
    candidates = Candidates(counters)
    for number in range(MAX_CANDIDATES + 5):
        candidates.add(number, Pair(str(number), address=(f"10.0.{number % 9}.1", 1)).link, 0.0)
    assert len(candidates) == MAX_CANDIDATES
    assert counters.get("drop", "handshake_crowded") == 5
    assert candidates.of(4) == []
    assert len(candidates.of(5)) == 1


def test_kept_packets_are_bounded_for_one_and_for_all() -> None:
    counters = Counters()
    candidates = Candidates(counters)
    pair = Pair("a")
    candidates.add(NODE, pair.link, 0.0)
    for _ in range(MAX_HELD + 3):
        assert candidates.claim(pair.link.session_id, HOME, pair.far.heartbeat()) is not None
    assert len(candidates.of(NODE)[0].held) == MAX_HELD
    assert counters.get("drop", "contested_session") == 3

    many = [Pair(f"big {number}") for number in range(12)]
    for number, big in enumerate(many):
        candidates.add(number, big.link, 0.0)
        for _ in range(MAX_HELD):
            candidates.claim(big.link.session_id, HOME, big.far.seal(Header(), bytes(8000)))
    kept = sum(len(packet) for node in [NODE, *range(12)] for c in candidates.of(node) for _, packet in c.held)
    assert MAX_HELD_BYTES - 8192 < kept <= MAX_HELD_BYTES
    for number in range(12):
        candidates.drop(number)
    candidates.add(NODE + 1, many[0].link, 0.0)  # the room is given back
    assert candidates.claim(many[0].link.session_id, HOME, many[0].far.heartbeat()) is not None
    assert candidates.of(NODE + 1)[0].held


@pytest.mark.parametrize("allowance", [0, 100, 200, 1000])
def test_a_candidate_is_asked_for_its_proof_as_often_as_its_allowance_permits(allowance: int) -> None:
    candidates, pair, out = Candidates(Counters()), Pair("a"), Output()
    candidate = candidates.add(NODE, pair.link, 0.0)
    candidate.allowance = allowance
    assert candidates.begun_since(0.0) == [NODE]
    candidates.ask(candidate, 0.0, out)
    while candidates.next_timer() != candidate.expires_at:
        now = candidates.next_timer() or 0.0
        assert candidates.expire(now) == [candidate]
        candidates.ask(candidate, now, out)
    assert [unpack_header(train.data).subprotocol_id for train in out.trains] == [Subprotocol.REFLEX] * len(out.trains)
    size = len(pair.link.seal(Header(), pack_frames([b""])).data)
    assert len(out.trains) == pair.link.probes == min(allowance // size, len(PROOF_AFTER_S))
    assert candidates.begun_since(0.1) == []


def test_one_host_does_not_crowd_out_the_others() -> None:
    counters = Counters()
    candidates = Candidates(counters)
    honest = Pair("honest", address=AWAY)
    candidates.add(NODE, honest.link, 0.0)
    for number in range(MAX_PER_HOST + 5):
        candidates.add(NODE + 1 + number, Pair(str(number), address=("10.6.6.6", number)).link, 0.0)
    assert len(candidates) == MAX_PER_HOST + 1
    assert honest.link.session_id in candidates
    assert counters.get("drop", "handshake_crowded") == 5
