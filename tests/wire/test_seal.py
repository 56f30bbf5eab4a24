from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import BadTag, Fault, LocalProtocolError, MalformedPacket, Replayed, UnknownVersion
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import MAX_EVENTS, MAX_PAYLOAD, MAX_REPLAY_JUMP, PACKET_COST, Flags
from meshbus.wire.header import Header, aad_of, unpack_header
from meshbus.wire.keys import Role, SessionKeys, derive_keys, nonce_prefix
from meshbus.wire.replaywindow import COUNTER_LIMIT
from meshbus.wire.seal import Opener, Sealer
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u8, u16, u32, u64

VECTORS: list[dict[str, Any]] = load("transport")["aead"]
PUBLISH: dict[str, Any] = load("transport")["publish"]

HASH = bytes(range(32))
MINE = derive_keys(HASH, Role.INITIATOR)
THEIRS = derive_keys(HASH, Role.RESPONDER)

data_headers = st.builds(
    Header,
    flags=st.integers(0, 0xFF).map(lambda flags: flags & ~0x30),
    priority=u8,
    hop_ttl=u8,
    hop_count=u8,
    frag_flags=u8,
    subprotocol_id=u16,
    channel_hash=u16,
    stream_id=u64,
    sequence=u64,
    origin_hash=u64,
    subnet_id=u32,
    fragment_id=u16,
    fragment_offset=u16,
    event_count=st.integers(0, MAX_EVENTS),
)


def golden_keys(row: dict[str, Any]) -> SessionKeys:
    """The same key for both directions: each vector shows only one."""
    key = bytes.fromhex(row["key"])
    session_id = unpack_header(bytes.fromhex(row["header"])).session_id
    return SessionKeys(session_id=session_id, nonce_prefix=nonce_prefix(session_id), tx_key=key, rx_key=key)


@pytest.mark.parametrize("row", VECTORS, ids=[row["source"] for row in VECTORS])
def test_golden_packets_seal_and_open(row: dict[str, Any]) -> None:
    datagram, plaintext = bytes.fromhex(row["datagram"]), bytes.fromhex(row["plaintext"])
    keys = golden_keys(row)
    header, opened = Opener(keys).open(datagram)
    assert opened == plaintext
    assert header.nonce.hex() == row["nonce"]
    sealer = Sealer(keys)
    sealer.take(header.counter)
    if header.flags & Flags.HEARTBEAT:
        assert sealer.heartbeat() == datagram
    else:
        bare = msgspec.structs.replace(header, nonce=bytes(12), session_id=0, payload_len=0)
        assert sealer.seal(bare, plaintext) == datagram


def test_the_golden_publication_is_sealed_for_its_channel() -> None:
    row = next(row for row in VECTORS if row["datagram"] == PUBLISH["datagram"])
    header, plaintext = Opener(golden_keys(row)).open(bytes.fromhex(PUBLISH["datagram"]))
    channel = ChannelName(PUBLISH["channel"])
    assert plaintext.hex() == PUBLISH["plaintext"]
    assert channel.hash == int(PUBLISH["channel_hash64"], 16)
    assert header.channel_hash == channel.wire_hash == int(PUBLISH["wire_channel_hash"], 16)
    assert header.stream_id == channel.stream_id == int(PUBLISH["stream_id"], 16)
    assert header.origin_hash == int(PUBLISH["origin_hash"], 16)


@given(data_headers, st.binary(max_size=300))
def test_what_one_side_seals_the_other_opens(header: Header, payload: bytes) -> None:
    datagram = Sealer(MINE).seal(header, payload)
    assert len(datagram) == PACKET_COST + len(payload)
    opened, plaintext = Opener(THEIRS).open(datagram)
    assert plaintext == payload
    assert opened == msgspec.structs.replace(
        header, nonce=MINE.nonce_prefix + bytes(8), session_id=MINE.session_id, payload_len=len(payload)
    )


def test_events_control_and_heartbeats_share_one_counter() -> None:
    sealer, opener = Sealer(MINE), Opener(THEIRS)
    datagrams = [sealer.heartbeat(), sealer.seal(Header(), b"x"), sealer.heartbeat()]
    assert sealer.take(5) == 3
    datagrams.append(sealer.seal(Header(stream_id=9), b""))
    assert [opener.open(datagram)[0].counter for datagram in datagrams] == [0, 1, 2, 8]
    assert sealer.sent == 9


def test_a_packet_does_not_open_in_the_direction_it_came_from() -> None:
    with pytest.raises(BadTag):
        Opener(MINE).open(Sealer(MINE).seal(Header(), b"mirror"))


# Bytes 0-3 are refused by name, 6 is the hop count and 12-15 the nonce prefix, 64-67 are lengths.
AUTHENTICATED = [*range(4, 6), *range(7, 12), *range(16, 64), *range(68, 88)]


