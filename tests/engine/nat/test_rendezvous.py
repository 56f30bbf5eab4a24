"""Rendezvous as coordinator: introductions, refusals with their reasons, and forwarded acknowledgements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.nat import rendezvous
from meshbus.engine.nat.rendezvous import (
    ACK_S,
    LEAD_MS,
    MAX_INTRODUCTIONS,
    PEER_BURST,
    TOTAL_BURST,
)
from meshbus.engine.session.dialect import Level
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.messages.rendezvous import (
    PunchAck,
    PunchIntroduce,
    PunchReject,
    PunchRequest,
    RejectReason,
    RendezvousMessage,
    decode_rendezvous,
    encode_rendezvous,
)
from meshbus.wire.route import RouteHeader
from tests.engine.stage import wall
from tests.engine.wires import FarEnd
from tests.vectors import load

VECTORS = load("mesh")["rendezvous"]
HUB = 1
ASKER, WANTED, THIRD = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
SEEN = Address("203.0.113.1", 40_000)
REFLEX = Address("203.0.113.2", 41_000)
NOW_MS = wall(0.0) // 1_000_000


class Desk:
    """A coordinator with three neighbors, one of which has said where it is."""

    def __init__(self) -> None:
        engine = rig(node_id=HUB, wall=wall)
        self.peers, self.counters = engine.peers, engine.counters
        self.opened: list[int] = []
        self.rendezvous = engine.traversal.rendezvous
        self.punches = self.rendezvous.punches
        self.punches.opened = lambda node_id, _address, _now, _out: self.opened.append(node_id)
        self.asker = FarEnd(self.peers, ASKER.node_id, address=SEEN)
        self.wanted = FarEnd(self.peers, WANTED.node_id, address=("203.0.113.2", 42_000))
        self.third = FarEnd(self.peers, THIRD.node_id, address=("203.0.113.3", 43_000))
        self.say(WANTED, REFLEX)

    def say(self, who: Identity, where: Address) -> None:
        announcement = Announcement(
            node_id=who.node_id, entity_id=who.entity_id, version=1, timestamp_ns=0, reflex_addr=str(where)
        )
        self.rendezvous.announced(self.third.peer, announcement.sign(who), 0.0)

    def take(
        self, sender: FarEnd, message: RendezvousMessage | bytes, now: float = 0.0
    ) -> dict[int, list[RendezvousMessage]]:
        """Take a message; return what each neighbor got because of it."""
        out = Output()
        encoded = message if isinstance(message, bytes) else encode_rendezvous(message)
        self.rendezvous.receive(sender.peer, encoded, now, out)
        got = {far.node_id: self.read(far, out) for far in (self.asker, self.wanted, self.third)}
        assert sum(map(len, got.values())) == len(out.trains), "nothing goes anywhere else"
        return {node_id: messages for node_id, messages in got.items() if messages}

    @staticmethod
    def read(far: FarEnd, out: Output) -> list[RendezvousMessage]:
        messages = far.read(out)
        assert all(subprotocol_id == Subprotocol.RENDEZVOUS for subprotocol_id, _ in messages)
        return [decode_rendezvous(event) for _, event in messages]

    def refused(self) -> dict[str, int]:
        return self.counters.snapshot().get("refuse", {})


def request(target: Identity = WANTED, reflex: Address = SEEN) -> PunchRequest:
    return PunchRequest(target=target.node_id, self_reflex=reflex)


def ack(sender: Identity = WANTED, receiver: Identity = ASKER) -> PunchAck:
    return PunchAck(from_peer=sender.node_id, to_peer=receiver.node_id)


def test_both_get_the_address_of_the_other_and_the_time_to_send() -> None:
    desk = Desk()
    fire_at_ms = NOW_MS + LEAD_MS
    assert desk.take(desk.asker, request()) == {
        ASKER.node_id: [PunchIntroduce(peer=WANTED.node_id, peer_reflex=REFLEX, fire_at_ms=fire_at_ms)],
        WANTED.node_id: [PunchIntroduce(peer=ASKER.node_id, peer_reflex=SEEN, fire_at_ms=fire_at_ms)],
    }
    assert pytest.approx(VECTORS["timing_observed"]["fire_lead_ms"], abs=1) == LEAD_MS
    assert desk.counters.snapshot() == {"introduction": {"made": 1}}


def test_a_neighbor_that_has_announced_no_address_is_where_we_see_it() -> None:
    desk = Desk()
    told = desk.take(desk.asker, request(THIRD))[ASKER.node_id]
    assert told == [
        PunchIntroduce(peer=THIRD.node_id, peer_reflex=Address("203.0.113.3", 43_000), fire_at_ms=NOW_MS + LEAD_MS)
    ]


def test_a_question_of_ours_has_the_form_that_the_coordinator_reads() -> None:
    desk, numbers = Desk(), iter(range(1, 9))

    def asked(level: Level | None) -> list[RendezvousMessage]:
        out = Output()
        if level is not None:
            desk.third.peer.dialect.learn(level)
        desk.rendezvous.ask(desk.third.peer, WANTED.node_id, SEEN, out)
        return Desk.read(desk.third, out)

    def numbered() -> RendezvousMessage:
        return PunchRequest(target=WANTED.node_id, self_reflex=SEEN, punch_id=next(numbers))

    assert asked(None) == [request(), numbered()]
    assert asked(Level.A) == [request()]
    next(numbers)
    assert asked(Level.B) == [request(), numbered()], "level B has both"
    assert asked(Level.C) == [numbered()]


def test_both_forms_of_one_question_are_one_introduction() -> None:
    desk = Desk()
    assert len(desk.take(desk.asker, request())) == 2
    both = PunchRequest(target=WANTED.node_id, self_reflex=SEEN, punch_id=1)
    assert desk.take(desk.asker, both, 0.01) == {}
    assert desk.counters.get("introduction", "made") == 1
    assert len(desk.take(desk.asker, both, 1.0)) == 2, "later it is another question"


def test_a_question_with_a_number_is_refused_with_a_reason() -> None:
    desk = Desk()
    question = PunchRequest(target=12345, self_reflex=SEEN, punch_id=7)
    answers = desk.take(desk.asker, question)
    assert answers == {ASKER.node_id: [PunchReject(target=12345, punch_id=7, reason=RejectReason.NO_SESSION)]}


def test_a_refusal_is_passed_on() -> None:
    desk, heard = Desk(), []
    desk.rendezvous.rejected = lambda coordinator, target, _now, _out: heard.append((coordinator, target))
    desk.take(desk.third, PunchReject(target=WANTED.node_id, punch_id=1, reason=200))
    assert heard == [(THIRD.node_id, WANTED.node_id)]


def _no_session(desk: Desk) -> None:
    desk.peers.remove(WANTED.node_id)


def _relayed(desk: Desk) -> None:
    FarEnd(desk.peers, WANTED.node_id, session=1, route=RouteHeader(src_id=1, dest_id=WANTED.node_id))


def _nowhere(desk: Desk) -> None:
    FarEnd(desk.peers, THIRD.node_id, session=1, address="a place without an address")


@pytest.mark.parametrize(
    ("reason", "message", "before"),
    [
        (Reason.REFUSE_INTRODUCTION_TARGET, request(ASKER), None),
        (Reason.REFUSE_INTRODUCTION_TARGET, PunchRequest(target=HUB, self_reflex=SEEN), None),
        (Reason.REFUSE_INTRODUCTION_TARGET, PunchRequest(target=0, self_reflex=SEEN), None),
        (Reason.REFUSE_INTRODUCTION_NO_SESSION, PunchRequest(target=999, self_reflex=SEEN), None),
        (Reason.REFUSE_INTRODUCTION_NO_SESSION, request(), _no_session),
        (Reason.REFUSE_INTRODUCTION_NO_SESSION, request(), _relayed),
        (Reason.REFUSE_INTRODUCTION_NO_REFLEX, request(THIRD), _nowhere),
        (Reason.REFUSE_INTRODUCTION_ADDRESS, request(reflex=Address("0.0.0.0", 9)), None),
        (Reason.REFUSE_INTRODUCTION_ADDRESS, request(reflex=Address("127.0.0.1", 9)), None),
        (Reason.REFUSE_INTRODUCTION_ADDRESS, request(reflex=Address(SEEN.host, 0)), None),
        (Reason.REFUSE_INTRODUCTION_FOREIGN_ADDRESS, request(reflex=Address("198.51.100.66", 53)), None),
    ],
)
def test_every_refusal_is_silent_and_counted(
    reason: Reason, message: PunchRequest, before: Callable[[Desk], None] | None
) -> None:
    desk = Desk()
    if before is not None:
        before(desk)
    assert desk.take(desk.asker, message) == {}
    assert desk.counters.snapshot() == {"refuse": {reason.why: 1}}


def test_an_address_may_be_where_the_asking_node_has_announced_to_be() -> None:
    """A coordinator in the asking node's own network sees another address than the rest of the world."""
    desk = Desk()
    outside = Address("198.51.100.66", 53)
    desk.say(ASKER, outside)
    assert len(desk.take(desk.asker, request(reflex=outside))) == 2


