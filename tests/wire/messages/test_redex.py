from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket, RemoteProtocolError
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.redex import (
    MAX_REPLICATED,
    RESPONSE_ROOM,
    BandwidthClass,
    NackCode,
    RedexMessage,
    Reserved,
    Role,
    SyncHeartbeat,
    SyncNack,
    SyncRequest,
    SyncResponse,
    chain_of,
    channel_id,
    decode_redex,
    encode_redex,
    response_size,
)
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import keys, u32, u64

VECTORS: dict[str, Any] = load("subprotocols")["redex"]
MESSAGES: list[dict[str, Any]] = VECTORS["messages"]
ID = channel_id("payments/settlements")

messages = st.one_of(
    st.builds(
        SyncRequest,
        channel_id=keys,
        since_seq=u64,
        chunk_max=u32,
        request_id=u64,
        bandwidth_class=st.sampled_from(BandwidthClass),
    ),
    st.builds(
        SyncResponse,
        channel_id=keys,
        first_seq=u64,
        leader_first_retained_seq=u64,
        request_id=u64,
        events=st.lists(st.tuples(u64, st.binary(max_size=30)), max_size=10).map(tuple),
    ),
    st.builds(SyncHeartbeat, channel_id=keys, tail_seq=u64, role=st.sampled_from(Role), wall_clock_ms=u64),
    st.builds(
        SyncNack,
        channel_id=keys,
        since_seq=u64,
        code=st.sampled_from(NackCode),
        leader_first_retained_seq=u64,
        request_id=u64,
        detail=st.text(max_size=40).filter(lambda text: text.isprintable()),
    ),
)


def message_of(vector: dict[str, Any]) -> RedexMessage:
    """Build the value that a vector describes."""
    fields = dict(vector["fields"])
    known: dict[str, Any] = {"channel_id": channel_id(fields["channel"])}
    match vector["type"]:
        case "SyncRequest":
            number = fields["decoded_class"] if "decoded_class" in fields else fields["bandwidth_class"]
            known |= {name: fields[name] for name in ("since_seq", "chunk_max", "request_id")}
            return SyncRequest(**known, bandwidth_class=BandwidthClass(number))
        case "SyncResponse":
            known |= {name: fields[name] for name in ("first_seq", "leader_first_retained_seq", "request_id")}
            return SyncResponse(**known, events=tuple((seq, bytes.fromhex(raw)) for seq, raw in fields["events"]))
        case "SyncHeartbeat":
            assert Role(fields["role"]).name == fields["role_name"].upper()
            return SyncHeartbeat(
                **known, tail_seq=fields["tail_seq"], role=Role(fields["role"]), wall_clock_ms=fields["wall_clock_ms"]
            )
        case _:
            assert NackCode(fields["error_code"]).name.replace("_", "") == fields["error_name"].upper()
            known |= {name: fields[name] for name in ("since_seq", "leader_first_retained_seq", "request_id", "detail")}
            return SyncNack(**known, code=NackCode(fields["error_code"]))


@pytest.mark.parametrize("vector", VECTORS["channel_id"], ids=lambda vector: vector["name"][:30])
def test_channel_ids_are_those_of_the_reference(vector: dict[str, str]) -> None:
    assert channel_id(vector["name"]).hex() == vector["hex"]


