"""Payloads as typed columns of the data source: `data` with the fields, and `problem` where a payload does not fit.

The codec and the fields come from options, or with codec `stored` from the schemas beside each log (log/schemas.py): each
event is decoded by the entry that was valid when it was written, and arrives with the columns of the newest entry. A
field that was added since is null, a field that was removed is left out, and a value of another type is a problem.
Payloads are decoded in Arrow batches by spark/lake/payloads.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import types as T

from meshbus.errors import ConfigError
from meshbus.log.payload import TYPED, Codec, Field, Kind, parse_fields
from meshbus.log.schemas import Version, read_versions, version_at
from meshbus.spark.lake.codec import Form
from meshbus.spark.lake.fields import arrow_type
from meshbus.spark.lake.payloads import Decoder, Problems, decoder_of

DATA, PROBLEM = "data", "problem"
"""The columns that are added to those of the log."""
_PLAIN: dict[str, Any] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
}


class Typed(msgspec.Struct, frozen=True):
    """How a query decodes payloads; a plain value that workers get."""

    kind: Kind
    """Type of the column `data`."""
    form: Form | None
    """The form of all payloads; None to use the schemas that are stored beside each log."""
    fail: bool
    """Whether a payload that does not fit fails the query; there is no column `problem` then."""

    @property
    def struct(self) -> T.StructType:
        """The added columns as a Spark schema."""
        added = [T.StructField(DATA, spark_type(self.kind))]
        return T.StructType(added if self.fail else [*added, T.StructField(PROBLEM, T.StringType())])

    def columns(self) -> Columns:
        """Return the decoding of batches into these columns."""
        return Columns(self)

    @property
    def ddl(self) -> str:
        """The added columns in Spark's DDL syntax; each is nullable, because `data` may be null as a whole."""
        return f"{DATA} {kind_of(spark_type(self.kind)).ddl}" + ("" if self.fail else f", {PROBLEM} STRING")

    def arrow_fields(self) -> list[Any]:
        """Return the added columns as fields of an Arrow schema."""
        import pyarrow as pa

        data = pa.field(DATA, arrow_type(self.kind))
        return [data] if self.fail else [data, pa.field(PROBLEM, pa.string())]


def stored_kind(folders: Mapping[Path, str]) -> Kind:
    """Return the type of `data` by the newest schema of some logs, given as folders with their channels.

    Raises ConfigError if they have none, or different ones.
    """
    newest = {channel: read_versions(folder)[-1:] for folder, channel in folders.items()}
    kinds = {_kind_of(*versions) for versions in newest.values() if versions and versions[0].codec in TYPED}
    if len(kinds) != 1:
        told = "have different schemas" if kinds else "have no schema beside their log"
        raise ConfigError(
            "codec",
            f"the channels {', '.join(sorted(newest)) or '(none)'} {told}; choose channels with one schema, or set"
            " payloadSchema",
        )
    return kinds.pop()


def _kind_of(version: Version) -> Kind:
    form = Form(version.codec, parse_fields(version.schema), version.descriptor, version.message)
    kind = decoder_of(form).kind
    if not (kind.item or kind).fields:
        raise ConfigError("payloadSchema", f"the stored schema has the codec {version.codec} and no fields; name them")
    return kind


