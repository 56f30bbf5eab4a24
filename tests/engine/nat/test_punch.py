"""Hole punching: what an introduction makes a node send, and the limits of it."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.packets import Output
from meshbus.engine.nat.punch import (
    COORDINATOR_BURST,
    HOST_BURST,
    MAX_LEAD_S,
    MAX_PUNCHES,
    OFFSETS_S,
    WATCH_S,
    usable,
)
from meshbus.testing.rig import rig
from meshbus.wire.constants import PUNCH_BYTES, Subprotocol
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.rendezvous import PunchAck, PunchIntroduce, decode_rendezvous, encode_rendezvous
from meshbus.wire.punch import Keepalive, pack_keepalive, unpack_keepalive
from meshbus.wire.route import RouteHeader
from tests.engine.stage import wall
from tests.engine.wires import FarEnd
from tests.vectors import load

TIMING = load("mesh")["rendezvous"]["timing_observed"]
NODE, HUB, OTHER_HUB, FRIEND = 1, 2, 3, 4
REFLEX = Address("203.0.113.7", 40_000)
HELLO = pack_keepalive(Keepalive(node_id=FRIEND))


def soon_ms(now: float = 0.0, lead_s: float = 0.5) -> int:
    return int(wall(now + lead_s) // 1_000_000)


class Desk:
    """A node that follows introductions, with two coordinators."""

    def __init__(self) -> None:
        engine = rig(node_id=NODE, wall=wall)
        self.peers, self.counters = engine.peers, engine.counters
        self.introduced: list[tuple[int, float]] = []
        self.opened: list[tuple[int, Address]] = []
        self.punches = engine.traversal.punches
        self.punches.introduced = lambda node_id, until: self.introduced.append((node_id, until))
        self.punches.opened = lambda node_id, address, _now, _out: self.opened.append((node_id, address))
        self.hub = FarEnd(self.peers, HUB, address=Address("198.51.100.1", 9000))
        self.other = FarEnd(self.peers, OTHER_HUB, address=Address("198.51.100.2", 9000))

    def introduce(
        self,
        peer: int = FRIEND,
        reflex: Address = REFLEX,
        *,
        by: FarEnd | None = None,
        now: float = 0.0,
        fire_at_ms: int | None = None,
    ) -> None:
        moment = soon_ms(now) if fire_at_ms is None else fire_at_ms
        message = PunchIntroduce(peer=peer, peer_reflex=reflex, fire_at_ms=moment)
        self.punches.introduce((by or self.hub).peer, message, now)

    def sent(self, until: float) -> list[tuple[float, object, bytes]]:
        """Run until every timer has fired; return when what was sent where."""
        sent = []
        while (due := self.punches.next_timer()) is not None and due <= until:
            out = Output()
            self.punches.tick(due, out)
            sent += [(due, train.address, bytes(train.data)) for train in out.trains]
        return sent

    def hear(self, datagram: bytes = HELLO, source: Hashable = REFLEX, now: float = 1.0) -> list[PunchAck]:
        """Receive a keep-alive; return what the coordinator gets."""
        out = Output()
        self.punches.receive(source, datagram, now, out)
        told = [decode_rendezvous(event) for id_, event in self.hub.read(out) if id_ == Subprotocol.RENDEZVOUS]
        assert len(told) == len(out.trains), "nothing but messages inside the session"
        return [ack for ack in told if isinstance(ack, PunchAck)]

    def refused(self) -> dict[str, int]:
        return self.counters.snapshot().get("refuse", {})


def test_three_keepalives_are_sent_at_the_named_moment() -> None:
    desk = Desk()
    desk.introduce()
    observed = [offset / 1000 for offset in TIMING["keepalive_offsets_ms"]]
    sent = desk.sent(until=60.0)
    assert [at for at, _, _ in sent] == pytest.approx([0.5 + offset for offset in OFFSETS_S])
    assert [at - 0.5 for at, _, _ in sent] == pytest.approx(observed, abs=0.002)
    assert {where for _, where, _ in sent} == {REFLEX}
    assert {unpack_keepalive(datagram) for _, _, datagram in sent} == {Keepalive(node_id=NODE)}
    assert len(desk.punches) == 0, "and forgotten"
    assert desk.introduced == [], "nobody here asked for it"


@pytest.mark.parametrize(("lead_s", "fires_at"), [(-3600.0, 0.0), (0.0, 0.0), (0.7, 0.7), (1e9, MAX_LEAD_S)])
def test_a_wrong_clock_neither_loses_nor_delays_a_punch(lead_s: float, fires_at: float) -> None:
    desk = Desk()
    desk.introduce(fire_at_ms=max(0, soon_ms(0.0, lead_s)))
    assert desk.sent(until=60.0)[0][0] == pytest.approx(fires_at, abs=0.001)


def test_less_is_sent_to_the_address_than_the_introduction_had() -> None:
    desk = Desk()
    desk.introduce()
    out = Output()
    introduction = PunchIntroduce(peer=FRIEND, peer_reflex=REFLEX, fire_at_ms=0)
    desk.hub.peer.send_message(Subprotocol.RENDEZVOUS, encode_rendezvous(introduction), out)
    sent = sum(len(datagram) for _, _, datagram in desk.sent(until=60.0))
    assert sent == 3 * PUNCH_BYTES
    assert 2 * sent < len(out.trains[0].data)


def test_a_keepalive_from_the_introduced_node_is_acknowledged_once() -> None:
    desk = Desk()
    desk.introduce()
    assert desk.hear() == [PunchAck(from_peer=NODE, to_peer=FRIEND)]
    assert desk.hear() == []
    assert desk.opened == [(FRIEND, REFLEX)]
    assert desk.counters.snapshot()["ignore"] == {"keepalive_repeated": 1}


def test_a_symmetric_nat_may_use_another_port() -> None:
    desk = Desk()
    desk.introduce()
    assert len(desk.hear(source=(REFLEX.host, 50_000))) == 1
    assert desk.opened == [(FRIEND, Address(REFLEX.host, 50_000))]


@pytest.mark.parametrize(
    ("datagram", "source"),
    [
        (HELLO, ("203.0.113.8", 40_000)),
        (HELLO, "a name"),
        (pack_keepalive(Keepalive(node_id=5)), REFLEX),
        (pack_keepalive(Keepalive(node_id=0)), REFLEX),
    ],
)
def test_a_keepalive_of_another_node_is_counted_and_not_answered(datagram: bytes, source: Hashable) -> None:
    desk = Desk()
    desk.introduce()
    assert desk.hear(datagram, source) == []
    assert desk.opened == []
    assert desk.counters.snapshot()["drop"] == {"keepalive_unexpected": 1}


def test_an_unexpected_keepalive_before_and_after_is_dropped() -> None:
    desk = Desk()
    assert desk.hear(now=0.0) == []
    desk.introduce()
    desk.sent(until=60.0)
    assert desk.hear(now=0.5 + WATCH_S) == []
    assert desk.counters.snapshot()["drop"] == {"keepalive_unexpected": 2}


def test_the_requester_is_notified_and_accepts_only_its_coordinator() -> None:
    desk = Desk()
    desk.punches.expect(FRIEND, HUB)
    desk.introduce(by=desk.other)
    assert desk.introduced == []
    desk.introduce()
    [(node_id, until)] = desk.introduced
    assert node_id == FRIEND
    assert until == pytest.approx(0.5 + WATCH_S)
    desk.punches.forget(FRIEND)
    desk.introduce(by=desk.other)
    assert desk.refused() == {"punch_other_coordinator": 1}


def test_an_ack_counts_through_the_coordinator_of_the_introduction() -> None:
    desk, out = Desk(), Output()
    ack = PunchAck(from_peer=FRIEND, to_peer=NODE)
    desk.punches.acknowledge(desk.hub.peer, ack, 0.0, out)
    desk.introduce()
    desk.punches.acknowledge(desk.other.peer, ack, 0.0, out)
    assert desk.opened == []
    assert desk.refused() == {"punch_ack_unexpected": 2}
    desk.punches.acknowledge(desk.hub.peer, ack, 0.0, out)
    assert desk.opened == [(FRIEND, REFLEX)]
    assert out.trains == []


@pytest.mark.parametrize(
    "reflex",
    ["0.0.0.0:9000", "[::]:9000", "224.0.0.1:9000", "[ff02::1]:9000", "255.255.255.255:9", "1.2.3.4:0", "127.0.0.1:80"],
)
def test_addresses_that_no_host_can_have_are_refused(reflex: str) -> None:
    host, _, port = reflex.rpartition(":")
    desk = Desk()
    desk.introduce(reflex=Address(host.strip("[]"), int(port)))
    assert desk.refused() == {"punch_address": 1}
    assert desk.sent(until=60.0) == []


def test_loopback_addresses_are_used_only_on_the_same_machine() -> None:
    assert usable(Address("127.0.0.1", 9), ("127.0.0.1", 1))
    assert usable(Address("::1", 9), ("::1", 1, 0, 0))
    assert not usable(Address("127.0.0.1", 9), "a name")


@pytest.mark.parametrize("peer", [0, NODE, HUB])
def test_impossible_friends_are_refused(peer: int) -> None:
    desk = Desk()
    desk.introduce(peer)
    assert desk.refused() == {"punch_target": 1}


def test_a_coordinator_behind_a_relay_is_refused() -> None:
    desk = Desk()
    far = FarEnd(desk.peers, 9, address=("198.51.100.9", 1), route=RouteHeader(src_id=1, dest_id=9))
    desk.introduce(by=far)
    assert desk.refused() == {"punch_no_session": 1}


def test_a_flood_from_one_coordinator_is_bounded() -> None:
    desk = Desk()
    for number in range(1000):
        desk.introduce(100 + number, Address(f"203.0.{number // 250}.{1 + number % 250}", 9))
    assert desk.refused() == {"punch_rate": 1000 - int(COORDINATOR_BURST)}
    assert len(desk.punches) == COORDINATOR_BURST


def test_many_coordinators_cannot_aim_at_one_host() -> None:
    desk = Desk()
    for number in range(1000):
        hub = FarEnd(desk.peers, 1000 + number, address=Address("198.51.100.3", number + 1))
        desk.introduce(5000 + number, Address(REFLEX.host, number + 1), by=hub)
    assert desk.refused() == {"punch_host_rate": 1000 - int(HOST_BURST)}
    assert sum(len(datagram) for _, _, datagram in desk.sent(until=60.0)) == HOST_BURST * 3 * PUNCH_BYTES


def test_many_coordinators_and_hosts_fill_a_bounded_table_and_it_empties() -> None:
    desk = Desk()
    for number in range(1000):
        hub = FarEnd(desk.peers, 1000 + number, address=Address("198.51.100.3", number + 1))
        desk.introduce(5000 + number, Address(f"203.{number // 250}.0.{1 + number % 250}", 9), by=hub)
    assert len(desk.punches) == MAX_PUNCHES
    assert desk.refused() == {"punch_full": 1000 - MAX_PUNCHES}
    desk.sent(until=60.0)
    assert len(desk.punches) == 0


def test_a_pause_of_the_clock_sends_one_and_not_a_burst() -> None:
    desk, out = Desk(), Output()
    desk.introduce()
    desk.punches.tick(3.0, out)
    assert len(out.trains) == 1
    assert desk.punches.next_timer() == pytest.approx(0.5 + WATCH_S)


@given(st.binary(min_size=12, max_size=12), st.tuples(st.ip_addresses().map(str), st.integers(0, 0xFFFF)))
def test_no_keepalive_makes_a_node_send_anything(body: bytes, source: tuple[str, int]) -> None:
    desk, out = Desk(), Output()
    desk.punches.receive(source, b"PH" + body, 0.0, out)
    assert out.trains == []
