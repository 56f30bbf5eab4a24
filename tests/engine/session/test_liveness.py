from __future__ import annotations

from hashlib import blake2s
from typing import Any

import pytest

from meshbus.engine.base.notices import Control, DownReason, PeerFailed, PeerGone, PeerRecovered
from meshbus.engine.base.packets import Output
from meshbus.engine.services import SERVICES
from meshbus.engine.session.link import Link
from meshbus.engine.session.liveness import REPEATS_S
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.session.service import Row, Service
from meshbus.engine.settings import LivenessConfig
from meshbus.testing.rig import rig, unix_ns
from meshbus.wire.constants import PACKET_COST, PINGWAVE_BYTES, PINGWAVE_TTL, ROUTE_BYTES, Flags, Subprotocol
from meshbus.wire.datagram import DatagramKind, classify
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.pingwave import Pingwave, unpack_pingwave
from meshbus.wire.route import RouteHeader
from meshbus.wire.seal import Opener, Sealer
from tests.engine.sides import Net, Side
from tests.vectors import load

TIMINGS: dict[str, Any] = load("transport")["timings"]
HERE = 0x1111_0000_AAAA
NODE = 0x2222_0000_BBBB
HOME = ("10.0.0.2", 9000)


class Downs(Service):
    """Keeps what services are told about peers that failed or are gone."""

    def __init__(self) -> None:
        self.told: list[PeerFailed | PeerGone] = []

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        self.told.append(down)


class Playbook:
    """One node with one peer, whose other end speaks when the test says."""

    def __init__(
        self,
        *,
        relayed: bool = False,
        role: Role = Role.INITIATOR,
        heartbeat_s: float = 5.0,
        session_timeout_s: float = 30.0,
    ) -> None:
        config = LivenessConfig(heartbeat_s=heartbeat_s, session_timeout_s=session_timeout_s)
        self.downs = Downs()
        engine = rig(node_id=HERE, table=(*SERVICES, Row(lambda _context: self.downs)), liveness=config)
        self.peers, self.liveness = engine.peers, engine.liveness
        self.relayed = relayed
        self.peer, self.far_opener, self.far_sealer = self.session("first", role, 0.0)
        self.out = Output()

    def session(self, name: str, role: Role, now: float) -> tuple[Peer, Opener, Sealer]:
        secret = blake2s(name.encode()).digest()
        far = derive_keys(secret, Role.RESPONDER if role is Role.INITIATOR else Role.INITIATOR)
        route = RouteHeader(src_id=1, dest_id=NODE) if self.relayed else None
        peer = self.peers.establish(NODE, Link(derive_keys(secret, role), role, HOME, now, route=route), now)
        return peer, Opener(far), Sealer(far)

    def until(self, now: float) -> list[tuple[float, Control]]:
        """Run for some time, with a call at each timer; return what happened when."""
        happened: list[tuple[float, Control]] = []
        while (due := self.liveness.next_timer()) <= now:
            told = len(self.out.control)
            self.downs.told.clear()
            self.liveness.tick(due, self.out)
            assert self.out.control[told:] == self.downs.told
            happened += [(round(due, 6), verdict) for verdict in self.downs.told]
        return happened

    def hear(self, now: float, *, heartbeat: bool = True) -> bool:
        """Make the peer send a packet that verifies."""
        self.peer.link.opener.open(self.far_sealer.heartbeat())
        return self.liveness.heard(self.peer, now, self.out, heartbeat=heartbeat)

    def health(self) -> Health:
        return self.peer.health

    def sent(self) -> list[bytes]:
        """Take the datagrams that went out."""
        assert all(train.address == HOME for train in self.out.trains)
        datagrams = [datagram for train in self.out.trains for datagram in train.datagrams()]
        self.out.trains.clear()
        return datagrams


# ── speaking ────────────────────────────────────────────────────────────────────────────────


def test_each_interval_brings_a_heartbeat_and_behind_it_a_pingwave() -> None:
    play = Playbook()
    play.until(4.9)
    assert play.sent() == []
    for number in range(1, 4):
        play.until(5.0 * number)
        beat, wave = play.sent()
        header, payload = play.far_opener.open(beat)
        assert (len(beat), header.flags, payload) == (PACKET_COST, Flags.HEARTBEAT, b"")
        assert classify(wave) is DatagramKind.PINGWAVE
        assert len(wave) == PINGWAVE_BYTES


def test_a_late_call_sends_once_and_keeps_step() -> None:
    play = Playbook()
    play.liveness.tick(17.0, play.out)
    assert len(play.sent()) == 2
    assert play.liveness.next_timer() == 20.0
    play.liveness.tick(19.9, play.out)
    assert play.downs.told == []
    assert play.sent() == []


def test_without_peers_nothing_is_sent() -> None:
    play = Playbook()
    play.peers.remove(NODE)
    play.until(60.0)
    assert play.sent() == []