def test_one_acknowledgement_of_each_side_is_passed_on() -> None:
    desk = Desk()
    desk.take(desk.asker, request())
    assert desk.take(desk.wanted, ack()) == {ASKER.node_id: [ack()]}
    assert desk.take(desk.asker, ack(ASKER, WANTED)) == {WANTED.node_id: [ack(ASKER, WANTED)]}
    assert desk.take(desk.wanted, ack()) == {}
    assert desk.refused() == {"introduction_ack": 1}


def test_acknowledgements_are_passed_on_in_their_sender_s_name_and_in_time_only() -> None:
    desk = Desk()
    assert desk.take(desk.wanted, ack()) == {}
    desk.take(desk.asker, request())
    assert desk.take(desk.third, ack()) == {}, "somebody else's name"
    assert desk.take(desk.third, ack(THIRD, ASKER)) == {}, "never introduced"
    assert desk.take(desk.wanted, ack(), ACK_S + 0.1) == {}
    desk.take(desk.asker, request(), 20.0)
    desk.peers.remove(ASKER.node_id)
    assert desk.take(desk.wanted, ack(), 20.0) == {}, "nobody to pass it to"
    assert desk.refused() == {"introduction_ack": 5}


def test_messages_to_us_reach_the_punches() -> None:
    desk = Desk()
    desk.take(desk.third, PunchIntroduce(peer=WANTED.node_id, peer_reflex=REFLEX, fire_at_ms=0))
    assert len(desk.punches) == 1
    desk.take(desk.third, PunchAck(from_peer=WANTED.node_id, to_peer=HUB))
    assert desk.opened == [WANTED.node_id]


