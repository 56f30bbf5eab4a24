"""Fields of payloads as types: of Arrow for columns, and of msgspec for strict decoding.

What a field accepts is the same in every codec, and what spark/lake/decode.py checks inside Spark: integers without
fraction and in range; numbers for FLOAT and DOUBLE; strings for STRING; base64 for BINARY, RFC 3339 for TIMESTAMP and
DATE where the codec has no such type; integers or strings for DECIMAL. Nothing is rounded, cut or converted from text.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from meshbus.log.payload import Field, Kind

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TICK = dt.timedelta(microseconds=1)
_WIDEST = dt.timedelta(hours=18)
"""Offset of a time zone, as Java allows."""
DATE_PATTERN = "^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME_PATTERN = DATE_PATTERN + r"T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
"""RFC 3339 with a zone, and not more digits than a TIMESTAMP has. Patterns have no end: Java and Python spell it differently."""
LARGEST_FLOAT = 3.4028234663852886e38
"""Largest number of 32 bits."""


class Instant:
    """A time in a payload, in microseconds since 1970."""

    __slots__ = ("us",)

    def __init__(self, us: int) -> None:
        self.us = us


def hook(wanted: type[Any], value: Any) -> Any:
    """Convert what msgspec does not know: times. A time is RFC 3339 text, or a native one of msgpack or Arrow."""
    assert wanted is Instant
    if isinstance(value, str) and re.fullmatch(TIME_PATTERN, value, re.ASCII) is not None:
        value = dt.datetime.fromisoformat(value)
    offset = value.utcoffset() if isinstance(value, dt.datetime) else None
    if offset is None or abs(offset) > _WIDEST:
        raise ValueError("expected a time such as `2026-11-17T02:47:37.123456Z`")
    return Instant((value - _EPOCH) // _TICK)


def decimal_pattern(kind: Kind) -> str:
    """Return the regular expression of a DECIMAL as text: digits that fit without rounding."""
    whole, part = kind.precision - kind.scale, kind.scale
    digits = f"[0-9]{{1,{whole}}}" if whole else "0"
    return f"^-?{digits}" + (rf"(\.[0-9]{{1,{part}}})?" if part else "")


def largest_integer(kind: Kind) -> int:
    """Return the largest integer that a field of whole numbers or a DECIMAL takes; never more than 64 bits."""
    if kind.name == "decimal":
        return min(int(10 ** (kind.precision - kind.scale)) - 1, 2**63 - 1)
    most: int = 2 ** (_BITS[kind.name] - 1) - 1
    return most


def row_type(fields: Sequence[Field]) -> Any:
    """Return a msgspec type for objects with these fields; unknown ones are ignored."""
    spelled = {f"f{number}": field.name for number, field in enumerate(fields)}
    # Keyword-only, so that required fields may follow others, in the order of the schema.
    members = [_member(name, field) for name, field in zip(spelled, fields, strict=True)]
    return msgspec.defstruct("Payload", members, rename=spelled, kw_only=True, frozen=True)


def _member(name: str, field: Field) -> tuple[str, Any] | tuple[str, Any, Any]:
    kind = _type_of(field.kind)
    return (name, kind | None, None) if field.nullable else (name, kind)


def _type_of(kind: Kind) -> Any:
    match kind.name:
        case "boolean":
            return bool
        case "tinyint" | "smallint" | "int" | "bigint":
            return _integer(kind)
        case "float":
            return Annotated[float, msgspec.Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)]
        case "double":
            return float
        case "decimal":
            return _integer(kind) | Annotated[str, msgspec.Meta(pattern=decimal_pattern(kind) + r"\Z")]
        case "string":
            return str
        case "binary":
            return bytes
        case "date":
            return dt.date
        case "timestamp":
            return Instant
        case "array":
            return list[_type_of(_item(kind)) | None]  # type: ignore[misc]  # a type made at run time
        case "map":
            return dict[str, _type_of(_item(kind)) | None]  # type: ignore[misc]
        case _:
            return row_type(kind.fields)


def _integer(kind: Kind) -> Any:
    most = largest_integer(kind)
    least = -most if kind.name == "decimal" else -most - 1
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


def _item(kind: Kind) -> Kind:
    assert kind.item is not None
    return kind.item


def arrow_type(kind: Kind) -> Any:
    """Return the Arrow type of a field, as Spark expects it."""
    import pyarrow as pa

    match kind.name:
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "array":
            return pa.list_(arrow_type(_item(kind)))
        case "map":
            return pa.map_(pa.string(), arrow_type(_item(kind)))
        case "struct":
            return pa.struct([pa.field(field.name, arrow_type(field.kind)) for field in kind.fields])
        case "timestamp":
            return pa.timestamp("us", "UTC")
        case name:
            plain = {
                "boolean": pa.bool_(),
                "tinyint": pa.int8(),
                "smallint": pa.int16(),
                "int": pa.int32(),
                "bigint": pa.int64(),
                "float": pa.float32(),
                "double": pa.float64(),
                "string": pa.string(),
                "binary": pa.binary(),
                "date": pa.date32(),
            }
            return plain[name]


def to_array(values: Sequence[Any], kind: Kind) -> Any:
    """Return values as an Arrow array; a struct is a tuple of its fields or a msgspec row, a map is a dict."""
    import pyarrow as pa

    match kind.name:
        case "struct":
            return _structs(values, kind)
        case "array":
            flat = to_array(_flat(values), _item(kind))
            return pa.ListArray.from_arrays(_offsets(values), flat, mask=_nulls(values))
        case "map":
            present = [value for value in values if value is not None]
            keys = pa.array([key for value in present for key in value], pa.string())
            items = to_array([item for value in present for item in value.values()], _item(kind))
            return pa.MapArray.from_arrays(_offsets(values), keys, items, mask=_nulls(values))
        case "decimal":
            exact: list[Any] = [None if value is None else Decimal(value) for value in values]
            return pa.array(exact, arrow_type(kind))
        case "timestamp":
            return pa.array([value.us if isinstance(value, Instant) else value for value in values], arrow_type(kind))
        case _:
            return pa.array(values, arrow_type(kind))


def _structs(values: Sequence[Any], kind: Kind) -> Any:
    import pyarrow as pa

    blank = (None,) * len(kind.fields)
    rows = [
        blank if value is None else value if isinstance(value, tuple) else msgspec.structs.astuple(value)
        for value in values
    ]
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else ((),) * len(kind.fields)
    arrays = [to_array(column, field.kind) for column, field in zip(columns, kind.fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_type(kind)), mask=_nulls(values))


def _flat(values: Sequence[Any]) -> list[Any]:
    return [item for value in values if value is not None for item in value]


def _offsets(values: Sequence[Any]) -> Any:
    import numpy as np
    import pyarrow as pa

    sizes = [0, *(0 if value is None else len(value) for value in values)]
    return pa.array(np.cumsum(sizes), pa.int32())


def _nulls(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.array([value is None for value in values], pa.bool_())
