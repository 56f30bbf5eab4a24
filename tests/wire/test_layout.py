from __future__ import annotations

import pytest

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.layout import Layout, pack_channel, take_field, unpack_channel

PAIR = Layout("pair", "<BH")


def test_a_layout_writes_and_reads_back() -> None:
    assert PAIR.pack(1, 2) == b"\x01\x02\x00"
    assert PAIR.unpack(b"\x01\x02\x00") == (1, 2)
    assert PAIR.size == 3


def test_a_field_that_does_not_fit_is_our_error() -> None:
    with pytest.raises(LocalProtocolError, match="pair"):
        PAIR.pack(256, 0)
    with pytest.raises(LocalProtocolError):
        PAIR.pack(None, 0)


@pytest.mark.parametrize(("buffer", "fault"), [(b"\x01\x02", Fault.TRUNCATED), (b"\x01\x02\x00\x00", Fault.TRAILING)])
def test_a_whole_buffer_must_have_the_exact_size(buffer: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        PAIR.unpack(buffer)
    assert (caught.value.what, caught.value.fault) == ("pair", fault)


def test_a_prefix_ignores_what_follows_but_not_what_is_missing() -> None:
    assert PAIR.unpack_prefix(memoryview(b"\x01\x02\x00rest")) == (1, 2)
    with pytest.raises(MalformedPacket):
        PAIR.unpack_prefix(b"\x01\x02")


def test_a_field_with_its_length_in_front_is_cut_off() -> None:
    field, rest = take_field("thing", "name", memoryview(b"\x02abcd"), 1)
    assert (bytes(field), bytes(rest)) == (b"ab", b"cd")
    field, rest = take_field("thing", "token", memoryview(b"\x01\x00a"), 2)
    assert (bytes(field), bytes(rest)) == (b"a", b"")


@pytest.mark.parametrize("raw", [b"", b"\x03ab"])
def test_a_field_that_ends_early_is_named(raw: bytes) -> None:
    with pytest.raises(MalformedPacket, match=r"thing: truncated \(the name ends early\)") as caught:
        take_field("thing", "name", memoryview(raw or b"\x01"), 1)
    assert caught.value.fault is Fault.TRUNCATED


def test_channel_names_are_checked_in_both_directions() -> None:
    assert pack_channel("a/b") == b"a/b"
    assert unpack_channel("thing", memoryview(b"a/b")) == "a/b"
    with pytest.raises(LocalProtocolError):
        pack_channel("A//b")
    for raw in (b"", b"A", b"\xe9"):
        with pytest.raises(MalformedPacket) as caught:
            unpack_channel("thing", memoryview(raw))
        assert caught.value.fault is Fault.BAD_NAME
