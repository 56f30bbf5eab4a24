from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.frames import pack_frames
from meshbus.wire.messages.window import Grant, decode_grant, encode_grant
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import u64

VECTORS: list[dict[str, Any]] = load("transport")["stream_window"]
OBSERVED: dict[str, Any] = load("subprotocols")["stream_window"]

LATER = [{"event": row["hex"], **row} for row in load("dialects")["messages"] if row["subprotocol"] == "0x0b00"]


@pytest.mark.parametrize("row", LATER, ids=[f"{row['version']} {row['name']}" for row in LATER])
def test_grants_of_every_level_read_and_write(row: dict[str, Any]) -> None:
    grant = decode_grant(bytes.fromhex(row["hex"]))
    assert grant == Grant(**row["fields"])
    assert encode_grant(grant).hex() == row["hex"]


@pytest.mark.parametrize("row", VECTORS)
def test_golden_grants_read_and_write(row: dict[str, Any]) -> None:
    grant = Grant(stream_id=int(row["stream_id"], 16), total_consumed=int(row["total_consumed"], 16))
    event = encode_grant(grant)
    assert event.hex() == row["event"]
    assert pack_frames([event]).hex() == row["payload"]
    assert decode_grant(event) == grant


@pytest.mark.parametrize("row", OBSERVED["cases"])
def test_grants_of_a_real_node_read_and_write(row: dict[str, Any]) -> None:
    event = bytes.fromhex(row["hex"])
    assert len(event) == OBSERVED["size"]
    assert decode_grant(event) == Grant(stream_id=row["stream_id"], total_consumed=row["total_consumed"])
    assert encode_grant(decode_grant(event)) == event


@given(st.builds(Grant, stream_id=u64, total_consumed=u64, ack_seq=st.none() | u64))
def test_grants_round_trip(grant: Grant) -> None:
    assert decode_grant(encode_grant(grant)) == grant


@pytest.mark.parametrize(
    ("size", "fault"),
    [(0, Fault.TRUNCATED), (15, Fault.TRUNCATED), (17, Fault.TRUNCATED), (23, Fault.TRUNCATED), (25, Fault.TRAILING)],
)
def test_any_other_length_is_refused(size: int, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        decode_grant(bytes(size))
    assert caught.value.fault is fault


def test_a_total_above_64_bits_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_grant(Grant(stream_id=1, total_consumed=1 << 64))


def test_damaged_grants_never_crash() -> None:
    assert_survives(decode_grant, [bytes.fromhex(row["event"]) for row in (*VECTORS, *LATER)])
