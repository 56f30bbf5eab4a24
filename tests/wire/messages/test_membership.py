from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import pack_frames, unpack_frames
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.membership import (
    Ack,
    AckReason,
    MembershipMessage,
    Subscribe,
    Unsubscribe,
    decode_membership,
    encode_membership,
)
from meshbus.wire.seal import Opener, Sealer
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import channels, text, u64

ENCODED: list[dict[str, Any]] = load("policy")["membership_encode"]["rows"]
CAPTURED: list[dict[str, Any]] = load("policy")["membership_captured_from_reference"]["rows"]
OBSERVED: list[dict[str, Any]] = load("policy")["membership_decode_observed"]["rows"]
REFUSED_ACKS: list[dict[str, Any]] = load("policy")["membership_decode_errors_not_sendable"]["rows"]
OUTCOMES: list[dict[str, Any]] = load("policy")["membership_client_outcomes"]["rows"]
STALE: dict[str, Any] = load("policy")["stale_channel_hash"]
MINIMAL: list[dict[str, Any]] = load("transport")["membership_min"]

LAB = ChannelName("lab/open")
NONCE = 0x1122334455667788

messages = st.one_of(
    st.builds(
        Subscribe,
        nonce=u64,
        channel=channels,
        token=st.binary(max_size=300),
        queue_group=text.filter(lambda group: len(group.encode()) <= 255),
    ),
    st.builds(Unsubscribe, nonce=u64, channel=channels),
    st.builds(Ack, nonce=u64, accepted=st.booleans(), reason=st.sampled_from(AckReason)),
)


def message_of(row: dict[str, Any]) -> MembershipMessage:
    nonce = int(row["nonce"], 16)
    if "accepted" in row:
        return Ack(nonce=nonce, accepted=row["accepted"], reason=AckReason[(row["reason"] or "none").upper()])
    channel = ChannelName(row["channel"])
    if row["case"] == "unsubscribe":
        return Unsubscribe(nonce=nonce, channel=channel)
    return Subscribe(
        nonce=nonce,
        channel=channel,
        token=bytes.fromhex(row["token"] or ""),
        queue_group=row["queue_group"] or "",
    )


@pytest.mark.parametrize("row", ENCODED, ids=[row["case"] for row in ENCODED])
def test_golden_messages_read_and_write(row: dict[str, Any]) -> None:
    event = encode_membership(message_of(row))
    assert event.hex() == row["hex"]
    assert len(event) == row["len"]
    assert decode_membership(event) == message_of(row)


@pytest.mark.parametrize("row", CAPTURED)
def test_messages_of_a_real_node_read_and_write(row: dict[str, Any]) -> None:
    event = bytes.fromhex(row["hex"])
    message = decode_membership(event)
    assert type(message).__name__.lower() == row["type"]
    assert message.nonce == int(row["nonce"], 16)
    assert encode_membership(message) == event
    assert int(row["header"]["subprotocol"], 16) == row["header"]["stream_id"] == Subprotocol.MEMBERSHIP


@pytest.mark.parametrize("row", MINIMAL, ids=[row["kind"] for row in MINIMAL])
def test_the_smallest_exchange_reads_and_writes(row: dict[str, Any]) -> None:
    nonce = int(row["nonce"], 16)
    message: MembershipMessage
    if row["kind"] == "subscribe":
        message = Subscribe(nonce=nonce, channel=ChannelName(row["channel"]))
    else:
        message = Ack(nonce=nonce, accepted=True)
    assert encode_membership(message).hex() == row["event"]
    assert decode_membership(bytes.fromhex(row["event"])) == message


@pytest.mark.parametrize("row", OBSERVED, ids=[row["case"] for row in OBSERVED])
def test_what_a_real_node_drops_we_refuse_to_read(row: dict[str, Any]) -> None:
    event = bytes.fromhex(row["hex"])
    if row["reply"] is None:
        with pytest.raises(MalformedPacket):
            decode_membership(event)
        return
    reply = decode_membership(bytes.fromhex(row["reply"]))
    assert isinstance(reply, Ack)
    # A channel that nobody registered is answered with a reason: the message itself was readable.
    expected = AckReason.UNKNOWN_CHANNEL if row["case"] == "unknown_channel" else AckReason.NONE
    assert reply.reason is expected
    assert decode_membership(event).nonce == reply.nonce


@pytest.mark.parametrize("row", REFUSED_ACKS)
def test_acks_that_no_node_sends_are_refused(row: dict[str, Any]) -> None:
    event = bytes.fromhex(row["hex"])
    if len(event) == 11 and event[-2] <= 1:
        # Later versions have more reasons, so an unknown one is read (dialects.md §3.2, rule 8).
        ack = decode_membership(bytes.fromhex(row["hex"]))
        assert isinstance(ack, Ack)
        assert ack.reason in {AckReason.IDENTITY_NOT_PROVED, AckReason.OTHER}
        return
    with pytest.raises(MalformedPacket) as caught:
        decode_membership(bytes.fromhex(row["hex"]))
    expected = {
        "truncated": Fault.TRUNCATED,
        "truncated(trailing bytes)": Fault.TRAILING,
    }.get(row["error"], Fault.BAD_VALUE)
    assert caught.value.fault is expected


