"""Messages of partition detection: fixed bytes, round trips, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.messages.partition import (
    MAX_VIEW,
    Healed,
    PartitionMessage,
    Suspect,
    View,
    decode_partition,
    encode_partition,
)
from tests.fuzz import assert_survives
from tests.wire.strategies import u64

FIXED: list[tuple[PartitionMessage, str]] = [
    (View(epoch=1, nodes=()), "01" + "01" + "00" * 7 + "0000"),
    (View(epoch=2, nodes=(3, 256)), "01" + "02" + "00" * 7 + "0200" + "03" + "00" * 7 + "0001" + "00" * 6),
    (Suspect(node=5), "02" + "05" + "00" * 7),
    (Healed(node=5), "03" + "05" + "00" * 7),
]


@pytest.mark.parametrize(("message", "event"), FIXED)
def test_the_bytes_are_fixed(message: PartitionMessage, event: str) -> None:
    assert encode_partition(message).hex() == event
    assert decode_partition(bytes.fromhex(event)) == message


@given(
    st.one_of(
        st.builds(View, epoch=u64, nodes=st.frozensets(u64, max_size=9).map(lambda found: tuple(sorted(found)))),
        st.builds(Suspect, node=u64),
        st.builds(Healed, node=u64),
    )
)
def test_messages_round_trip(message: PartitionMessage) -> None:
    assert decode_partition(encode_partition(message)) == message


@pytest.mark.parametrize(
    "event", ["", "00", "04", "02" + "00" * 7, "03" + "00" * 9, FIXED[0][1] + "00", FIXED[1][1][:-2]]
)
def test_anything_else_is_refused(event: str) -> None:
    with pytest.raises(MalformedPacket):
        decode_partition(bytes.fromhex(event))


def test_a_view_is_in_order_and_fits_one_packet() -> None:
    largest = View(epoch=1, nodes=tuple(range(MAX_VIEW)))
    assert decode_partition(encode_partition(largest)) == largest
    for nodes in ((2, 1), (1, 1), tuple(range(MAX_VIEW + 1))):
        with pytest.raises(LocalProtocolError, match="ascending"):
            encode_partition(View(epoch=1, nodes=nodes))
    raw = bytes.fromhex(FIXED[1][1])
    with pytest.raises(MalformedPacket, match="ascending"):
        decode_partition(raw[:11] + raw[19:] + raw[11:19])


def test_damaged_messages_never_crash() -> None:
    assert_survives(decode_partition, [bytes.fromhex(event) for _, event in FIXED], randoms=5_000)
