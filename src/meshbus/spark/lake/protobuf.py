"""Decode Protobuf payloads by a descriptor set, without generated code.

    protoc --include_imports --descriptor_set_out=sensors.desc sensors.proto

As text, a message is Protobuf's canonical JSON: names in lowerCamelCase, 64-bit integers as strings, bytes in base64. As
columns, fields keep the names and types of the .proto file: uint64 is DECIMAL(20,0), an enum the name of its value, a
google.protobuf.Timestamp a TIMESTAMP, a map a MAP with keys as strings. A field that is not set is null if it has presence
and the default if not, as in every Protobuf library. Fields that the descriptor lacks are ignored; one that was written
with another type is a problem (spark/lake/protobuftypes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from meshbus.errors import ConfigError
from meshbus.log.payload import Field, Kind
from meshbus.spark.lake.codec import Form
from meshbus.spark.lake.fields import to_array
from meshbus.spark.lake.payloads import Problems, each
from meshbus.spark.lake.protobuftypes import parse_checked

_DEEPEST = 16
"""Levels of messages in columns: a message that contains itself has no end of them."""
_TIMESTAMP = "google.protobuf.Timestamp"
_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
"""Range of a Timestamp: the years 1 to 9999."""
_ENTITLED = {
    "INT32": ("int", "bigint", "double"),
    "INT64": ("bigint",),
    "UINT32": ("bigint", "double"),
    "UINT64": ("decimal",),
    "FLOAT": ("float", "double"),
    "DOUBLE": ("double",),
    "BOOL": ("boolean",),
    "STRING": ("string",),
    "BYTES": ("binary",),
    "ENUM": ("string",),
    "TIMESTAMP": ("timestamp",),
    "MESSAGE": ("struct",),
}
"""The types that a field may have as a column; the first is what it has if no schema is declared."""

Read = Callable[[Any], Any]


class Messages:
    """Payloads of protobuf: one message each."""

    def __init__(self, form: Form) -> None:
        self._pool, self._message = _load(form)
        descriptor = self._message.DESCRIPTOR
        self.kind = Kind("struct", fields=form.fields or _fields_of(descriptor, 0))
        self._read = _struct(descriptor, self.kind.fields, "")

    def texts(self, payloads: Sequence[bytes]) -> tuple[list[str | None], Problems]:
        """Return each message as canonical JSON, or its problem."""
        return each(payloads, self._text)

    def _text(self, payload: bytes) -> str:
        from google.protobuf.json_format import MessageToJson

        message = parse_checked(self._message, payload)
        self._read(message)
        text: str = MessageToJson(message, indent=None, ensure_ascii=False, descriptor_pool=self._pool)
        return text

    def columns(self, payloads: Sequence[bytes]) -> tuple[Any, Problems]:
        """Return the fields as a column of structs, and the problems."""
        rows, problems = each(payloads, lambda payload: self._read(parse_checked(self._message, payload)))
        return to_array(rows, self.kind), problems


def _load(form: Form) -> tuple[Any, Any]:
    """Return a pool with the files of a descriptor set, and the class of the message. Raises ConfigError."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ConfigError("codec", "protobuf is not installed; run: pip install 'meshbus[protobuf]'") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(form.descriptor).file
        for file in files:
            pool.Add(file)
        names = sorted(f"{file.package}.{message.name}".lstrip(".") for file in files for message in file.message_type)
        if not names:
            raise TypeError("it contains no message")  # noqa: TRY301 - one sentence for all that is wrong with it
    except (DecodeError, TypeError) as error:
        raise ConfigError(
            "descriptor",
            f"is not a complete FileDescriptorSet ({error}); make it with protoc --include_imports --descriptor_set_out",
        ) from None
    try:
        return pool, message_factory.GetMessageClass(pool.FindMessageTypeByName(form.message))
    except KeyError:
        raise ConfigError("message", f"unknown message {form.message!r}; choose from {', '.join(names)}") from None
    except TypeError as error:
        raise ConfigError("descriptor", f"lacks an imported file ({error}); make it with --include_imports") from None


def _fields_of(descriptor: Any, depth: int) -> tuple[Field, ...]:
    """Return the fields of a message as columns, in the order of their numbers."""
    if depth > _DEEPEST:
        raise ConfigError(
            "message", f"{descriptor.full_name} contains itself; declare the fields that you want as a schema"
        )
    ordered = sorted(descriptor.fields, key=lambda field: field.number)
    return tuple(Field(field.name, _kind_of(field, depth)) for field in ordered)