@pytest.mark.parametrize("vector", MESSAGES)
def test_golden_messages_read_and_write(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    assert len(raw) == vector["length"]
    assert decode_redex(raw) == message_of(vector)
    if "decoded_class" not in vector["fields"]:  # those forms are read, and never written
        assert encode_redex(message_of(vector)) == raw


@pytest.mark.parametrize("vector", VECTORS["reject"], ids=lambda vector: vector["why"])
def test_what_the_reference_rejects_is_malformed(vector: dict[str, str]) -> None:
    with pytest.raises(MalformedPacket):
        decode_redex(bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize("vector", VECTORS["tolerated"], ids=lambda vector: vector["why"])
def test_what_the_reference_tolerates_decodes(vector: dict[str, str]) -> None:
    raw = bytes.fromhex(vector["hex"])
    value = decode_redex(raw)
    assert not isinstance(value, Reserved)
    # What is written again is the message without the bytes after it.
    assert raw.startswith(encode_redex(value))


def test_messages_captured_from_running_nodes_round_trip() -> None:
    observed = VECTORS["observed"]
    captured = [observed["idle_node"]["sent"], observed["idle_node"]["reply"]]
    captured += observed["leader"]["requests"].values()
    captured += [row["hex"] for row in observed["leader"]["captured"]]
    for raw in map(bytes.fromhex, captured):
        value = decode_redex(raw)
        assert not isinstance(value, Reserved)
        assert encode_redex(value) == raw


@given(messages)
def test_messages_round_trip(message: RedexMessage) -> None:
    assert decode_redex(encode_redex(message)) == message


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_decode_or_have_a_fault(raw: bytes, compat_47: bool) -> None:
    for event in (raw, b"\x00\x0e" + raw):
        with suppress(RemoteProtocolError):
            decode_redex(event, compat_47=compat_47)


def test_damaged_messages_never_escape_as_another_error() -> None:
    assert_survives(decode_redex, [bytes.fromhex(vector["hex"]) for vector in MESSAGES], randoms=20_000)


@pytest.mark.parametrize("code", range(0x24, 0x30))
def test_reserved_codes_are_recognized_whatever_follows(code: int) -> None:
    for rest in (b"", bytes(80)):
        assert decode_redex(b"\x00\x0e" + bytes([code]) + rest) == Reserved(code=code)


@pytest.mark.parametrize("code", [0x00, 0x1F, 0x30, 0xFF])
def test_other_codes_are_unknown(code: int) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_redex(b"\x00\x0e" + bytes([code]) + bytes(80))
    assert caught.value.fault == Fault.UNKNOWN_KIND


def test_the_documented_request_of_47_bytes_needs_the_compatibility_flag() -> None:
    request = SyncRequest(channel_id=ID, since_seq=7, chunk_max=100, request_id=9)
    short = encode_redex(request)[:47]
    with pytest.raises(MalformedPacket):
        decode_redex(short)
    assert decode_redex(short, compat_47=True) == SyncRequest(channel_id=ID, since_seq=7, chunk_max=100, request_id=0)
    # The flag changes nothing else: longer forms decode as always, and other lengths are still truncated.
    assert decode_redex(encode_redex(request), compat_47=True) == request
    for length in (46, 48, 54):
        with pytest.raises(MalformedPacket):
            decode_redex(encode_redex(request)[:length], compat_47=True)


def test_a_detail_is_cut_where_a_character_ends() -> None:
    nack = SyncNack(channel_id=ID, since_seq=0, code=NackCode.BACKPRESSURE, request_id=1, detail="é" * 40_000)
    decoded = decode_redex(encode_redex(nack))
    assert isinstance(decoded, SyncNack)
    assert decoded.detail == "é" * 32_767


def test_the_largest_replicated_payload_fills_a_packet() -> None:
    response = SyncResponse(
        channel_id=ID, first_seq=0, leader_first_retained_seq=0, request_id=1, events=((0, bytes(MAX_REPLICATED)),)
    )
    assert (RESPONSE_ROOM, MAX_REPLICATED) == (8041, 8029)
    assert len(encode_redex(response)) == response_size([MAX_REPLICATED]) == MAX_EVENT


@pytest.mark.parametrize(
    "message",
    [
        SyncRequest(channel_id=b"short", since_seq=0, chunk_max=0, request_id=0),
        SyncRequest(channel_id=ID, since_seq=1 << 64, chunk_max=0, request_id=0),
        SyncRequest(channel_id=ID, since_seq=0, chunk_max=1 << 32, request_id=0),
    ],
)
def test_values_that_do_not_fit_are_refused(message: RedexMessage) -> None:
    with pytest.raises(LocalProtocolError, match="redex"):
        encode_redex(message)


def test_the_chain_of_a_channel_is_the_start_of_its_id() -> None:
    assert chain_of(bytes(range(1, 33))) == 0x0807060504030201
    assert f"{chain_of(ID):016x}" == bytes(reversed(ID[:8])).hex()
