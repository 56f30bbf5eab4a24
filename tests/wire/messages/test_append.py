"""Messages to the leader of a replicated channel: golden bytes, round trips, splitting, and bytes that are none."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.append import (
    APPEND_ROOM,
    Append,
    Appended,
    AppendFlags,
    AppendMessage,
    Outcome,
    decode_append,
    encode_append,
    split_append,
)
from meshbus.wire.messages.leadership import MAX_MESSAGE, MAX_REPLICATED

ID = bytes(range(32))
REQUEST = "0700000000000000"

GOLDEN = [
    (
        Append(req=7, channel_id=ID, flags=AppendFlags.ONCE | AppendFlags.MORE, records=(b"ab", b"")),
        f"01 {REQUEST} {ID.hex()} 06 02000000 02000000 00000000 6162",
    ),
    (
        Appended(req=7, outcome=Outcome.NOT_LEADER, first_seq=1, count=2, leader=3),
        f"02 {REQUEST} 02 0100000000000000 02000000 0300000000000000",
    ),
]

U64 = st.integers(0, (1 << 64) - 1)
FLAGS = st.integers(0, 7).map(AppendFlags)
RECORDS = st.lists(st.binary(max_size=30), max_size=9).map(tuple)
MESSAGES = st.one_of(
    st.builds(Append, req=U64, channel_id=st.binary(min_size=32, max_size=32), flags=FLAGS, records=RECORDS),
    st.builds(
        Appended,
        req=U64,
        outcome=st.sampled_from(Outcome),
        first_seq=U64,
        count=st.integers(0, (1 << 32) - 1),
        leader=U64,
    ),
)


@pytest.mark.parametrize(("message", "wire"), GOLDEN)
def test_the_bytes_are_as_documented(message: AppendMessage, wire: str) -> None:
    assert encode_append(message) == bytes.fromhex(wire)
    assert decode_append(bytes.fromhex(wire)) == message


@given(MESSAGES)
def test_a_message_survives_a_round_trip(message: AppendMessage) -> None:
    assert decode_append(encode_append(message)) == message


@given(st.binary(max_size=80))
def test_other_bytes_never_crash(event: bytes) -> None:
    with suppress(MalformedPacket):
        decode_append(event)


@pytest.mark.parametrize(
    ("wire", "fault"),
    [
        ("", Fault.UNKNOWN_KIND),
        ("03", Fault.UNKNOWN_KIND),
        (GOLDEN[0][1][:-2], Fault.TRUNCATED),
        (GOLDEN[0][1] + "00", Fault.TRAILING),
        (GOLDEN[0][1].replace(" 06 ", " 08 "), Fault.BAD_VALUE),
        (GOLDEN[1][1].replace(f"{REQUEST} 02", f"{REQUEST} 09"), Fault.BAD_VALUE),
    ],
)
def test_malformed_messages_are_rejected(wire: str, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_append(bytes.fromhex(wire))
    assert caught.value.fault is fault


def test_an_append_is_split_into_messages_that_fit_a_packet() -> None:
    records = [bytes(MAX_REPLICATED), b"", *[bytes(100)] * 200, bytes(MAX_REPLICATED)]
    parts = list(split_append(5, ID, records, AppendFlags.LOCAL))
    assert [record for part in parts for record in part.records] == records
    assert all(len(encode_append(part)) <= MAX_MESSAGE for part in parts)
    assert [AppendFlags.MORE in part.flags for part in parts] == [True] * (len(parts) - 1) + [False]
    assert all(AppendFlags.LOCAL in part.flags and part.req == 5 for part in parts)
    assert len(list(split_append(5, ID, [], AppendFlags.NONE))) == 1
    with pytest.raises(LocalProtocolError, match=f"do not fit one packet of {MAX_MESSAGE}"):
        encode_append(Append(req=1, channel_id=ID, records=(bytes(APPEND_ROOM),)))
