"""Test the outbox: order within a stream, priority between streams, turns at equal priority, and deadlines."""

from typing import Any

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer, PeerTable
from meshbus.engine.streams.outbox import TURN_PACKETS, Leg, Load
from meshbus.engine.streams.partslice import PartSlice
from meshbus.engine.streams.traffic import Traffic
from meshbus.wire.constants import PACKET_COST
from meshbus.wire.frames import columns_of, encode_frames, unpack_frames
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys


class OutboxRig:
    """A peer with its traffic, and a receiver that reads what is sent."""

    def __init__(self, window: int = 65_536) -> None:
        keys = derive_keys(bytes(32), Role.INITIATOR)
        self.peer: Peer = PeerTable().establish(5, Link(keys, Role.INITIATOR, "there", 0.0), 0.0)
        self.peer.window = window
        self.counters = Counters()
        self.traffic = Traffic(self.peer, PartSlice(), counters=self.counters, entropy=bytes, loopback=True)
        self.outbox = self.traffic.outbox
        self.opener = Link(derive_keys(bytes(32), Role.RESPONDER), Role.RESPONDER, "here", 0.0).opener
        self.ended: list[tuple[str, bool]] = []
        self.now = 0.0

    def add(
        self,
        name: str,
        events: list[bytes],
        *,
        stream: int = 1,
        priority: int = 0,
        deadline: float = 9.0,
        wait_s: float = 0.0,
    ) -> None:
        packed = encode_frames(*columns_of(events), max_payload=max(4 + len(events[0]), 1))
        load = Load(Header(stream_id=stream, priority=priority), packed)
        self.outbox.add(Leg(load, deadline, lambda _leg, ok: self.ended.append((name, ok)), wait_s=wait_s))

    def pump(self) -> list[tuple[int, int, bytes]]:
        """Send what can be sent; return (stream, sequence, event) of each packet, in order."""
        out = Output()
        self.traffic.pump(self.now, out)
        got = []
        for train in out.trains:
            for datagram in train.datagrams():
                header, plain = self.opener.open(datagram)
                got.append((header.stream_id, header.sequence, bytes(unpack_frames(plain, 1)[0])))
        return got


def test_legs_of_a_stream_go_in_order() -> None:
    rig = OutboxRig()
    rig.add("a", [b"1", b"2"])
    rig.add("b", [b"3"])
    assert rig.pump() == [(1, 0, b"1"), (1, 1, b"2"), (1, 2, b"3")]
    assert rig.ended == [("a", True), ("b", True)]
    assert len(rig.outbox) == 0
    assert rig.pump() == []


def test_higher_priority_goes_first_whenever_it_came() -> None:
    rig = OutboxRig()
    rig.add("low", [b"l"], stream=1, priority=0)
    rig.add("high", [b"h"], stream=2, priority=9)
    assert [event for _, _, event in rig.pump()] == [b"h", b"l"]


def test_equal_streams_take_turns() -> None:
    rig = OutboxRig(window=0)
    rig.add("a", [b"a"] * (TURN_PACKETS * 2), stream=1)
    rig.add("b", [b"b"] * (TURN_PACKETS * 2), stream=2)
    streams = [stream for stream, _, _ in rig.pump()]
    assert streams == ([1] * TURN_PACKETS + [2] * TURN_PACKETS) * 2


def test_a_stream_without_credit_waits_and_others_continue() -> None:
    cost = PACKET_COST + 5
    rig = OutboxRig(window=2 * cost)
    rig.add("a", [b"x"] * 3, stream=1)
    rig.add("b", [b"y"], stream=2)
    assert [(stream, seq) for stream, seq, _ in rig.pump()] == [(1, 0), (1, 1), (2, 0)]
    assert rig.peer.tx_stream(1).stalled_at is not None
    assert rig.ended == [("b", True)]
    rig.peer.tx_stream(1).grant(cost)
    assert rig.pump() == [(1, 2, b"x")]
    assert rig.ended[-1] == ("a", True)


def test_waiting_ends_at_the_deadline() -> None:
    rig = OutboxRig(window=PACKET_COST + 5)
    rig.add("first", [b"x", b"y"], deadline=3.0)
    rig.add("second", [b"z"], deadline=5.0)
    rig.pump()
    assert rig.outbox.next_timer() == 3.0
    rig.outbox.expire(2.9)
    assert rig.ended == []
    rig.outbox.expire(3.0)
    assert rig.ended == [("first", False)]
    rig.outbox.clear()
    assert rig.ended == [("first", False), ("second", False)]
    assert rig.outbox.next_timer() is None
    assert rig.pump() == []