@pytest.mark.parametrize("index", AUTHENTICATED)
def test_every_authenticated_byte_counts(index: int) -> None:
    datagram = bytearray(Sealer(MINE).seal(Header(stream_id=7, event_count=1), b"data"))
    datagram[index] ^= 1
    opener = Opener(THEIRS)
    with pytest.raises(BadTag):
        opener.open(datagram)
    datagram[index] ^= 1
    assert opener.open(datagram)[1] == b"data"


@pytest.mark.parametrize("index", [6, 12, 13, 14, 15])
def test_the_hop_count_and_the_prefix_are_free(index: int) -> None:
    datagram = bytearray(Sealer(MINE).seal(Header(), b"data"))
    datagram[index] ^= 0xFF
    assert Opener(THEIRS).open(datagram)[1] == b"data"


def test_a_packet_opens_once_and_a_forgery_does_not_spend_its_counter() -> None:
    opener, sealer = Opener(THEIRS), Sealer(MINE)
    first, second = sealer.seal(Header(), b"first"), sealer.seal(Header(), b"second")
    for forged in (second[:-1] + b"\0", second[:68] + bytes(len(second) - 68)):
        with pytest.raises(BadTag):
            opener.open(forged)
    assert opener.open(second)[1] == b"second"
    assert opener.open(first)[1] == b"first"
    for again in (first, second):
        with pytest.raises(Replayed):
            opener.open(again)


def test_a_counter_too_far_ahead_is_refused() -> None:
    opener, sealer = Opener(THEIRS), Sealer(MINE)
    sealer.take(MAX_REPLAY_JUMP)
    with pytest.raises(Replayed) as caught:
        opener.open(sealer.heartbeat())
    assert caught.value.counter == MAX_REPLAY_JUMP


@pytest.mark.parametrize("change", [lambda packet: packet + b"\0", lambda packet: packet[:-1]], ids=["long", "short"])
@pytest.mark.parametrize("build", [Sealer.heartbeat, lambda sealer: sealer.seal(Header(), b"abc")])
def test_the_length_is_exact(build: Callable[[Sealer], bytes], change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(MalformedPacket) as caught:
        Opener(THEIRS).open(change(build(Sealer(MINE))))
    assert caught.value.fault is Fault.BAD_LENGTH


def test_a_heartbeat_is_84_bytes_and_empty() -> None:
    datagram = Sealer(MINE).heartbeat()
    header, plaintext = Opener(THEIRS).open(datagram)
    assert (len(datagram), plaintext, header.flags, header.payload_len) == (84, b"", Flags.HEARTBEAT, 0)


def test_a_heartbeat_is_84_bytes_whatever_length_it_claims() -> None:
    header = bytearray(Sealer(MINE).heartbeat()[:68])
    header[64] = 5
    forged = bytes(header) + Sealer(MINE).aead.encrypt(bytes(header[12:24]), b"", aad_of(header))
    assert Opener(THEIRS).open(forged)[1] == b""
    with pytest.raises(MalformedPacket):
        Opener(THEIRS).open(forged + bytes(5))


def test_another_version_is_refused_by_name() -> None:
    datagram = bytearray(Sealer(MINE).heartbeat())
    datagram[2] = 2
    with pytest.raises(UnknownVersion):
        Opener(THEIRS).open(datagram)


def test_the_counter_ends_before_its_last_value() -> None:
    sealer = Sealer(MINE)
    sealer.take(COUNTER_LIMIT - 1)
    datagram = sealer.heartbeat()
    assert unpack_header(datagram).counter == COUNTER_LIMIT - 1
    for spent in (sealer.heartbeat, sealer.take, lambda: sealer.seal(Header(), b"")):
        with pytest.raises(LocalProtocolError, match="used up"):
            spent()
    assert sealer.sent == COUNTER_LIMIT


def test_what_no_receiver_would_take_is_not_sealed() -> None:
    sealer = Sealer(MINE)
    full = sealer.seal(Header(event_count=MAX_EVENTS), bytes(MAX_PAYLOAD))
    assert Opener(THEIRS).open(full)[1] == bytes(MAX_PAYLOAD)
    with pytest.raises(LocalProtocolError, match="do not fit"):
        sealer.seal(Header(), bytes(MAX_PAYLOAD + 1))
    with pytest.raises(LocalProtocolError, match="do not fit"):
        sealer.seal(Header(event_count=MAX_EVENTS + 1), b"")
    for flag in (Flags.HANDSHAKE, Flags.HEARTBEAT):
        with pytest.raises(LocalProtocolError, match="flag"):
            sealer.seal(Header(flags=flag), b"")
    assert sealer.sent == 1


def test_damaged_packets_never_crash() -> None:
    sealer = Sealer(MINE)
    samples = [sealer.seal(Header(stream_id=7, event_count=1), b"\x04\0\0\0data"), sealer.heartbeat()]
    assert_survives(lambda datagram: Opener(THEIRS).open(datagram), samples)
