"""Packet headers: golden bytes, round trips, refusals, and columns equal to the scalar form."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import LocalProtocolError, MalformedPacket, UnknownVersion
from meshbus.wire.constants import HEADER_BYTES, MAX_EVENTS, MAX_PAYLOAD
from meshbus.wire.header import HEADER_DTYPE, Header, aad_columns, aad_of, pack_header, unpack_header
from tests.fuzz import assert_survives
from tests.vectors import load

VECTORS = load("transport")

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
headers = st.builds(
    Header,
    flags=u8, priority=u8, hop_ttl=u8, hop_count=u8, frag_flags=u8, subprotocol_id=u16, channel_hash=u16,
    nonce=st.binary(min_size=12, max_size=12), session_id=u64, stream_id=u64, sequence=u64, origin_hash=u64,
    subnet_id=u32, fragment_id=u16, fragment_offset=u16,
    payload_len=st.integers(0, MAX_PAYLOAD), event_count=st.integers(0, MAX_EVENTS),
)  # fmt: skip


def field(value: Any) -> Any:
    """Vector fields are JSON numbers, or hex digits of the number; the nonce is bytes."""
    if isinstance(value, int):
        return value
    return bytes.fromhex(value) if len(value) == 24 else int(value, 16)


@pytest.mark.parametrize("row", VECTORS["headers"], ids=lambda row: row["name"])
def test_golden_headers(row: dict[str, Any]) -> None:
    raw = bytes.fromhex(row["bytes"])
    fields = {name: field(value) for name, value in row["fields"].items()}
    assert fields.pop("magic") == 0x4E45
    assert fields.pop("version") == 1
    assert msgspec.structs.asdict(unpack_header(raw)) == fields
    assert pack_header(Header(**fields)) == raw
    assert aad_of(raw).hex() == row["aad"]


@pytest.mark.parametrize("row", VECTORS["headers_rejected"], ids=lambda row: row["name"])
def test_rejected_headers(row: dict[str, str]) -> None:
    with pytest.raises(UnknownVersion if row["name"] == "version 2" else MalformedPacket):
        unpack_header(bytes.fromhex(row["bytes"]))


@given(headers)
def test_round_trip(header: Header) -> None:
    raw = pack_header(header)
    assert len(raw) == HEADER_BYTES
    assert unpack_header(raw) == header
    assert unpack_header(memoryview(raw + b"payload")) == header
    assert header.counter == int.from_bytes(raw[16:24], "little")


def test_hostile_headers_raise_only_our_errors() -> None:
    assert_survives(unpack_header, [bytes.fromhex(row["bytes"]) for row in VECTORS["headers"]])


@given(st.lists(headers, min_size=1, max_size=20))
def test_columns_equal_the_scalar_form(batch: list[Header]) -> None:
    raw = b"".join(pack_header(header) for header in batch)
    columns = np.frombuffer(raw, HEADER_DTYPE)
    for name in set(HEADER_DTYPE.names or ()) - {"magic", "version", "nonce_prefix", "counter"}:
        assert columns[name].tolist() == [getattr(header, name) for header in batch]
    assert columns["counter"].tolist() == [header.counter for header in batch]
    rows = [raw[start : start + HEADER_BYTES] for start in range(0, len(raw), HEADER_BYTES)]
    assert [row.tobytes() for row in aad_columns(columns)] == [aad_of(row) for row in rows]


@given(headers, st.integers(0, 255))
def test_the_hop_count_is_not_authenticated(header: Header, hops: int) -> None:
    moved = msgspec.structs.replace(header, hop_count=hops)
    assert aad_of(pack_header(header)) == aad_of(pack_header(moved))


@pytest.mark.parametrize("field", [{"stream_id": -1}, {"flags": 256}, {"subnet_id": 2**32}])
def test_a_field_that_does_not_fit_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="header"):
        pack_header(Header(**field))
