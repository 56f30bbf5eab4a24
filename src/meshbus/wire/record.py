"""Records: the events of a replicated channel as its members store and exchange them (0x4D05).

A record is everything about an event that is the same on all replicas: when it was published, by whom, its headers, and
its payload. For the messages of wire/messages/leadership.py it is an opaque payload.

    ts_ns i64 · origin u64 · size of the headers u16 · headers · payload
    headers: any number of (key size u8, key, value size u16, value)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, take_field

_HEAD = Layout("record", "<qQH")
_KEY = Layout("record header", "<B")
_VALUE = Layout("record header", "<H")

RECORD_COST = _HEAD.size
"""18: what a record without headers has in addition to its payload."""
_MAX_HEADERS = 0xFFFF
_NO_HEADERS = bytes(2)


class Record(msgspec.Struct, frozen=True):
    """One event of a replicated channel."""

    payload: bytes
    ts_ns: int
    """When it was published, in nanoseconds since 1970 by the publisher's clock."""
    origin: int
    """Origin hash of the publisher."""
    headers: Mapping[str, bytes] | None = None


def pack_record(record: Record) -> bytes:
    """Write a record; raise LocalProtocolError for headers that are too long."""
    headers = b"" if not record.headers else _pack_headers(record.headers)
    return _HEAD.pack(record.ts_ns, record.origin, len(headers)) + headers + record.payload


def pack_record_head(ts_ns: int, origin: int) -> bytes:
    """Write what is before the payload of a record without headers."""
    return _HEAD.pack(ts_ns, origin, 0)


def unpack_record(event: Buffer) -> Record:
    """Read a record; raise MalformedPacket for bytes that are none."""
    view = memoryview(event)
    ts_ns, origin, size = _HEAD.unpack_prefix(view)
    end = RECORD_COST + size
    if len(view) < end:
        raise MalformedPacket("record", Fault.TRUNCATED, f"{size} bytes of headers in {len(view)} bytes")
    headers = _unpack_headers(view[RECORD_COST:end]) if size else None
    return Record(bytes(view[end:]), ts_ns, origin, headers)


def with_headers(records: Sequence[bytes]) -> list[bytes]:
    """Return those of the records that have headers, without reading these."""
    return [record for record in records if record[RECORD_COST - 2 : RECORD_COST] != _NO_HEADERS]


def _pack_headers(headers: Mapping[str, bytes]) -> bytes:
    parts: list[bytes] = []
    for key, value in headers.items():
        name = key.encode()
        if len(name) > 0xFF or len(value) > _MAX_HEADERS:
            raise LocalProtocolError(
                f"header {key!r}: a key has at most 255 bytes and a value 65535, got {len(name)} and {len(value)}"
            )
        parts += (_KEY.pack(len(name)), name, _VALUE.pack(len(value)), bytes(value))
    packed = b"".join(parts)
    if len(packed) > _MAX_HEADERS:
        raise LocalProtocolError(f"the headers of an event have {len(packed)} bytes; at most {_MAX_HEADERS} fit")
    return packed


def _unpack_headers(view: memoryview) -> dict[str, bytes]:
    headers: dict[str, bytes] = {}
    while view:
        key, view = take_field("record", "key of a header", view, _KEY.size)
        value, view = take_field("record", "value of a header", view, _VALUE.size)
        try:
            headers[str(key, "utf-8")] = bytes(value)
        except UnicodeDecodeError:
            raise MalformedPacket("record", Fault.BAD_VALUE, "the key of a header is not UTF-8") from None
    return headers