def _kind_of(field: Any, depth: int) -> Kind:
    if _is_map(field):
        return Kind("map", item=_single(field.message_type.fields_by_name["value"], depth))
    kind = _single(field, depth)
    return Kind("array", item=kind) if field.is_repeated else kind


def _single(field: Any, depth: int) -> Kind:
    family = _family(field)
    name = _ENTITLED[family][0]
    match family:
        case "MESSAGE":
            return Kind(name, fields=_fields_of(field.message_type, depth + 1))
        case "UINT64":
            return Kind(name, precision=20)
        case _:
            return Kind(name)


def _family(field: Any) -> str:
    """Return a key of _ENTITLED."""
    if field.message_type is not None and field.message_type.full_name == _TIMESTAMP:
        return "TIMESTAMP"
    if field.type == field.TYPE_BYTES:
        return "BYTES"  # in C++ a string like others
    return next(name for name in _ENTITLED if getattr(field, f"CPPTYPE_{name}", None) == field.cpp_type)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _struct(descriptor: Any, fields: Sequence[Field], path: str) -> Read:
    """Return a function that reads the fields of a message as a tuple, in which a field that does not exist is None."""
    readers = [_member(descriptor.fields_by_name.get(field.name), field, path + field.name) for field in fields]
    return lambda message: tuple([read(message) for read in readers])


def _member(held: Any, field: Field, place: str) -> Read:
    """Return a function that reads one field of a message; it raises if the field is missing or does not fit."""
    if held is None:
        return lambda _: _needed(None, field, place)
    if _is_map(held):
        return _map(held, field, place)
    name, kind = field.name, field.kind
    if held.is_repeated:
        item = kind.item if kind.name == "array" else None
        convert = _converter(held, item, kind, place)
        return lambda message: [convert(value) for value in getattr(message, name)]
    convert = _converter(held, kind, kind, place)
    if not held.has_presence:
        return lambda message: convert(getattr(message, name))
    return lambda message: _needed(convert(getattr(message, name)) if message.HasField(name) else None, field, place)


def _map(held: Any, field: Field, place: str) -> Read:
    entry = held.message_type.fields_by_name
    item = field.kind.item if field.kind.name == "map" else None
    convert = _converter(entry["value"], item, field.kind, place)
    name = field.name
    # As in canonical JSON, keys are text: true and false for booleans, digits for numbers.
    key = str if _family(entry["key"]) != "BOOL" else lambda value: str(value).lower()
    return lambda message: {key(each_key): convert(value) for each_key, value in getattr(message, name).items()}


def _needed(value: Any, field: Field, place: str) -> Any:
    if value is None and not field.nullable:
        raise ValueError(f"{place} is missing")
    return value


def _converter(held: Any, kind: Kind | None, whole: Kind, place: str) -> Read:
    """Return a function from a value of a message to one of a column; it raises for each value if the types differ."""
    family = _family(held)
    narrow = kind is not None and kind.name == "decimal" and kind.precision - kind.scale < 20
    if kind is None or kind.name not in _ENTITLED[family] or narrow:
        return lambda _: _refuse(f"{place}: expected {whole.ddl}, got {family.lower()}")
    match family:
        case "MESSAGE":
            return _struct(held.message_type, kind.fields, f"{place}.")
        case "TIMESTAMP":
            return lambda value: _microseconds(value, place)
        case "ENUM":
            names = held.enum_type.values_by_number
            return lambda value: names[value].name if value in names else str(value)
        case _:
            return lambda value: value


def _refuse(why: str) -> Any:
    raise TypeError(why)


def _microseconds(value: Any, place: str) -> int:
    if not _SECONDS[0] <= value.seconds <= _SECONDS[1] or not 0 <= value.nanos < 1_000_000_000:
        raise ValueError(f"{place}: {value.seconds} s and {value.nanos} ns is not a time in the years 1 to 9999")
    if value.nanos % 1_000:
        raise ValueError(f"{place}: {value.nanos} ns cannot be stored; a TIMESTAMP has microseconds")
    return int(value.seconds * 1_000_000 + value.nanos // 1_000)