def test_every_peer_gets_the_same_pingwave() -> None:
    play = Playbook()
    other = Link(derive_keys(bytes(32), Role.INITIATOR), Role.INITIATOR, ("10.0.0.3", 9), 0.0)
    play.peers.establish(NODE + 1, other, 0.0)
    play.until(5.0)
    waves = {bytes(train.data) for train in play.out.trains if train.segment == PINGWAVE_BYTES}
    assert len(play.out.trains) == 4
    assert len(waves) == 1


def test_a_pingwave_has_origin_and_time() -> None:
    play = Playbook()
    play.until(5.0)
    wave = unpack_pingwave(play.sent()[1])
    timestamp_us = unix_ns(5.0) // 1000
    assert wave == Pingwave(node_id=HERE, seq=timestamp_us, timestamp_us=timestamp_us, ttl=PINGWAVE_TTL)


def test_pingwaves_count_up_when_the_clock_does_not_and_over_restarts() -> None:
    hand = [5_000_000_000]
    liveness = rig(node_id=HERE, wall=lambda _: hand[0]).liveness

    def seq() -> int:
        return unpack_pingwave(liveness.pingwave(0.0)).seq

    first = seq()
    assert [seq(), seq()] == [first + 1, first + 2]
    hand[0] -= 1_000_000
    last = seq()
    assert last == first + 3
    hand[0] += 1_000_000_000
    liveness = rig(node_id=HERE, wall=lambda _: hand[0]).liveness
    assert seq() > last


def test_a_new_session_is_opened_with_a_heartbeat_until_the_peer_is_heard() -> None:
    play = Playbook()
    play.liveness.peer_up(play.peer, 1.0, play.out)
    beat, wave = play.sent()
    play.far_opener.open(beat)
    assert len(wave) == PINGWAVE_BYTES
    assert play.liveness.next_timer() == 1.0 + REPEATS_S[0]
    play.until(1.3)
    (again,) = play.sent()
    play.far_opener.open(again)
    play.hear(1.3)
    play.until(4.9)
    assert play.sent() == []


def test_the_opening_ends_by_itself() -> None:
    play = Playbook()
    play.liveness.peer_up(play.peer, 0.0, play.out)
    play.until(4.9)
    assert len(play.sent()) == 2 + len(REPEATS_S)
    assert play.liveness.next_timer() == 5.0


def test_each_session_is_opened_in_its_own_time() -> None:
    play = Playbook()
    play.liveness.peer_up(play.peer, 0.0, play.out)
    keys = derive_keys(bytes(32), Role.INITIATOR)
    other = play.peers.establish(NODE + 1, Link(keys, Role.INITIATOR, HOME, 0.1), 0.1)
    play.liveness.peer_up(other, 0.1, play.out)
    assert len(play.sent()) == 4
    for due in (0.25, 0.35, 0.75, 0.85):
        assert play.liveness.next_timer() == pytest.approx(due)
        play.until(due + 0.01)
        assert len(play.sent()) == 1


def test_a_replaced_session_is_not_opened_any_further() -> None:
    play = Playbook()
    play.liveness.peer_up(play.peer, 0.0, play.out)
    play.session("second", Role.INITIATOR, 0.1)
    play.sent()
    play.until(4.9)
    assert play.sent() == []


# ── listening ───────────────────────────────────────────────────────────────────────────────


def test_silence_is_suspected_and_then_failed() -> None:
    play = Playbook()
    assert play.until(10.0) == []
    assert play.health() is Health.ALIVE
    assert play.until(15.0) == []
    assert play.health() is Health.SUSPECTED
    play.hear(15.0)
    assert play.health() is Health.ALIVE
    assert play.until(40.0) == []
    assert play.until(45.0) == [(45.0, PeerFailed(NODE, DownReason.SILENT))]
    assert play.health() is Health.FAILED
    assert play.until(300.0) == []


def test_a_node_that_was_stopped_itself_does_not_take_that_for_silence() -> None:
    play = Playbook()
    play.until(10.0)
    play.liveness.tick(100.0, play.out)  # 85 s late; what the peer sent meanwhile is not read yet
    assert (play.downs.told, play.health()) == ([], Health.SUSPECTED)
    assert play.until(110.0) == []
    assert play.until(115.0) == [(115.0, PeerFailed(NODE, DownReason.SILENT))], "it was silent before and after"


def test_data_packets_do_not_count_as_heartbeats() -> None:
    play = Playbook()
    for now in range(1, 30):
        assert not play.hear(now, heartbeat=False)
    assert play.until(30.0) == [(30.0, PeerFailed(NODE, DownReason.SILENT))]


def test_a_failed_peer_still_gets_heartbeats_and_recovers_with_its_own() -> None:
    play = Playbook()
    play.until(34.0)
    play.sent()
    play.until(35.0)
    assert len(play.sent()) == 2
    assert not play.hear(36.0, heartbeat=False)
    assert play.health() is Health.FAILED
    assert play.hear(37.0)
    assert play.out.control[-1] == PeerRecovered(NODE)
    assert play.health() is Health.ALIVE
    assert not play.hear(38.0)
    assert play.until(65.0) == []
    assert play.until(70.0) == [(70.0, PeerFailed(NODE, DownReason.SILENT))]