@pytest.mark.parametrize("row", OUTCOMES)
def test_accepted_counts_whatever_the_reason_is(row: dict[str, Any]) -> None:
    ack = decode_membership(b"\x02" + bytes(8) + bytes((row["accepted_byte"], row["reason_byte"])))
    assert isinstance(ack, Ack)
    assert ack.reason == row["reason_byte"]
    assert ack.accepted is (row["client_outcome"] == "ok")
    if not ack.accepted:
        assert ack.reason.name.replace("_", " ").lower() in row["client_outcome"].lower()


def test_a_stale_channel_hash_in_the_packet_means_nothing() -> None:
    stale = int(STALE["header_channel_hash_on_subscribe"], 16)
    assert stale == LAB.wire_hash == int(STALE["wire_hash_of_lab_open"], 16)
    header = Header(
        subprotocol_id=Subprotocol.MEMBERSHIP,
        channel_hash=stale,
        stream_id=Subprotocol.MEMBERSHIP,
        origin_hash=int(STALE["header_origin_hash_on_subscribe"], 16),
        event_count=1,
    )
    message = Subscribe(nonce=NONCE, channel=ChannelName("another/channel"))
    datagram = Sealer(derive_keys(bytes(32), Role.INITIATOR)).seal(header, pack_frames([encode_membership(message)]))
    opened, payload = Opener(derive_keys(bytes(32), Role.RESPONDER)).open(datagram)
    (event,) = unpack_frames(payload, opened.event_count)
    assert opened.channel_hash != message.channel.wire_hash
    assert decode_membership(event) == message


@given(messages)
def test_messages_round_trip(message: MembershipMessage) -> None:
    assert decode_membership(encode_membership(message)) == message


def subscribe_with(rest: str) -> bytes:
    return b"\x00" + NONCE.to_bytes(8, "little") + b"\x08lab/open" + bytes.fromhex(rest)


@pytest.mark.parametrize(
    ("rest", "token", "group"),
    [
        ("", b"", ""),
        ("0000", b"", ""),
        ("000000", b"", ""),
        ("0200abcd", b"\xab\xcd", ""),
        ("0200abcd00", b"\xab\xcd", ""),
        ("0000026161", b"", "aa"),
        ("000002c3a9", b"", "é"),
    ],
)
def test_the_tail_of_a_subscribe_may_be_left_out(rest: str, token: bytes, group: str) -> None:
    expected = Subscribe(nonce=NONCE, channel=LAB, token=token, queue_group=group)
    assert decode_membership(subscribe_with(rest)) == expected


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"\x03" + bytes(20), Fault.UNKNOWN_KIND),
        (b"\x00" + bytes(8), Fault.TRUNCATED),
        (b"\x01" + bytes(8) + b"\x09lab/open", Fault.TRUNCATED),
        (b"\x01" + bytes(8) + b"\x08lab/openX", Fault.TRAILING),
        (b"\x01" + bytes(8) + b"\x00", Fault.BAD_NAME),
        (b"\x01" + bytes(8) + b"\x08Lab/open", Fault.BAD_NAME),
        (b"\x01" + bytes(8) + b"\x02\xff\xfe", Fault.BAD_NAME),
        (b"\x01" + bytes(8) + b"\x04a\xc3\xa9b", Fault.BAD_NAME),
        (subscribe_with("00"), Fault.TRUNCATED),
        (subscribe_with("0300abcd"), Fault.TRUNCATED),
        (subscribe_with("00000361"), Fault.TRUNCATED),
        (subscribe_with("00000261"), Fault.TRUNCATED),
        (subscribe_with("0000016161"), Fault.TRAILING),
        (subscribe_with("00000000"), Fault.TRAILING),
        (subscribe_with("000002fffe"), Fault.BAD_TEXT),
    ],
)
def test_each_kind_of_damage_has_its_fault(event: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_membership(event)
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "message",
    [
        Subscribe(nonce=1 << 64, channel=LAB),
        Subscribe(nonce=-1, channel=LAB),
        Subscribe(nonce=1, channel="Lab//Open"),  # type: ignore[arg-type]
        Subscribe(nonce=1, channel=LAB, token=bytes(65536)),
        Subscribe(nonce=1, channel=LAB, queue_group="g" * 256),
        Subscribe(nonce=1, channel=LAB, queue_group="\ud800"),
        Unsubscribe(nonce=1, channel=""),  # type: ignore[arg-type]
        Ack(nonce=1 << 64, accepted=True),
    ],
)
def test_what_no_peer_could_read_is_not_written(message: MembershipMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode_membership(message)


def test_damaged_messages_never_crash() -> None:
    cases = {row["case"]: bytes.fromhex(row["hex"]) for row in ENCODED}
    chosen = ["subscribe queue group", "subscribe token + queue group", "unsubscribe", "ack ok"]
    assert_survives(decode_membership, [cases[case] for case in chosen])
