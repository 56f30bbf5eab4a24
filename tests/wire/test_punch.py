from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import PUNCH_BYTES
from meshbus.wire.punch import Keepalive, pack_keepalive, unpack_keepalive
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u32, u64

VECTORS: list[dict[str, Any]] = load("transport")["keepalive"]
OBSERVED = bytes.fromhex("50486c35c546b8f1a0b900000000")


@pytest.mark.parametrize("row", VECTORS)
def test_a_golden_keepalive_reads_and_writes(row: dict[str, Any]) -> None:
    keepalive = Keepalive(node_id=int(row["sender_node_id"], 16), punch_id=int(row["punch_id"], 16))
    assert pack_keepalive(keepalive).hex() == row["bytes"]
    assert unpack_keepalive(bytes.fromhex(row["bytes"])) == keepalive


def test_a_keepalive_of_a_real_node_reads() -> None:
    assert unpack_keepalive(OBSERVED) == Keepalive(node_id=0xB9A0F1B846C5356C)


@given(st.builds(Keepalive, node_id=u64, punch_id=u32))
def test_keepalives_round_trip(keepalive: Keepalive) -> None:
    packed = pack_keepalive(keepalive)
    assert len(packed) == PUNCH_BYTES
    assert unpack_keepalive(packed) == keepalive


@pytest.mark.parametrize(
    ("buffer", "fault"),
    [
        (OBSERVED[:-1], Fault.TRUNCATED),
        (OBSERVED + b"\0", Fault.TRAILING),
        (b"HP" + OBSERVED[2:], Fault.BAD_MAGIC),
    ],
)
def test_another_length_or_magic_is_refused(buffer: bytes, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        unpack_keepalive(buffer)
    assert caught.value.fault is fault


def test_an_id_above_64_bits_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        pack_keepalive(Keepalive(node_id=1 << 64))


def test_damaged_keepalives_never_crash() -> None:
    assert_survives(unpack_keepalive, [OBSERVED])
