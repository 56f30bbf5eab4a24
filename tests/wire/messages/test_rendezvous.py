from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.rendezvous import (
    PunchAck,
    PunchIntroduce,
    PunchReject,
    PunchRequest,
    RendezvousMessage,
    decode_rendezvous,
    encode_rendezvous,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import addresses, u32, u64

# The last two were sent by a real node.
GOLDEN: list[tuple[RendezvousMessage, str]] = [
    (
        PunchRequest(target=0x1122334455667788, self_reflex=Address("192.0.2.1", 9001)),
        "01112233445566778804c00002010000000000000000000000002329",
    ),
    (
        PunchIntroduce(peer=0x1122334455667788, peer_reflex=Address("192.0.2.1", 9001), fire_at_ms=1_700_000_000_123),
        "02112233445566778804c000020100000000000000000000000023290000018bcfe5687b",
    ),
    (
        PunchAck(from_peer=0x1122334455667788, to_peer=0x99AABBCCDDEEFF00),
        "03112233445566778899aabbccddeeff0000000000",
    ),
    (
        PunchIntroduce(peer=0xB9A0F1B846C5356C, peer_reflex=Address("127.0.0.1", 41063), fire_at_ms=1_794_767_135_768),
        "02b9a0f1b846c5356c047f000001000000000000000000000000a067000001a1e0752418",
    ),
    (
        PunchAck(from_peer=0xB9A0F1B846C5356C, to_peer=0x3F7551CFA44D4A50),
        "03b9a0f1b846c5356c3f7551cfa44d4a5000000000",
    ),
]

messages = st.one_of(
    st.builds(PunchRequest, target=u64, self_reflex=addresses),
    st.builds(PunchIntroduce, peer=u64, peer_reflex=addresses, fire_at_ms=u64),
    st.builds(PunchAck, from_peer=u64, to_peer=u64, punch_id=u32),
    st.builds(PunchRequest, target=u64, self_reflex=addresses, punch_id=u32),
    st.builds(PunchReject, target=u64, punch_id=u32, reason=st.integers(0, 255)),
)

LATER = [row for row in load("dialects")["messages"] if row["subprotocol"] == "0x0d01"]


@pytest.mark.parametrize("row", LATER, ids=[f"{row['version']} {row['name']}" for row in LATER])
def test_messages_of_later_versions_read_and_write(row: dict[str, Any]) -> None:
    fields, message = row["fields"], decode_rendezvous(bytes.fromhex(row["hex"]))
    assert encode_rendezvous(message).hex() == row["hex"]
    assert isinstance(message, PunchRequest | PunchReject)
    assert (message.target, message.punch_id) == (int(fields["target"], 16), fields["punch_id"])
    if isinstance(message, PunchReject):
        assert message.reason == fields["reason"]
    else:
        assert str(message.self_reflex) == fields["self_reflex"]


@pytest.mark.parametrize(("message", "event"), GOLDEN)
def test_golden_messages_read_and_write(message: RendezvousMessage, event: str) -> None:
    assert encode_rendezvous(message).hex() == event
    assert decode_rendezvous(bytes.fromhex(event)) == message


@given(messages)
def test_messages_round_trip(message: RendezvousMessage) -> None:
    assert decode_rendezvous(encode_rendezvous(message)) == message


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ("", Fault.TRUNCATED),
        ("00" + "00" * 20, Fault.UNKNOWN_KIND),
        ("05", Fault.UNKNOWN_KIND),
        ("04" + "00" * 12, Fault.TRUNCATED),
        ("01" + "00" * 30, Fault.TRUNCATED),
        ("01" + "00" * 32, Fault.TRAILING),
        ("01" + "00" * 26, Fault.TRUNCATED),
        ("02" + "00" * 34, Fault.TRUNCATED),
        ("03" + "00" * 19, Fault.TRUNCATED),
        ("03" + "00" * 21, Fault.TRAILING),
        ("01" + "00" * 8 + "05" + "00" * 18, Fault.UNKNOWN_KIND),
    ],
)
def test_other_bytes_are_refused(event: str, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_rendezvous(bytes.fromhex(event))
    assert caught.value.fault is fault


def test_values_that_do_not_fit_are_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_rendezvous(PunchAck(from_peer=1 << 64, to_peer=1))
    with pytest.raises(LocalProtocolError):
        encode_rendezvous(PunchRequest(target=1, self_reflex=Address("nowhere", 1)))


def test_damaged_messages_never_crash() -> None:
    later = [bytes.fromhex(row["hex"]) for row in LATER]
    assert_survives(decode_rendezvous, [*(bytes.fromhex(event) for _, event in GOLDEN[:3]), *later])
