from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.large import MAX_MESSAGE
from meshbus.wire.messages.request import (
    MAX_REPLY_PAYLOAD,
    Cancel,
    Reply,
    ReplyStatus,
    Request,
    RequestMessage,
    decode_request,
    encode_request,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import channels, u32, u64

REQ = 0x1122334455667788
PLAN = ChannelName("a/b")

# Written by hand from the layout: kind, req, then the fields, little-endian.
GOLDEN: list[tuple[RequestMessage, str]] = [
    (
        Request(req=REQ, deadline_ms=2000, channel=PLAN, payload=b"\xff\x00"),
        "01 8877665544332211 d0070000 03612f62 ff00",
    ),
    (Request(req=REQ, deadline_ms=0, channel=PLAN), "01 8877665544332211 00000000 03612f62"),
    (Reply(req=REQ, payload=b"yes"), "02 8877665544332211 00 01 796573"),
    (Reply(req=REQ, last=False), "02 8877665544332211 00 00"),
    (Reply(req=REQ, status=ReplyStatus.NO_RESPONDER), "02 8877665544332211 01 01"),
    (Reply(req=REQ, status=ReplyStatus.EXPIRED), "02 8877665544332211 06 01"),
    (Cancel(req=REQ), "03 8877665544332211"),
]

payloads = st.binary(max_size=300)
messages = st.one_of(
    st.builds(Request, req=u64, deadline_ms=u32, channel=channels, payload=payloads),
    st.builds(Reply, req=u64, status=st.sampled_from(ReplyStatus), last=st.booleans(), payload=payloads),
    st.builds(Cancel, req=u64),
)


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_golden_messages_read_and_write(message: RequestMessage, expected: str) -> None:
    assert encode_request(message) == bytes.fromhex(expected)
    assert decode_request(bytes.fromhex(expected)) == message


@given(messages)
def test_messages_round_trip(message: RequestMessage) -> None:
    assert decode_request(encode_request(message)) == message


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"\x00" + bytes(20), Fault.UNKNOWN_KIND),
        (b"\x04" + bytes(20), Fault.UNKNOWN_KIND),
        (b"\x01" + bytes(12), Fault.TRUNCATED),
        (b"\x01" + bytes(12) + b"\x02a", Fault.TRUNCATED),
        (b"\x01" + bytes(12) + b"\x00", Fault.BAD_NAME),
        (b"\x01" + bytes(12) + b"\x01A", Fault.BAD_NAME),
        (b"\x01" + bytes(12) + b"\x01\xe9", Fault.BAD_NAME),
        (b"\x02" + bytes(9), Fault.TRUNCATED),
        (b"\x02" + bytes(8) + b"\x07\x00", Fault.BAD_VALUE),
        (b"\x02" + bytes(8) + b"\x00\x02", Fault.BAD_VALUE),
        (b"\x03" + bytes(7), Fault.TRUNCATED),
        (b"\x03" + bytes(9), Fault.TRAILING),
    ],
)
def test_each_kind_of_damage_has_its_fault(event: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_request(event)
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "message",
    [
        Request(req=1 << 64, deadline_ms=0, channel=PLAN),
        Request(req=1, deadline_ms=1 << 32, channel=PLAN),
        Request(req=1, deadline_ms=-1, channel=PLAN),
        Request(req=1, deadline_ms=0, channel="Not//legal"),  # type: ignore[arg-type]
        Request(req=1, deadline_ms=0, channel=PLAN, payload=bytes(MAX_MESSAGE)),
        Reply(req=-1),
        Reply(req=1, payload=bytes(MAX_MESSAGE)),
        Cancel(req=1 << 64),
    ],
)
def test_what_no_peer_could_read_is_not_written(message: RequestMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode_request(message)


def test_the_largest_reply_fits_one_packet() -> None:
    assert len(encode_request(Reply(req=1, payload=bytes(MAX_REPLY_PAYLOAD)))) == MAX_EVENT


def test_a_payload_outlives_the_buffer_it_came_in() -> None:
    buffer = bytearray(encode_request(Reply(req=1, payload=b"answer")))
    reply = decode_request(buffer)
    buffer[:] = bytes(len(buffer))
    assert isinstance(reply, Reply)
    assert reply.payload == b"answer"


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_request, [bytes.fromhex(event) for _, event in GOLDEN])