def test_floods_of_one_peer_and_of_all_are_bounded() -> None:
    desk = Desk()
    made = sum(len(desk.take(desk.asker, request())) == 2 for _ in range(500))
    assert made == PEER_BURST
    assert desk.refused() == {"introduction_rate": 500 - int(PEER_BURST)}
    crowd = [FarEnd(desk.peers, 1000 + n, address=(SEEN.host, n + 1)) for n in range(int(TOTAL_BURST))]
    for far in crowd:
        out = Output()
        desk.rendezvous.receive(far.peer, encode_rendezvous(request()), 0.0, out)
        made += len(out.trains) == 2
    assert made == TOTAL_BURST


def test_introductions_are_remembered_within_bounds() -> None:
    desk = Desk()
    for number in range(MAX_INTRODUCTIONS + 5):
        far = FarEnd(desk.peers, 1000 + number, address=(SEEN.host, number + 1))
        desk.rendezvous.receive(far.peer, encode_rendezvous(request()), number / 100, Output())
    assert desk.counters.get("introduction", "made") == MAX_INTRODUCTIONS + 5
    assert desk.counters.get("forget", "introductions") > 0
    assert len(desk.rendezvous._introduced) == MAX_INTRODUCTIONS


@pytest.mark.parametrize("junk", VECTORS["rejects"])
def test_what_a_real_node_rejects_is_counted(junk: str) -> None:
    desk = Desk()
    assert desk.take(desk.asker, bytes.fromhex(junk)) == {}
    assert desk.counters.snapshot() == {"drop": {"rendezvous_malformed": 1}}


@pytest.mark.parametrize("row", VECTORS["messages"], ids=lambda row: row["name"])
def test_golden_messages_are_understood(row: dict[str, str]) -> None:
    desk = Desk()
    desk.take(desk.asker, bytes.fromhex(row["hex"]))
    assert "drop" not in desk.counters.snapshot()


def test_rates_of_askers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_RATED", 3)
    desk = Desk()
    for number in range(8):
        far = FarEnd(desk.peers, 1000 + number, address=(SEEN.host, number + 1))
        desk.rendezvous.receive(far.peer, encode_rendezvous(request()), 0.0, Output())
    assert len(desk.rendezvous._rates) == 3
    assert desk.counters.get("forget", "introduction_rates") == 5
