from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.messages.bindings import Binding, decode_bindings, encode_bindings
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import channels, u64

bindings = st.lists(st.builds(Binding, u64, channels, st.none() | st.binary(max_size=60)), max_size=6).map(tuple)


def test_subscriptions_have_the_golden_bytes() -> None:
    vector = load("mesh")["daemon_bindings"]
    raw = bytes.fromhex(vector["hex"])
    expected = tuple(
        Binding(
            int(row["publisher"], 16),
            ChannelName(row["channel"]),
            None if row["token"] is None else bytes.fromhex(row["token"]),
        )
        for row in vector["subscriptions"]
    )
    assert decode_bindings(raw) == expected
    assert encode_bindings(expected) == raw


@given(bindings)
def test_subscriptions_round_trip(found: tuple[Binding, ...]) -> None:
    assert decode_bindings(encode_bindings(found)) == found


def test_no_subscriptions_are_no_bytes() -> None:
    assert encode_bindings(()) == b""
    assert decode_bindings(b"") == ()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda raw: raw + b"\0", Fault.TRAILING),
        (lambda raw: raw[:-1], Fault.TRUNCATED),
        (lambda raw: b"\xff" + raw[1:], Fault.TRUNCATED),
        (lambda raw: raw[:14] + b"A" + raw[15:], Fault.BAD_NAME),
        (lambda raw: raw[:15] + b"\2" + raw[16:], Fault.BAD_VALUE),
    ],
)
def test_damage_has_a_fault(damage: object, fault: Fault) -> None:
    assert callable(damage)
    raw = encode_bindings([Binding(1, ChannelName("x"))])
    with pytest.raises(MalformedPacket) as caught:
        decode_bindings(damage(raw))
    assert caught.value.fault == fault


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="too long"):
        encode_bindings([Binding(1, ChannelName("x"), bytes(65536))])


def test_damaged_subscriptions_never_escape_as_another_error() -> None:
    sample = encode_bindings([Binding(1, ChannelName("a/b"), b"t"), Binding(2, ChannelName("c"))])
    assert_survives(decode_bindings, [sample, b""], randoms=5_000)
