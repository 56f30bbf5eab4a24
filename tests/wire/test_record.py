"""Records of replicated channels: round trips, golden bytes, and bytes that are none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.record import RECORD_COST, Record, pack_record, pack_record_head, unpack_record, with_headers

HEADERS = st.none() | st.dictionaries(st.text(max_size=20), st.binary(max_size=40), min_size=1, max_size=5)


@given(st.binary(max_size=200), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, (1 << 64) - 1), HEADERS)
def test_a_record_survives_a_round_trip(
    payload: bytes, ts_ns: int, origin: int, headers: dict[str, bytes] | None
) -> None:
    record = Record(payload, ts_ns, origin, headers)
    assert unpack_record(pack_record(record)) == record


def test_the_bytes_are_as_documented() -> None:
    packed = pack_record(Record(b"hot", 1, 2, {"unit": b"K"}))
    assert packed == bytes.fromhex("0100000000000000 0200000000000000 0800 04 756e6974 0100 4b 686f74")
    assert len(pack_record(Record(b"", 0, 0))) == RECORD_COST
    assert pack_record_head(1, 2) + b"hot" == pack_record(Record(b"hot", 1, 2))
    assert with_headers([pack_record(Record(b"hot", 1, 2)), packed]) == [packed]


@given(st.binary(max_size=60))
def test_other_bytes_are_rejected_or_read_but_never_crash(event: bytes) -> None:
    with suppress(MalformedPacket):
        unpack_record(event)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda raw: raw[: RECORD_COST - 1], Fault.TRUNCATED),
        (lambda raw: raw[: RECORD_COST + 2], Fault.TRUNCATED),
        (lambda raw: raw[:RECORD_COST] + b"\xff" + raw[RECORD_COST + 1 :], Fault.TRUNCATED),
        (lambda raw: raw.replace(b"unit", b"\xff\xff\xff\xff"), Fault.BAD_VALUE),
    ],
)
def test_damaged_records_are_rejected(damage: Callable[[bytes], bytes], fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        unpack_record(damage(pack_record(Record(b"", 1, 2, {"unit": b"K"}))))
    assert caught.value.fault is fault


@pytest.mark.parametrize("headers", [{"k" * 256: b""}, {"k": bytes(65_536)}, {"a": bytes(40_000), "b": bytes(40_000)}])
def test_headers_that_are_too_long_are_refused(headers: dict[str, bytes]) -> None:
    with pytest.raises(LocalProtocolError, match="65535"):
        pack_record(Record(b"", 0, 0, headers))
