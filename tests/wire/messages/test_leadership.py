from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket, RemoteProtocolError
from meshbus.wire.messages.leadership import (
    DATA_ROOM,
    EVENT_COST,
    MAX_MEMBERS,
    MAX_MESSAGE,
    MAX_REPLICATED,
    MAX_SEQ,
    Config,
    Configure,
    Data,
    Fetch,
    LeadershipMessage,
    Member,
    Promise,
    Propose,
    Stale,
    Stored,
    Transfer,
    decode_leadership,
    encode_leadership,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import keys, u32, u64

ID = bytes(range(32))
TRIO = Config(epoch=3, version=2, members=(Member(7, 1), Member(8, 2)))

HEX_ID = ID.hex()
HEX_TRIO = "0300000000000000 02000000 02 0700000000000000 0100000000000000 0800000000000000 0200000000000000"
# Written by hand from docs/wire/profile.md: kind, channel id, epoch, then the fields, little-endian.
GOLDEN: list[tuple[LeadershipMessage, str]] = [
    (
        Propose(channel_id=ID, epoch=5, leader=9, incarnation=4),
        f"01 {HEX_ID} 0500000000000000 0900000000000000 0400000000000000 00 {'00' * 8}",
    ),
    (
        Propose(channel_id=ID, epoch=5, leader=9, incarnation=4, trial=True, founding=515),
        f"01 {HEX_ID} 0500000000000000 0900000000000000 0400000000000000 01 0302000000000000",
    ),
    (
        Promise(channel_id=ID, epoch=5, incarnation=6, last_epoch=4, tail=10, config=TRIO),
        f"02 {HEX_ID} 0500000000000000 00 0600000000000000 0400000000000000 0a00000000000000 {HEX_TRIO}",
    ),
    (
        Promise(channel_id=ID, epoch=1, trial=True, incarnation=6, last_epoch=0, tail=0),
        f"02 {HEX_ID} 0100000000000000 01 0600000000000000 {'00' * 16} {'00' * 13}",
    ),
    (Stale(channel_id=ID, epoch=258), f"03 {HEX_ID} 0201000000000000"),
    (
        Stored(channel_id=ID, epoch=1, incarnation=2, round=3, last_epoch=4, tail=5, config_epoch=6, config_version=7),
        f"04 {HEX_ID}" + "".join(f" 0{number}00000000000000" for number in range(1, 7)) + " 07000000",
    ),
    (Fetch(channel_id=ID, epoch=1, first=2, max_bytes=3), f"05 {HEX_ID} 0100000000000000 0200000000000000 03000000"),
    (
        Data(
            channel_id=ID,
            epoch=9,
            round=1,
            prev_epoch=2,
            entry_epoch=3,
            committed=4,
            first_retained=5,
            first_seq=6,
            payloads=(b"abc", b"", b"d"),
        ),
        f"06 {HEX_ID} 0900000000000000"
        + "".join(f" 0{number}00000000000000" for number in range(1, 7))
        + " 03000000 03000000 00000000 01000000 61626364",
    ),
    (Configure(channel_id=ID, epoch=4, config=TRIO), f"07 {HEX_ID} 0400000000000000 {HEX_TRIO}"),
    (Transfer(channel_id=ID, epoch=4), f"08 {HEX_ID} 0400000000000000"),
]

seqs = st.integers(0, MAX_SEQ - 100)
positive = st.integers(1, MAX_SEQ)
configs = st.builds(
    Config,
    epoch=st.integers(1, 1 << 40),
    version=st.integers(1, (1 << 32) - 1),
    members=st.lists(st.builds(Member, u64, u64), min_size=1, max_size=MAX_MEMBERS, unique_by=lambda m: m.node).map(
        tuple
    ),
)


@st.composite
def data(draw: st.DrawFn) -> Data:
    prev, entry, epoch = sorted(draw(st.tuples(positive, positive, positive)))
    first = draw(seqs)
    return Data(
        channel_id=draw(keys),
        epoch=epoch,
        round=draw(u64),
        prev_epoch=prev if first else 0,
        entry_epoch=entry,
        committed=draw(seqs),
        first_retained=draw(seqs),
        first_seq=first,
        payloads=tuple(draw(st.lists(st.binary(max_size=40), max_size=20))),
    )


messages = st.one_of(
    st.builds(Propose, channel_id=keys, epoch=seqs, leader=u64, incarnation=u64, trial=st.booleans(), founding=u64),
    st.builds(
        Promise,
        channel_id=keys,
        epoch=seqs,
        trial=st.booleans(),
        incarnation=u64,
        last_epoch=u64,
        tail=seqs,
        config=st.none() | configs,
    ),
    st.builds(Stale, channel_id=keys, epoch=seqs),
    st.builds(
        Stored,
        channel_id=keys,
        epoch=seqs,
        incarnation=u64,
        round=u64,
        last_epoch=u64,
        tail=seqs,
        config_epoch=u64,
        config_version=u32,
    ),
    st.builds(Fetch, channel_id=keys, epoch=seqs, first=seqs, max_bytes=u32),
    data(),
    st.builds(Configure, channel_id=keys, epoch=st.integers(1 << 40, MAX_SEQ), config=configs),
    st.builds(Transfer, channel_id=keys, epoch=st.integers(0, MAX_SEQ)),
)


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_golden_messages_read_and_write(message: LeadershipMessage, expected: str) -> None:
    assert encode_leadership(message) == bytes.fromhex(expected)
    assert decode_leadership(bytes.fromhex(expected)) == message


@given(messages)
def test_messages_round_trip(message: LeadershipMessage) -> None:
    assert decode_leadership(encode_leadership(message)) == message


@given(st.integers(0, 9), st.binary(max_size=160))
def test_any_bytes_decode_or_have_a_fault(kind: int, rest: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_leadership(bytes([kind]) + rest)


def test_damaged_messages_never_escape_as_another_error() -> None:
    assert_survives(decode_leadership, [bytes.fromhex(raw) for _, raw in GOLDEN], randoms=20_000)


HEAD = ID + bytes(8)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"\x01" + ID + bytes(7), Fault.TRUNCATED),
        (b"\x03" + ID + b"\xff" * 8, Fault.BAD_VALUE),
        (b"\x00" + HEAD, Fault.UNKNOWN_KIND),
        (b"\x09" + HEAD, Fault.UNKNOWN_KIND),
        (b"\x01" + HEAD + bytes(16), Fault.TRUNCATED),
        (b"\x01" + HEAD + bytes(16) + b"\x02" + bytes(8), Fault.BAD_VALUE),
        (b"\x01" + HEAD + bytes(26), Fault.TRAILING),
        (b"\x02" + HEAD + b"\x02" + bytes(24 + 13), Fault.BAD_VALUE),
        (b"\x02" + HEAD + bytes(17) + b"\xff" * 8 + bytes(13), Fault.BAD_VALUE),
        (b"\x02" + HEAD + bytes(25) + bytes(12) + b"\x01", Fault.TRUNCATED),
        (b"\x02" + HEAD + bytes(25) + bytes(14), Fault.TRAILING),
        (b"\x03" + HEAD + b"\x00", Fault.TRAILING),
        (b"\x04" + HEAD + bytes(43), Fault.TRUNCATED),
        (b"\x05" + HEAD + b"\xff" * 8 + bytes(4), Fault.BAD_VALUE),
        (b"\x06" + HEAD + bytes(48) + b"\x01\x00\x00\x00", Fault.TRUNCATED),
        (b"\x06" + HEAD + bytes(48) + b"\x01\x00\x00\x00" + b"\x01\x00\x00\x00", Fault.TRUNCATED),
        (b"\x06" + HEAD + bytes(48) + bytes(4) + b"a", Fault.TRAILING),
        (b"\x06" + HEAD + bytes(48) + b"\xff" * 4, Fault.TRUNCATED),
        (b"\x06" + HEAD + bytes(16) + b"\x01" + bytes(31 + 4), Fault.BAD_VALUE),
        (b"\x06" + HEAD + bytes(40) + b"\x01" + bytes(7 + 4), Fault.BAD_VALUE),
        (b"\x07" + HEAD + bytes(13), Fault.BAD_VALUE),
        (b"\x07" + ID + b"\x01" + bytes(7) + b"\x02" + bytes(7) + b"\x01\x00\x00\x00\x01" + bytes(16), Fault.BAD_VALUE),
        (b"\x07" + HEAD + b"\x00" * 8 + b"\x01\x00\x00\x00\x01" + bytes(16), Fault.BAD_VALUE),
        (b"\x07" + HEAD + b"\x01" + bytes(7) + b"\x01\x00\x00\x00\x02" + bytes(32), Fault.BAD_VALUE),
        (b"\x07" + HEAD + b"\x01" + bytes(7) + b"\x01\x00\x00\x00\x00", Fault.BAD_VALUE),
    ],
)
def test_each_kind_of_damage_has_its_fault(event: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_leadership(event)
    assert caught.value.fault == fault


def large(*payloads: bytes) -> Data:
    return Data(
        channel_id=ID,
        epoch=1,
        round=1,
        prev_epoch=0,
        entry_epoch=1,
        committed=0,
        first_retained=0,
        first_seq=0,
        payloads=payloads,
    )


def test_the_largest_payload_fills_a_packet_and_one_byte_more_is_refused() -> None:
    assert (DATA_ROOM, MAX_REPLICATED) == (7993, 7989)
    assert len(encode_leadership(large(bytes(MAX_REPLICATED)))) == MAX_MESSAGE
    assert len(encode_leadership(large(b"", bytes(MAX_REPLICATED - EVENT_COST)))) == MAX_MESSAGE
    with pytest.raises(LocalProtocolError, match="8087 bytes do not fit one packet of 8086"):
        encode_leadership(large(bytes(MAX_REPLICATED + 1)))


@pytest.mark.parametrize(
    "message",
    [
        Stale(channel_id=b"short", epoch=1),
        Stale(channel_id=ID, epoch=-1),
        Configure(channel_id=ID, epoch=1, config=Config(epoch=1, version=1, members=())),
        Configure(
            channel_id=ID,
            epoch=1,
            config=Config(epoch=1, version=1, members=tuple(Member(node, 0) for node in range(MAX_MEMBERS + 1))),
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(message: LeadershipMessage) -> None:
    with pytest.raises(LocalProtocolError, match="leadership"):
        encode_leadership(message)


def test_the_newer_config_has_the_higher_rank() -> None:
    assert Config(epoch=3, version=1, members=()).rank > Config(epoch=2, version=9, members=()).rank
