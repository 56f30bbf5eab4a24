from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.messages.interest import (
    Cancel,
    Interest,
    InterestMessage,
    Match,
    Matches,
    Verdict,
    decode_interest,
    encode_interest,
    split_matches,
)
from meshbus.wire.messages.membership import AckReason
from tests.fuzz import assert_survives
from tests.wire.strategies import channels, text, u64

REQ = 0x1122334455667788

# Written by hand from the layout: kind, req, then the fields, little-endian.
GOLDEN: list[tuple[InterestMessage, str]] = [
    (Interest(req=REQ, prefix=""), "01 8877665544332211 00 00 0000"),
    (
        Interest(req=REQ, prefix="a/", queue_group="é", token=b"\xab\xcd"),
        "01 8877665544332211 02612f 02c3a9 0200abcd",
    ),
    (Matches(req=REQ), "02 8877665544332211 0000"),
    (
        Matches(
            req=REQ,
            matches=(
                Match(Verdict.ADDED, ChannelName("a/b")),
                Match(Verdict.REMOVED, ChannelName("a")),
                Match(Verdict.UNAUTHORIZED, ChannelName("a/c")),
                Match(Verdict.TOO_MANY_CHANNELS, ChannelName("a/d")),
            ),
        ),
        "02 8877665544332211 0400 0003612f62 010161 0203612f63 0503612f64",
    ),
    (Cancel(req=REQ), "03 8877665544332211"),
]

ascii_prefixes = st.text(st.characters(max_codepoint=127), max_size=255)
groups = text.filter(lambda group: len(group.encode()) <= 255)
matched = st.builds(Match, st.sampled_from(Verdict), channels)
messages = st.one_of(
    st.builds(Interest, req=u64, prefix=ascii_prefixes, queue_group=groups, token=st.binary(max_size=300)),
    st.builds(Matches, req=u64, matches=st.lists(matched, max_size=20).map(tuple)),
    st.builds(Cancel, req=u64),
)


@pytest.mark.parametrize(("message", "expected"), GOLDEN)
def test_golden_messages_read_and_write(message: InterestMessage, expected: str) -> None:
    assert encode_interest(message) == bytes.fromhex(expected)
    assert decode_interest(bytes.fromhex(expected)) == message


@given(messages)
def test_messages_round_trip(message: InterestMessage) -> None:
    assert decode_interest(encode_interest(message)) == message


@pytest.mark.parametrize("reason", [reason for reason in AckReason if reason <= AckReason.TOO_MANY_CHANNELS])
def test_a_refusal_keeps_its_reason(reason: AckReason) -> None:
    verdict = Verdict.refused(reason)
    if reason is AckReason.NONE:
        assert verdict is Verdict.UNAUTHORIZED  # 0 + 1 would read as removed
    else:
        assert verdict == reason + 1
        assert verdict.reason is reason


def test_added_and_removed_have_no_reason() -> None:
    assert Verdict.ADDED.reason is Verdict.REMOVED.reason is AckReason.NONE


@given(st.lists(st.tuples(st.sampled_from(Verdict), st.integers(1, 255)), max_size=120))
def test_matches_are_spread_over_messages_that_fit(shape: list[tuple[Verdict, int]]) -> None:
    found = [Match(verdict, ChannelName("x" * size)) for verdict, size in shape]
    parts = list(split_matches(REQ, found))
    assert [match for part in parts for match in part.matches] == found
    sizes = [len(encode_interest(part)) for part in parts]
    assert max(sizes) <= MAX_EVENT
    assert all(size > MAX_EVENT - 257 for size in sizes[:-1])
    assert {part.req for part in parts} == {REQ}


def test_a_message_is_filled_before_the_next_one_begins() -> None:
    found = [Match(Verdict.ADDED, ChannelName("x" * 255))] * 63
    parts = list(split_matches(REQ, found))
    assert [len(part.matches) for part in parts] == [31, 31, 1]
    assert [len(encode_interest(part)) for part in parts] == [7978, 7978, 268]


def test_no_match_is_one_empty_answer() -> None:
    assert list(split_matches(REQ, [])) == [Matches(req=REQ)]


def interest_with(rest: str) -> bytes:
    return b"\x01" + REQ.to_bytes(8, "little") + bytes.fromhex(rest)


def matches_with(count: int, rest: str) -> bytes:
    return b"\x02" + REQ.to_bytes(8, "little") + count.to_bytes(2, "little") + bytes.fromhex(rest)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"\x00" + bytes(20), Fault.UNKNOWN_KIND),
        (b"\x04" + bytes(20), Fault.UNKNOWN_KIND),
        (b"\x01" + bytes(7), Fault.TRUNCATED),
        (interest_with(""), Fault.TRUNCATED),
        (interest_with("0261"), Fault.TRUNCATED),
        (interest_with("00"), Fault.TRUNCATED),
        (interest_with("0000"), Fault.TRUNCATED),
        (interest_with("000000"), Fault.TRUNCATED),
        (interest_with("00000100"), Fault.TRUNCATED),
        (interest_with("0000000000"), Fault.TRAILING),
        (interest_with("01ff000000"), Fault.BAD_TEXT),
        (interest_with("0001ff0000"), Fault.BAD_TEXT),
        (b"\x02" + bytes(9), Fault.TRUNCATED),
        (matches_with(1, "00"), Fault.TRUNCATED),
        (matches_with(1, "000261"), Fault.TRUNCATED),
        (matches_with(2, "000161"), Fault.TRUNCATED),
        (matches_with(0xFFFF, "000161"), Fault.TRUNCATED),
        (matches_with(0, "00"), Fault.TRAILING),
        (matches_with(1, "060161"), Fault.BAD_VALUE),
        (matches_with(1, "0000"), Fault.BAD_NAME),
        (matches_with(1, "000141"), Fault.BAD_NAME),
        (matches_with(1, "0002c3a9"), Fault.BAD_NAME),
        (b"\x03" + bytes(7), Fault.TRUNCATED),
        (b"\x03" + bytes(9), Fault.TRAILING),
    ],
)
def test_each_kind_of_damage_has_its_fault(event: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_interest(event)
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "message",
    [
        Interest(req=1 << 64, prefix=""),
        Interest(req=1, prefix="é"),
        Interest(req=1, prefix="a" * 256),
        Interest(req=1, prefix="", queue_group="g" * 256),
        Interest(req=1, prefix="", queue_group="\ud800"),
        Interest(req=1, prefix="", token=bytes(70_000)),
        Interest(req=1, prefix="", token=bytes(MAX_EVENT - 12)),
        Matches(req=1, matches=(Match(Verdict.ADDED, "Not//legal"),)),  # type: ignore[arg-type]
        Matches(req=1, matches=(Match(Verdict.ADDED, ChannelName("x" * 255)),) * 32),
        Matches(req=1, matches=(Match(Verdict.ADDED, ChannelName("x")),) * 70_000),
        Cancel(req=-1),
    ],
)
def test_what_no_peer_could_read_is_not_written(message: InterestMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode_interest(message)


def test_the_largest_token_fits_one_packet() -> None:
    event = encode_interest(Interest(req=1, prefix="", token=bytes(MAX_EVENT - 13)))
    assert len(event) == MAX_EVENT


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_interest, [bytes.fromhex(event) for _, event in GOLDEN])
