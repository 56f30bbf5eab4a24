"""Decode columns of payloads as Arrow batches: msgpack, arrow and protobuf, and json where there is no JVM.

A decoder is built once for a form (codec, fields) and takes whole columns. It returns text (JSON) or typed columns, and a
problem for each payload that does not fit; it never raises for a payload: those that cannot be decoded go to
silver.quarantine. Runs in Spark workers and in the data source; pyarrow is imported on first use. What a field accepts is
in spark/lake/fields.py; Protobuf has its own module, spark/lake/protobuf.py.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from meshbus.log.payload import Codec, Field, Kind
from meshbus.spark.lake.codec import Form
from meshbus.spark.lake.fields import arrow_type, hook, row_type, to_array

_LONGEST_PROBLEM = 200
"""Characters of a decoding error kept in quarantine: one sentence, so that a hostile payload cannot bloat the table."""
_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `(.+)`)?")
_NULL = re.compile(r"Expected .*, got `(?:null|None)` - at `\$\.?(.+)`")

Problems = list[str | None]


class Decoder(Protocol):
    """Decodes the payloads of one form."""

    @property
    def kind(self) -> Kind:
        """The type of the typed columns: a struct, or an array of structs if a payload has many rows."""

    def texts(self, payloads: Sequence[bytes]) -> tuple[list[str | None], Problems]:
        """Return each payload as JSON, or its problem."""

    def columns(self, payloads: Sequence[bytes]) -> tuple[Any, Problems]:
        """Return the fields as an Arrow array of type `kind`, null where there is a problem, and the problems."""


def decoder_of(form: Form) -> Decoder:
    """Return the decoder of a form. Raises ConfigError if its descriptor or its fields cannot be used."""
    match form.codec:
        case Codec.JSON | Codec.MSGPACK:
            return Objects(form)
        case Codec.ARROW:
            return Batches(form)
        case Codec.PROTOBUF:
            from meshbus.spark.lake.protobuf import Messages

            return Messages(form)
        case _:
            raise ValueError(f"{form.codec} payloads have no fields")


def each(payloads: Sequence[bytes], decode: Callable[[bytes], Any]) -> tuple[list[Any], Problems]:
    """Decode payloads one after the other; a payload that raises is None, and its problem a sentence."""
    try:
        return [decode(payload) for payload in payloads], [None] * len(payloads)
    except Exception:  # noqa: BLE001 - see below
        return _patiently(payloads, decode)


def _patiently(payloads: Sequence[bytes], decode: Callable[[bytes], Any]) -> tuple[list[Any], Problems]:
    values: list[Any] = []
    problems: Problems = []
    for payload in payloads:
        value, problem = None, None
        try:
            value = decode(payload)
        except Exception as error:  # noqa: BLE001 - hostile bytes may raise anything; the row goes to quarantine
            problem = sentence(error)
        values.append(value)
        problems.append(problem)
    return values, problems


def sentence(error: Exception) -> str:
    """Return an error as one short sentence."""
    text = str(error)
    if (missing := _MISSING.fullmatch(text)) is not None:
        return f"{_place(missing[2], missing[1])} is missing"[:_LONGEST_PROBLEM]
    if (null := _NULL.fullmatch(text)) is not None:
        return f"{null[1]} is missing"[:_LONGEST_PROBLEM]
    if isinstance(error, msgspec.ValidationError) and " - at `$." in text:
        what, _, where = text.rpartition(" - at `$.")
        return f"{where.rstrip('`')}: {what}"[:_LONGEST_PROBLEM]
    return " ".join(f"{type(error).__name__}: {text}".split())[:_LONGEST_PROBLEM]


def _place(path: str | None, name: str) -> str:
    return f"{path.removeprefix('$').removeprefix('.')}.{name}" if path else name


def _need_object(value: Any, fields: Sequence[Field]) -> None:
    if fields and not isinstance(value, dict):
        raise TypeError(f"expected an object with {', '.join(field.name for field in fields)}")


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    # msgspec writes null for what JSON cannot hold, and the value would change without a word.
    if "null" in text and not _finite(value):
        raise ValueError("a number is NaN or infinite, which JSON cannot hold")
    return text


def _finite(value: Any) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_finite, value.values()))
        case list():
            return all(map(_finite, value))
        case _:
            return True


class Objects:
    """Payloads of json and msgpack: one object each."""

    def __init__(self, form: Form) -> None:
        self.kind = Kind("struct", fields=form.fields)
        self._row = row_type(form.fields)
        module = msgspec.json if form.codec is Codec.JSON else msgspec.msgpack
        self._any, self._typed = module.Decoder(), module.Decoder(self._row, dec_hook=hook)
        # What msgpack has itself must not come as text.
        self._native = () if form.codec is Codec.JSON else (bytes, dt.datetime)

    def texts(self, payloads: Sequence[bytes]) -> tuple[list[str | None], Problems]:
        """Return each payload as JSON, or its problem."""
        return each(payloads, self._text)

    def _text(self, payload: bytes) -> str:
        value = self._any.decode(payload)
        if self.kind.fields:
            _need_object(value, self.kind.fields)
            msgspec.convert(value, self._row, builtin_types=self._native, dec_hook=hook)
        return _json(value)

    def columns(self, payloads: Sequence[bytes]) -> tuple[Any, Problems]:
        """Return the fields as a column of structs, and the problems."""
        rows, problems = each(payloads, self._typed.decode)
        return to_array(rows, self.kind), problems


class Batches:
    """Payloads of arrow: an IPC stream each, which may hold many rows; one bad row is a problem of the whole event."""

    def __init__(self, form: Form) -> None:
        self._fields = form.fields
        self.kind = Kind("array", item=Kind("struct", fields=form.fields))

    def texts(self, payloads: Sequence[bytes]) -> tuple[list[str | None], Problems]:
        """Return each payload as a JSON array of its rows, or its problem."""
        return each(payloads, self._text)

    def _text(self, payload: bytes) -> str:
        table = _table_of(payload)
        self._fit(table)
        return _json(table.to_pylist())

    def columns(self, payloads: Sequence[bytes]) -> tuple[Any, Problems]:
        """Return the rows of each event as a column of arrays of structs, and the problems."""
        import numpy as np
        import pyarrow as pa

        found, problems = each(payloads, lambda payload: self._fit(_table_of(payload)))
        sizes = [0, *(0 if rows is None else len(rows) for rows in found)]
        empty = to_array([], Kind("struct", fields=self._fields))
        flat = pa.concat_arrays([empty, *(rows for rows in found if rows is not None)])
        nulls = pa.array([rows is None for rows in found], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(np.cumsum(sizes), pa.int32()), flat, mask=nulls), problems

    def _fit(self, table: Any) -> Any:
        """Return the declared fields of a table as an array of structs; raises if one does not fit."""
        import pyarrow as pa

        wanted = [pa.field(field.name, arrow_type(field.kind)) for field in self._fields]
        if not wanted:
            return pa.nulls(table.num_rows, pa.struct([]))
        arrays = [_column(table, field) for field in self._fields]
        return pa.StructArray.from_arrays(arrays, fields=wanted)


def _table_of(payload: bytes) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as reader:
        table = reader.read_all()
    table.validate(full=True)  # offsets of a hostile stream may point anywhere
    if len(set(table.column_names)) < len(table.column_names):
        raise ValueError("two columns have the same name")
    return table


def _column(table: Any, field: Field) -> Any:
    import pyarrow as pa

    wanted = arrow_type(field.kind)
    if field.name not in table.column_names:
        column = pa.nulls(table.num_rows, wanted)
    else:
        column = table.column(field.name)
        if not _widens(column.type, wanted):
            raise TypeError(f"{field.name}: expected {field.kind.ddl}, got {column.type}")
        try:
            column = pa.concat_arrays(chunks) if (chunks := column.cast(wanted).chunks) else pa.array([], wanted)
        except pa.ArrowException as error:
            raise ValueError(f"{field.name}: {error}") from None
    if not field.nullable and column.null_count:
        raise ValueError(f"{field.name} is missing")
    return column


def _widens(held: Any, wanted: Any) -> bool:
    """Return whether values of a type may be cast to another without becoming something else; ranges are checked later."""
    import pyarrow.types as of

    if of.is_dictionary(held):
        held = held.value_type
    if of.is_null(held) or held == wanted:
        return True
    if of.is_integer(held):
        return bool(of.is_integer(wanted) or of.is_float64(wanted))
    if of.is_floating(held):
        return bool(of.is_floating(wanted) and held.bit_width <= wanted.bit_width)
    for same in (of.is_decimal, of.is_date):
        if same(held):
            return bool(same(wanted))
    if of.is_timestamp(held):
        return bool(of.is_timestamp(wanted) and held.tz is not None)
    if of.is_string(held) or of.is_large_string(held) or of.is_string_view(held):
        return bool(of.is_string(wanted))
    if of.is_binary(held) or of.is_large_binary(held) or of.is_fixed_size_binary(held):
        return bool(of.is_binary(wanted))
    return _widens_nested(held, wanted)


def _widens_nested(held: Any, wanted: Any) -> bool:
    import pyarrow.types as of

    if of.is_struct(held) and of.is_struct(wanted):
        names = {field.name: field.type for field in held}
        return all(field.name not in names or _widens(names[field.name], field.type) for field in wanted)
    if of.is_map(held) and of.is_map(wanted):
        return _widens(held.key_type, wanted.key_type) and _widens(held.item_type, wanted.item_type)
    lists = (of.is_list, of.is_large_list, of.is_fixed_size_list)
    return any(test(held) for test in lists) and of.is_list(wanted) and _widens(held.value_type, wanted.value_type)


def decode_groups(decoders: dict[int, Decoder], which: Any, payloads: Any) -> tuple[list[str | None], Problems]:
    """Decode a column in which each payload has its own decoder, by the number in the column `which`."""
    numbers, contents = which.to_pylist(), payloads.to_pylist()
    values: list[str | None] = [None] * len(numbers)
    problems: Problems = [None] * len(numbers)
    # Whole groups, because almost always there is one.
    for number in sorted(set(numbers)):
        places = [place for place, other in enumerate(numbers) if other == number]
        texts, wrong = decoders[number].texts([contents[place] for place in places])
        for place, text, problem in zip(places, texts, wrong, strict=True):
            values[place], problems[place] = text, problem
    return values, problems