def test_a_leg_that_moves_and_the_one_behind_it_get_their_time_again() -> None:
    rig = OutboxRig(window=PACKET_COST + 5)
    rig.add("first", [b"x", b"y"], deadline=3.0, wait_s=3.0)
    rig.add("behind", [b"z"], deadline=3.0, wait_s=3.0)
    rig.now = 2.0
    rig.pump()
    rig.outbox.expire(3.0)
    assert rig.ended == [("behind", False)]
    assert rig.outbox.next_timer() == 5.0
    rig.add("next", [b"z"], deadline=5.0, wait_s=3.0)
    rig.peer.tx_stream(1).grant(PACKET_COST + 5)
    rig.now = 4.5
    rig.pump()
    assert rig.ended[-1] == ("first", True)
    assert rig.outbox.next_timer() == 7.5


@pytest.mark.parametrize("window", [200, 1000, 0])
def test_everything_arrives_once_under_any_credit(window: int) -> None:
    rig = OutboxRig(window=window)
    wanted: dict[int, list[bytes]] = {}
    for stream in (1, 2, 3):
        events = [bytes([stream, n]) for n in range(70)]
        wanted[stream] = events
        rig.add(f"{stream}", events[:40], stream=stream, priority=stream % 2)
        rig.add(f"{stream}", events[40:], stream=stream, priority=stream % 2)
    got: dict[int, list[Any]] = {1: [], 2: [], 3: []}
    for _ in range(300):
        for stream, sequence, event in rig.pump():
            assert sequence == len(got[stream])
            got[stream].append(event)
        for stream in got:
            rig.peer.tx_stream(stream).grant(rig.peer.tx_stream(stream).sent)
    assert got == wanted
    assert len(rig.ended) == 6


def test_a_leg_without_packets_has_arrived_at_once() -> None:
    rig = OutboxRig()
    load = Load(Header(stream_id=1), encode_frames(*columns_of([])))
    rig.outbox.add(Leg(load, 9.0, lambda _leg, ok: rig.ended.append(("empty", ok))))
    assert rig.ended == [("empty", True)]
    assert len(rig.outbox) == 0
    assert rig.outbox.next_timer() is None


def test_a_stall_is_counted_once_until_something_is_sent() -> None:
    cost = PACKET_COST + 5
    rig = OutboxRig(window=cost)
    rig.add("a", [b"x"] * 3)
    for _ in range(3):
        rig.pump()
    assert rig.counters.get("stall", "credit") == 1
    rig.peer.tx_stream(1).grant(cost)
    rig.pump()
    assert rig.counters.get("stall", "credit") == 2


def test_some_legs_may_be_ended_and_the_others_stay() -> None:
    rig = OutboxRig(window=PACKET_COST + 5)
    for name, stream in (("a", 1), ("b", 2), ("c", 1)):
        rig.add(name, [b"x"], stream=stream, deadline=float("inf"))
    assert (rig.outbox.waiting(1), rig.outbox.waiting(2), rig.outbox.waiting(3)) == (2, 1, 0)
    assert rig.outbox.next_timer() is None
    rig.outbox.clear(lambda leg: leg.load.header.stream_id == 1)
    assert rig.ended == [("a", False), ("c", False)]
    assert [stream for stream, _, _ in rig.pump()] == [2]


def test_turns_end_when_a_whole_round_sent_nothing() -> None:
    rig = OutboxRig()
    for stream in (1, 2, 3):
        rig.add(f"{stream}", [b"x"] * 2, stream=stream, priority=stream == 3)
    seen = []
    for stream_id in rig.outbox.turns():
        seen.append(stream_id)
        leg = rig.outbox.head(stream_id)
        if stream_id == 2 and leg is not None:
            rig.outbox.sent(leg, 1, 0.0)
    assert seen == [3, 1, 2, 1, 2, 1]
    assert rig.ended == [("2", True)]
    assert rig.outbox.head(2) is None


def test_the_next_part_of_a_leg_fits_credit_and_room() -> None:
    packed = encode_frames(*columns_of([b"x"] * 5), max_payload=1)
    leg = Leg(Load(Header(stream_id=1), packed, pub_seq=40), 9.0, lambda _leg, _ok: None)
    cost = PACKET_COST + 5

    def sizes(credit: int | None, packets: int) -> int | None:
        part = leg.next_part(credit, packets)
        return None if part is None else len(part)

    assert [sizes(None, 9), sizes(None, 2), sizes(3 * cost, 9), sizes(cost - 1, 9)] == [5, 2, 3, None]
    leg.sent = 2
    assert (sizes(None, 9), leg.next_number) == (3, 42)