class Columns:
    """Decodes the payloads of splits; one for each task."""

    def __init__(self, typed: Typed) -> None:
        self._typed = typed
        self._decoders: dict[Form, Decoder] = {}
        self._versions: dict[str, tuple[Version, ...]] = {}

    def of(self, batch: Any, split: Mapping[str, Any]) -> list[Any]:
        """Return the added columns for a record batch with seq and payload. Raises ConfigError if `fail` is set."""
        import pyarrow as pa

        sequences, payloads = batch.column("seq").to_pylist(), batch.column("payload").to_pylist()
        arrays, problems = [], []
        for form, places in groupby(range(len(sequences)), lambda place: self._form_at(split, sequences[place])):
            part = list(places)
            data, wrong = self._decode(form, payloads[part[0] : part[-1] + 1])
            arrays.append(data)
            problems += wrong
        if self._typed.fail:
            self._complain(split, sequences, problems)
        data = pa.concat_arrays(arrays)
        return [data] if self._typed.fail else [data, pa.array(problems, pa.string())]

    def _form_at(self, split: Mapping[str, Any], seq: int) -> Form | None:
        if self._typed.form is not None:
            return self._typed.form
        folder = str(split["folder"])
        if folder not in self._versions:
            self._versions[folder] = read_versions(Path(folder))
        version = version_at(self._versions[folder], seq)
        return None if version is None or version.codec not in TYPED else evolved(self._typed.kind, version)

    def _decode(self, form: Form | None, payloads: Sequence[bytes]) -> tuple[Any, Problems]:
        import pyarrow as pa

        if form is None:
            why = "no schema with fields is stored for this sequence"
            return pa.nulls(len(payloads), arrow_type(self._typed.kind)), [why] * len(payloads)
        if form not in self._decoders:
            self._decoders[form] = decoder_of(form)
        decoder = self._decoders[form]
        if (decoder.kind.name, self._typed.kind.name) in {("array", "struct"), ("struct", "array")}:
            why = f"the codec was {form.codec} when it was written, whose rows do not fit the newest schema"
            return pa.nulls(len(payloads), arrow_type(self._typed.kind)), [why] * len(payloads)
        return decoder.columns(payloads)

    def _complain(self, split: Mapping[str, Any], sequences: Sequence[int], problems: Problems) -> None:
        for seq, problem in zip(sequences, problems, strict=True):
            if problem is not None:
                raise ConfigError(
                    "payloadSchema",
                    f"event {seq} of {split['channel']} does not fit ({problem}); set onProblem to null to read such"
                    " events with a problem instead",
                )


def evolved(kind: Kind, version: Version) -> Form:
    """Return how events of an entry are read with the columns of another: a field that it does not require may be missing."""
    required = {field.name for field in parse_fields(version.schema) if not field.nullable}
    wanted = (kind.item or kind).fields
    fields = tuple(Field(field.name, field.kind, field.name not in required) for field in wanted)
    return Form(version.codec, fields, version.descriptor, version.message)


def spark_type(kind: Kind) -> Any:
    """Return a type as Spark's; works in a worker, where Spark cannot parse DDL."""
    match kind:
        case Kind(name="decimal"):
            return T.DecimalType(kind.precision, kind.scale)
        case Kind(name="array", item=Kind() as item):
            return T.ArrayType(spark_type(item))
        case Kind(name="map", item=Kind() as item):
            return T.MapType(T.StringType(), spark_type(item))
        case Kind(name="struct"):
            return T.StructType([T.StructField(field.name, spark_type(field.kind)) for field in kind.fields])
        case _:
            return _PLAIN[kind.name]


def kind_of(held: Any) -> Kind:
    """Return the type of a Spark schema; raises ConfigError for one that payloads cannot have."""
    match held:
        case T.DecimalType():
            return Kind("decimal", precision=held.precision, scale=held.scale)
        case T.ArrayType():
            return Kind("array", item=kind_of(held.elementType))
        case T.MapType() if isinstance(held.keyType, T.StringType):
            return Kind("map", item=kind_of(held.valueType))
        case T.StructType():
            return Kind("struct", fields=tuple(Field(field.name, kind_of(field.dataType)) for field in held.fields))
        case _:
            name = held.simpleString()
            if name not in _PLAIN:
                raise ConfigError("schema", f"payloads have no fields of type {name}; choose from {', '.join(_PLAIN)}")
            return Kind(name)


def typed_by(
    codec: Codec | None, schema: str, *, descriptor: bytes, message: str, folders: Mapping[Path, str], fail: bool
) -> Typed:
    """Return how a query decodes payloads; without a codec, by the schemas beside the logs. Raises ConfigError."""
    fields = parse_fields(schema)
    if codec is None:
        return Typed(Kind("struct", fields=fields) if fields else stored_kind(folders), None, fail)
    if not fields and codec is not Codec.PROTOBUF:
        raise ConfigError(
            "payloadSchema", f"is required for codec {codec}: the fields, such as temp DOUBLE, unit STRING"
        )
    form = Form(codec, fields, descriptor, message)
    return Typed(decoder_of(form).kind, form, fail)