def test_a_failed_peer_is_removed_after_a_long_time_without_an_authenticated_packet() -> None:
    play = Playbook()
    play.hear(20.0, heartbeat=False)
    assert play.until(900.0) == [(30.0, PeerFailed(NODE, DownReason.SILENT))]
    assert play.until(2000.0) == [(920.0, PeerGone(NODE, DownReason.EVICTED))]
    assert len(play.peers) == 0


def test_a_failed_peer_that_still_sends_data_stays() -> None:
    play = Playbook()
    for now in range(0, 3000, 100):
        play.until(now)
        play.hear(now, heartbeat=False)
    assert play.peers.get(NODE) is play.peer


def test_times_are_those_of_a_real_node_whose_timeout_counts_three_times() -> None:
    play = Playbook(heartbeat_s=0.05, session_timeout_s=3 * 0.3)
    ((failed_at, _),) = play.until(2.0)
    assert failed_at == pytest.approx(TIMINGS["failed_after_s_with_session_timeout_300ms"], abs=0.05)
    play = Playbook(heartbeat_s=0.05, session_timeout_s=0.2)
    *_, (evicted_at, gone) = play.until(10.0)
    assert gone == PeerGone(NODE, DownReason.EVICTED)
    assert evicted_at == pytest.approx(TIMINGS["evicted_after_s_with_session_timeout_200ms"], abs=0.06)


def test_a_peer_that_never_proved_its_session_is_removed_when_it_fails() -> None:
    play = Playbook(role=Role.RESPONDER)
    assert play.until(30.0) == [
        (30.0, PeerFailed(NODE, DownReason.SILENT)),
        (30.0, PeerGone(NODE, DownReason.EVICTED)),
    ]
    play = Playbook(role=Role.RESPONDER)
    play.hear(1.0)
    assert play.until(200.0) == [(35.0, PeerFailed(NODE, DownReason.SILENT))]


# ── behind a relay ──────────────────────────────────────────────────────────────────────────


def test_behind_a_relay_an_empty_packet_takes_the_place_of_the_heartbeat() -> None:
    play = Playbook(relayed=True)
    play.liveness.peer_up(play.peer, 0.0, play.out)
    play.until(5.0)
    datagrams = play.sent()
    assert len(datagrams) == 1 + len(REPEATS_S) + 1
    for datagram in datagrams:
        assert classify(datagram) is DatagramKind.ROUTED
        header, payload = play.far_opener.open(datagram[ROUTE_BYTES:])
        assert (header.flags, header.subprotocol_id, header.event_count) == (0, Subprotocol.STREAM_WINDOW, 0)
        assert payload == b""


def test_behind_a_relay_any_packet_is_a_sign_of_life() -> None:
    play = Playbook(relayed=True)
    play.hear(10.0, heartbeat=False)
    assert play.until(40.0) == [(40.0, PeerFailed(NODE, DownReason.SILENT))]
    assert play.hear(41.0, heartbeat=False)
    assert play.until(70.0) == []


def test_a_relayed_peer_that_was_never_heard_is_only_removed() -> None:
    play = Playbook(relayed=True, role=Role.RESPONDER)
    assert play.until(2000.0) == [(900.0, PeerGone(NODE, DownReason.EVICTED))]


# ── two nodes ───────────────────────────────────────────────────────────────────────────────


def test_a_cut_line_fails_both_ends_and_a_mended_one_recovers_them() -> None:
    one, other = Side(1), Side(9)
    net = Net(one, other)
    net.emit(one.address, one.connect(other, 0.0))
    net.run(20.0)
    session_id = one.session_with(other)
    net.loss = 1.0
    net.run(120.0)
    assert one.happened(PeerFailed) == [PeerFailed(other.node_id, DownReason.SILENT)]
    assert other.happened(PeerFailed) == [PeerFailed(one.node_id, DownReason.SILENT)]
    net.loss = 0.0
    net.run(130.0)
    assert one.happened(PeerRecovered) == [PeerRecovered(other.node_id)]
    assert other.happened(PeerRecovered) == [PeerRecovered(one.node_id)]
    assert one.session_with(other) == session_id
    net.loss = 1.0
    net.run(1100.0)
    assert len(one.peers) == len(other.peers) == 0
    assert one.happened(PeerGone) == [PeerGone(other.node_id, DownReason.EVICTED)]


def test_losing_a_third_of_the_packets_fails_no_peer() -> None:
    one, other = Side(1), Side(9)
    net = Net(one, other, seed=4, loss=0.0)
    net.emit(one.address, one.connect(other, 0.0))
    net.run(1.0)
    net.loss = 0.33
    net.run(1800.0)
    assert one.happened(PeerFailed) == other.happened(PeerFailed) == []
