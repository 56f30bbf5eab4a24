"""Reflex: requests are answered with the address of the session; our own end with an answer or a timeout."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.packets import Address, Output
from meshbus.engine.nat.reflex import NOWHERE, TIMEOUT_S
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.address import Address as Numeric
from meshbus.wire.messages.reflex import ReflexMessage, ReflexRequest, ReflexResponse, decode_reflex, encode_reflex
from meshbus.wire.route import RouteHeader
from meshbus.wire.seal import Opener

SECRET = bytes(range(32))
SEEN = Numeric("192.0.2.1", 9001)
RELAYED = RouteHeader(src_id=1, dest_id=5)


class Desk:
    """A reflex service, a peer, and what the service said."""

    def __init__(self, address: Address = ("10.0.0.1", 1), route: RouteHeader | None = None) -> None:
        engine = rig()
        self.counters = engine.counters
        self.told: list[tuple[int, Numeric | None]] = []
        self.reflex = engine.traversal.reflex
        self.reflex.told = lambda node_id, seen, _now, _out: self.told.append((node_id, seen))
        link = Link(derive_keys(SECRET, Role.INITIATOR), Role.INITIATOR, address, 0.0, route=route)
        self.peer = Peer(5, link, 0.0)
        self._opener = Opener(derive_keys(SECRET, Role.RESPONDER))

    def receive(self, message: bytes) -> list[ReflexMessage]:
        out = Output()
        self.reflex.receive(self.peer, message, 0.0, out)
        return self.read(out)

    def ask(self, now: float = 0.0) -> list[ReflexMessage]:
        out = Output()
        self.reflex.ask(self.peer, now, out)
        return self.read(out)

    def read(self, out: Output) -> list[ReflexMessage]:
        """Return what the peer gets."""
        found: list[ReflexMessage] = []
        for train in out.trains:
            assert train.address == self.peer.link.address
            header, payload = self._opener.open(bytes(train.data)[len(self.peer.link.route) :])
            assert header.subprotocol_id == header.stream_id == Subprotocol.REFLEX
            found += [decode_reflex(frame) for frame in unpack_frames(payload, header.event_count)]
        return found


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (("127.0.0.1", 9000), Numeric("127.0.0.1", 9000)),
        (("2001:db8::1", 9, 0, 0), Numeric("2001:db8::1", 9)),
        (("fe80::1%eth0", 9, 0, 2), Numeric("fe80::1", 9)),
        (("a-name", 9), NOWHERE),
        (("10.0.0.1", 1 << 20), NOWHERE),
        ("node-7", NOWHERE),
    ],
)
def test_a_request_is_answered_with_the_address_of_the_session(address: Any, told: Numeric) -> None:
    desk = Desk(address)
    assert desk.receive(b"") == [ReflexResponse(told)]
    assert desk.counters.snapshot() == {}


def test_a_peer_behind_a_relay_is_not_told_the_relay_s_address() -> None:
    assert Desk(route=RELAYED).receive(b"") == [ReflexResponse(NOWHERE)]


def test_an_answer_is_reported_once() -> None:
    desk = Desk()
    assert desk.ask() == [ReflexRequest()]
    assert desk.ask() == [], "one question at a time"
    assert desk.receive(encode_reflex(ReflexResponse(SEEN))) == []
    assert desk.receive(encode_reflex(ReflexResponse(SEEN))) == []
    assert desk.told == [(5, SEEN)]
    assert desk.counters.snapshot() == {"ignore": {"reflex_unasked": 1}}
    assert desk.ask() == [ReflexRequest()]


def test_an_answer_without_an_address_is_reported_as_none() -> None:
    desk = Desk()
    desk.ask()
    desk.receive(encode_reflex(ReflexResponse(NOWHERE)))
    assert desk.told == [(5, None)]


def test_a_question_without_an_answer_ends_in_time() -> None:
    desk = Desk()
    desk.ask(10.0)
    assert desk.reflex.next_timer() == 10.0 + TIMEOUT_S
    desk.reflex.tick(10.0 + TIMEOUT_S - 0.01, Output())
    assert desk.told == []
    desk.reflex.tick(10.0 + TIMEOUT_S, Output())
    assert desk.told == [(5, None)]
    assert desk.reflex.next_timer() is None
    assert desk.counters.snapshot() == {"timeout": {"reflex": 1}}


@pytest.mark.parametrize("junk", [b"x", bytes(18), bytes(19), bytes(20)])
def test_anything_else_is_counted(junk: bytes) -> None:
    desk = Desk()
    assert desk.receive(junk) == []
    assert desk.counters.snapshot() == {"drop": {"reflex_malformed": 1}}


class TestPings:
    def test_an_answer_ends_the_oldest_ping_and_says_nothing_about_the_address(self) -> None:
        desk, heard = Desk(), list[str]()
        out = Output()
        desk.reflex.ping(desk.peer, lambda: heard.append("first"), out)
        desk.reflex.ping(desk.peer, lambda: heard.append("second"), out)
        assert desk.read(out) == [ReflexRequest(), ReflexRequest()]
        answer = encode_reflex(ReflexResponse(SEEN))
        assert desk.receive(answer) == []
        assert heard == ["first"]
        desk.receive(answer)
        assert (heard, desk.told) == (["first", "second"], [])
        assert not desk.counters.snapshot()

    def test_a_request_for_our_address_is_answered_first(self) -> None:
        desk, heard = Desk(), list[str]()
        desk.ask()
        desk.reflex.ping(desk.peer, lambda: heard.append("ping"), Output())
        desk.receive(encode_reflex(ReflexResponse(SEEN)))
        assert (heard, len(desk.told)) == ([], 1)
        desk.receive(encode_reflex(ReflexResponse(SEEN)))
        assert heard == ["ping"]

    def test_a_ping_that_nobody_waits_for_is_forgotten(self) -> None:
        desk, heard = Desk(), list[str]()
        stop = desk.reflex.ping(desk.peer, lambda: heard.append("ping"), Output())
        stop()
        stop()
        desk.receive(encode_reflex(ReflexResponse(SEEN)))
        assert (heard, desk.counters.get("ignore", "reflex_unasked")) == ([], 1)
