from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.messages.checkpoint import (
    MAX_OBSERVED,
    Checkpoint,
    InputPosition,
    PendingOutput,
    decode_checkpoint,
    encode_checkpoint,
    is_checkpoint,
    is_shadow,
    own_state_at,
    term_in,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import channels, u32, u64

SAMPLE = Checkpoint(
    state=b"state",
    parent_hash=0x1122334455667788,
    moves=3,
    inputs=(InputPosition(7, ChannelName("in"), 9),),
    observed=((1, 2),),
    pending=(PendingOutput(0x55, b"out"),),
    pending_parent=0x66,
    shadow=True,
)
outputs = st.lists(st.builds(PendingOutput, u64, st.binary(max_size=20)), min_size=1, max_size=4).map(tuple)
checkpoints = st.builds(
    lambda pending, **fields: Checkpoint(pending=pending[0], pending_parent=pending[1], **fields),
    pending=st.just(((), 0)) | st.tuples(outputs, u64),
    state=st.binary(max_size=60),
    parent_hash=u64,
    moves=u32,
    inputs=st.lists(st.builds(InputPosition, u64, channels, u64), max_size=4).map(tuple),
    observed=st.lists(st.tuples(u64, u64), max_size=4).map(tuple),
    shadow=st.booleans(),
    term=st.just(0) | u64,
)


def test_a_checkpoint_has_the_documented_bytes() -> None:
    assert encode_checkpoint(SAMPLE).hex(" ", -4) == (
        "4d424331 01030000 00887766 55443322 11010000 00070000 00000000 00090000 00000000 0002696e"
        " 01000000 01000000 00000000 02000000 00000000 01000000 66000000 00000000 55000000 00000000 03000000 6f757473 74617465"
    )


def test_a_checkpoint_of_a_ledger_has_its_term_after_the_head() -> None:
    raw = encode_checkpoint(Checkpoint(state=b"x", parent_hash=1, term=0x0A0B))
    assert raw.hex(" ", -4) == ("4d424331 02000000 00010000 00000000 000b0a00 00000000 00000000 00000000 00000000 0078")
    assert (term_in(raw), is_shadow(raw)) == (0x0A0B, False)
    assert term_in(encode_checkpoint(SAMPLE)) == term_in(b"a bare state") == 0


@given(checkpoints)
def test_checkpoints_round_trip(checkpoint: Checkpoint) -> None:
    raw = encode_checkpoint(checkpoint)
    assert decode_checkpoint(raw) == checkpoint
    assert is_checkpoint(raw)
    assert raw[own_state_at(raw) :] == checkpoint.state


def test_a_bare_state_is_not_a_checkpoint() -> None:
    assert not is_checkpoint(b"")
    assert not is_checkpoint(bytes(60))


def test_a_log_has_the_same_name_in_links_whatever_was_read_of_it() -> None:
    position = InputPosition(7, ChannelName("in"), 9)
    assert position.origin == InputPosition(7, ChannelName("in")).origin
    assert position.origin != InputPosition(8, ChannelName("in")).origin
    assert position.origin != InputPosition(7, ChannelName("out")).origin


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"MBC2" + bytes(30), Fault.BAD_MAGIC),
        (b"MBC1\4" + bytes(30), Fault.BAD_VALUE),
        (b"MBC1\2" + bytes(14), Fault.TRUNCATED),
        (b"MBC1\0" + bytes(12) + b"\xff\xff\xff\xff", Fault.TRUNCATED),
    ],
)
def test_damage_has_a_fault(raw: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_checkpoint(raw)
    assert caught.value.fault == fault


def test_the_number_of_origins_is_bounded() -> None:
    many = Checkpoint(state=b"", parent_hash=0, observed=tuple((n, n) for n in range(MAX_OBSERVED + 1)))
    with pytest.raises(MalformedPacket, match="origins"):
        decode_checkpoint(encode_checkpoint(many))


def test_what_cannot_be_written_is_refused() -> None:
    negative = Checkpoint(state=b"", parent_hash=0, inputs=(InputPosition(1, ChannelName("x"), -1),))
    with pytest.raises(LocalProtocolError, match="negative"):
        encode_checkpoint(negative)


def test_damaged_checkpoints_never_escape_as_another_error() -> None:
    for read in (decode_checkpoint, own_state_at):
        assert_survives(read, [encode_checkpoint(SAMPLE)], randoms=5_000)


def test_whether_it_ran_on_is_read_from_the_first_bytes() -> None:
    assert is_shadow(encode_checkpoint(Checkpoint(state=b"x", parent_hash=1, shadow=True)))
    assert not is_shadow(encode_checkpoint(Checkpoint(state=b"x", parent_hash=1)))
    assert not is_shadow(b"a bare state")
