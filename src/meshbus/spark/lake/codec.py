"""Payload codecs: declarations of codec and columns per channel, and the decoding of a column of payloads.

A declaration applies to one channel or to every channel with a prefix. A channel's own declaration wins, then the longest
prefix; a channel without a declaration is raw. Decoding returns text (JSON, except for utf8) or a problem and never
raises: payloads that cannot be decoded go to silver.quarantine. Runs in Spark workers; pyarrow is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, cast

import msgspec

from meshbus.errors import ConfigError

_LONGEST_PROBLEM = 200
"""Characters of a decoding error kept in quarantine: one sentence, so that a hostile payload cannot bloat the table."""


class Codec(StrEnum):
    """How payloads are encoded."""

    RAW = "raw"
    """Bytes that are not decoded."""
    UTF8 = "utf8"
    JSON = "json"
    MSGPACK = "msgpack"
    ARROW = "arrow"
    """An Arrow IPC stream; an event may hold many rows."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The declaration of the payloads of one channel, or of all channels with a prefix."""

    name: str | None = None
    """Name of the channel."""
    prefix: str | None = None
    """Instead of a name: applies to every channel that starts with it."""
    codec: Codec = Codec.RAW
    """Format of the payloads."""
    schema: str = ""
    """Columns that json, msgpack and arrow payloads must have, in Spark's DDL syntax: `temp DOUBLE NOT NULL, unit STRING`."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.prefix is None):
            raise ConfigError("channels", "each entry must have either 'name' or 'prefix', not both")
        if self.schema and self.codec in {Codec.RAW, Codec.UTF8}:
            raise ConfigError("schema", f"{self.codec} payloads have no columns; choose json, msgpack or arrow")


class Field(msgspec.Struct, frozen=True):
    """A column that a payload must have."""

    name: str
    kind: Any
    """A pyarrow type."""
    nullable: bool


def choose(declarations: Iterable[Declaration], channel: str) -> Declaration:
    """Return the declaration of a channel: its own, else that of the longest prefix, else raw."""
    best, length = Declaration(prefix=""), -1
    for declaration in declarations:
        if declaration.name == channel:
            return declaration
        if (
            declaration.prefix is not None
            and channel.startswith(declaration.prefix)
            and len(declaration.prefix) > length
        ):
            best, length = declaration, len(declaration.prefix)
    return best


def fields_of(schema: str) -> tuple[Field, ...]:
    """Parse a declared schema; raises ConfigError if Spark cannot parse it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    if not schema:
        return ()
    try:
        struct = cast("StructType", StructType.fromDDL(schema))
        return tuple(Field(field.name, to_arrow_type(field.dataType), field.nullable) for field in struct.fields)
    except PySparkException as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError("schema", f"cannot parse {schema!r} as columns: {reason}") from None


def decode(codec: Codec, payload: bytes, fields: Sequence[Field] = ()) -> tuple[str | None, str | None]:
    """Return the decoded text and None, or None and the problem; for raw, both are None."""
    try:
        match codec:
            case Codec.RAW:
                return None, None
            case Codec.UTF8:
                return payload.decode("utf-8"), None
            case Codec.JSON | Codec.MSGPACK:
                value = msgspec.json.decode(payload) if codec is Codec.JSON else msgspec.msgpack.decode(payload)
                _check(value, fields)
            case _:
                # One event may hold many rows, and one bad row puts the whole event into quarantine.
                value = _rows_of(payload)
                for row in value:
                    _check(row, fields)
        return msgspec.json.encode(value).decode(), None
    except Exception as error:  # noqa: BLE001 - hostile bytes may raise anything; the row goes to quarantine
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_PROBLEM]


def _check(value: Any, fields: Sequence[Field]) -> None:
    import pyarrow as pa

    if not fields:
        return
    if not isinstance(value, dict):
        raise TypeError(f"expected an object with {', '.join(field.name for field in fields)}")
    for field in fields:
        given = value.get(field.name)
        if given is None and not field.nullable:
            raise ValueError(f"{field.name} is missing")
        try:
            if isinstance(given, float) and pa.types.is_integer(field.kind):
                raise TypeError(f"{given} is not an integer")  # noqa: TRY301 - pyarrow would truncate it
            pa.scalar(given, field.kind)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(f"{field.name}: {error}") from None


def _rows_of(payload: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


def decoder(declarations: Sequence[Declaration]) -> Callable[[Any, Any], Any]:
    """Return a function that decodes a column of payloads, given a column of channels, both as Arrow arrays.

    The function returns an Arrow array of {codec, value, problem}.
    """
    import pyarrow as pa

    prepared = {declaration: fields_of(declaration.schema) for declaration in declarations}

    def decode_column(channels: Any, payloads: Any) -> Any:
        chosen: dict[str, tuple[Codec, Sequence[Field]]] = {}
        rows = []
        for channel, payload in zip(channels.to_pylist(), payloads.to_pylist(), strict=True):
            if channel not in chosen:
                declaration = choose(declarations, channel)
                chosen[channel] = (declaration.codec, prepared.get(declaration, ()))
            codec, fields = chosen[channel]
            value, problem = decode(codec, payload, fields)
            rows.append((codec.value, value, problem))
        codecs, values, problems = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.StructArray.from_arrays(
            [pa.array(codecs, pa.string()), pa.array(values, pa.string()), pa.array(problems, pa.string())],
            ["codec", "value", "problem"],
        )

    # Spark infers the kind of function from its annotations, and cannot use the strings that
    # `from __future__ import annotations` makes of them.
    decode_column.__annotations__ = dict.fromkeys(("channels", "payloads", "return"), pa.Array)
    return decode_column
