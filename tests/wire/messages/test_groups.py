"""Group messages: fixed bytes, round trips, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.messages.groups import (
    MAX_INPUT,
    GroupInput,
    GroupMessage,
    GroupRefused,
    GroupState,
    RefusalCode,
    SlotFlags,
    SlotState,
    decode_group,
    encode_group,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import u8, u32, u64

FIXED: list[tuple[GroupMessage, str]] = [
    (GroupState(group=7, slots=()), "01" + "07000000" + "00"),
    (
        GroupState(group=7, slots=(SlotState(0, SlotFlags.RUNS, 1, 2, 3), SlotState(2, SlotFlags.COPY, 4, 5, 6))),
        "01" + "07000000" + "02" + "0001" + "".join(f"{n:02x}" + "00" * 7 for n in (1, 2, 3))
        + "0202" + "".join(f"{n:02x}" + "00" * 7 for n in (4, 5, 6)),
    ),
    (
        GroupInput(group=1, slot=2, origin=3, sequence=4, payload=b"hi"),
        "02" + "01000000" + "02" + "03" + "00" * 7 + "04" + "00" * 7 + "6869",
    ),
    (
        GroupRefused(group=1, slot=2, code=RefusalCode.NOT_HERE, runner=5),
        "03" + "01000000" + "02" + "01" + "05" + "00" * 7,
    ),
]  # fmt: skip

slots = st.builds(SlotState, u8, st.sampled_from([SlotFlags(bits) for bits in range(4)]), u64, u64, u64)
messages = st.one_of(
    st.builds(
        GroupState,
        group=u32,
        slots=st.lists(slots, max_size=4, unique_by=lambda one: one.slot).map(
            lambda found: tuple(sorted(found, key=lambda one: one.slot))
        ),
    ),
    st.builds(GroupInput, group=u32, slot=u8, origin=u64, sequence=u64, payload=st.binary(max_size=40)),
    st.builds(GroupRefused, group=u32, slot=u8, code=st.sampled_from(RefusalCode), runner=u64),
)


@pytest.mark.parametrize(("message", "event"), FIXED)
def test_the_bytes_are_fixed(message: GroupMessage, event: str) -> None:
    assert encode_group(message).hex() == event
    assert decode_group(bytes.fromhex(event)) == message


@given(messages)
def test_messages_round_trip(message: GroupMessage) -> None:
    assert decode_group(encode_group(message)) == message


@pytest.mark.parametrize(
    "event",
    ["", "00", "04", "01" + "07000000" + "01", "03" + "01000000" + "02" + "00" + "05" + "00" * 7, FIXED[3][1] + "00"],
)
def test_anything_else_is_refused(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_group(bytes.fromhex(event))


def test_members_are_in_order_and_each_once() -> None:
    doubled = GroupState(group=1, slots=(SlotState(1), SlotState(1)))
    with pytest.raises(LocalProtocolError, match="ascending"):
        encode_group(doubled)
    raw = bytes.fromhex(FIXED[1][1])
    with pytest.raises(MalformedPacket, match="ascending"):
        decode_group(raw[:6] + raw[32:] + raw[6:32])


def test_an_event_fits_one_packet() -> None:
    whole = GroupInput(group=1, slot=0, origin=2, sequence=3, payload=bytes(MAX_INPUT))
    assert decode_group(encode_group(whole)) == whole
    with pytest.raises(LocalProtocolError, match="do not fit"):
        encode_group(GroupInput(group=1, slot=0, origin=2, sequence=3, payload=bytes(MAX_INPUT + 1)))


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_group, [bytes.fromhex(event) for _, event in FIXED], randoms=5_000)
