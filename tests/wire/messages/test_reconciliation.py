"""Messages of log reconciliation: fixed bytes, round trips, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.messages.causal import CausalEvent, CausalLink
from meshbus.wire.messages.continuity import ForkRecord, encode_fork
from meshbus.wire.messages.reconciliation import (
    EVENTS_BYTES,
    MAX_CHAINED_PAYLOAD,
    MAX_POINTS,
    Branch,
    Diff,
    Events,
    Point,
    Range,
    ReconciliationMessage,
    Want,
    decode_reconciliation,
    encode_reconciliation,
    pack_branches,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import u64

FORK = ForkRecord(original_origin=1, forked_origin=2, fork_seq=3)


def eight(number: int) -> str:
    return number.to_bytes(8, "little").hex()


FIXED: list[tuple[ReconciliationMessage, str]] = [
    (Range(origin=1, first=1, last=0, hash=9), "01" + eight(1) + eight(1) + eight(0) + eight(9)),
    (Diff(origin=1, points=(Point(5, 6), Point(0, 7))), "02" + eight(1) + "02" + eight(5) + eight(6) + eight(0) + eight(7)),
    (Branch(record=FORK, count=2, head_hash=3), "03" + "02000000" + eight(3) + encode_fork(FORK).hex()),
    (
        Events(origin=1, split=2, last=True, events=(CausalEvent(CausalLink(1, 2, 3, 4), b"hi"),)),
        "04" + eight(1) + eight(0) + eight(2) + "01" + "0100" + "22000000" + eight(1) + eight(2) + eight(3) + eight(4) + "6869",
    ),
    (Events(origin=1, branch=2, split=2, last=False, events=()), "04" + eight(1) + eight(2) + eight(2) + "00" + "0000"),
    (Want(origin=1, branch=2), "05" + eight(1) + eight(2)),
]  # fmt: skip

events = st.builds(CausalEvent, st.builds(CausalLink, u64, u64, u64, u64), st.binary(max_size=9))
points = st.lists(st.builds(Point, u64, u64), min_size=1, max_size=9, unique_by=lambda point: point.sequence)
messages = st.one_of(
    st.builds(Diff, origin=u64, points=points.map(lambda found: tuple(sorted(found, reverse=True)))),
    st.builds(
        Events,
        origin=u64,
        branch=u64,
        split=u64,
        last=st.booleans(),
        events=st.lists(events, max_size=4).map(tuple),
    ),
    st.builds(Want, origin=u64, branch=u64),
)


@pytest.mark.parametrize(("message", "event"), FIXED)
def test_the_bytes_are_fixed(message: ReconciliationMessage, event: str) -> None:
    assert encode_reconciliation(message).hex() == event
    assert decode_reconciliation(bytes.fromhex(event)) == message


@given(messages)
def test_messages_round_trip(message: ReconciliationMessage) -> None:
    assert decode_reconciliation(encode_reconciliation(message)) == message


@pytest.mark.parametrize(
    "event",
    [
        "",
        "00",
        "06",
        "01" + eight(1) + eight(0) + eight(0) + eight(9),
        "01" + eight(1) + eight(5) + eight(3) + eight(9),
        "02" + eight(1) + "00",
        "02" + eight(1) + "02" + eight(5) + eight(6) + eight(5) + eight(7),
        "03" + "00000000" + eight(3) + encode_fork(FORK).hex(),
        FIXED[3][1] + "00",
        FIXED[3][1][:-2],
        FIXED[4][1][:-6] + "020000",
    ],
)
def test_anything_else_is_refused(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_reconciliation(bytes.fromhex(event))


@pytest.mark.parametrize(
    "message",
    [
        Range(origin=1, first=0, last=0, hash=0),
        Range(origin=1, first=5, last=3, hash=0),
        Diff(origin=1, points=()),
        Diff(origin=1, points=tuple(Point(number, 0) for number in range(MAX_POINTS + 1, 0, -1))),
        Diff(origin=1, points=(Point(1, 0), Point(1, 0))),
        Events(
            origin=1, split=0, last=True, events=(CausalEvent(CausalLink(1), bytes(MAX_CHAINED_PAYLOAD + 1)),)
        ),
    ],
)  # fmt: skip
def test_what_peers_would_refuse_is_not_written(message: ReconciliationMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode_reconciliation(message)


def test_many_events_take_several_messages() -> None:
    largest = CausalEvent(CausalLink(1), bytes(MAX_CHAINED_PAYLOAD))
    small = [CausalEvent(CausalLink(1), b"x" * 30)] * 400
    groups = list(pack_branches([*small, largest, *small]))
    assert [event for group in groups for event in group] == [*small, largest, *small]
    for group in groups:
        encoded = encode_reconciliation(Events(origin=1, split=0, last=False, events=group))
        assert len(encoded) <= EVENTS_BYTES + 28
    assert list(pack_branches([])) == [()]


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_reconciliation, [bytes.fromhex(event) for _, event in FIXED], randoms=5_000)
