"""Find fields of Protobuf messages that were written with another type than the descriptor has.

A parser takes a field whose wire type does not fit for an unknown one, and the message looks as if the field were not set:
the value would be lost without a word. Types that share a wire type, such as int64 and bool, cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_VARINT, _EIGHT, _BYTES, _GROUP, _FOUR = 0, 1, 2, 3, 5
_WIRE: Final = {
    "DOUBLE": _EIGHT, "FLOAT": _FOUR, "INT64": _VARINT, "UINT64": _VARINT, "INT32": _VARINT, "FIXED64": _EIGHT,
    "FIXED32": _FOUR, "BOOL": _VARINT, "STRING": _BYTES, "GROUP": _GROUP, "MESSAGE": _BYTES, "BYTES": _BYTES,
    "UINT32": _VARINT, "ENUM": _VARINT, "SFIXED32": _FOUR, "SFIXED64": _EIGHT, "SINT32": _VARINT, "SINT64": _VARINT,
}  # fmt: skip
"""The wire type of each type of a .proto file."""
_NAMES = {
    _VARINT: "an integer",
    _EIGHT: "8 bytes",
    _BYTES: "text, bytes or a message",
    _GROUP: "a group",
    _FOUR: "4 bytes",
}


def parse_checked(kind: Any, payload: bytes) -> Any:
    """Return a message of a class, without fields that its descriptor lacks.

    Raises TypeError if a type was changed, and ValueError if a required field of proto2 is missing.
    """
    message = kind.FromString(payload)
    if not message.IsInitialized():
        raise ValueError(f"{', '.join(message.FindInitializationErrors())} is missing")
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:  # rare, and only then worth a look at every field
        for place, expected, found in _changed(kind.FromString(payload), ""):
            raise TypeError(f"{place}: expected {expected}, got {found}")
    return message


def _changed(message: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a message and of those inside it whose wire type does not fit."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = message.DESCRIPTOR.fields_by_number
    for field in UnknownFieldSet(message):
        held = known.get(field.field_number)
        # An enum of proto2 has its unknown values here, with the right wire type; repeated numbers may be packed.
        if held is not None and field.wire_type not in _allowed(held):
            yield f"{path}{held.name}", _type_name(held), _NAMES.get(field.wire_type, "another type")
    for held, value in message.ListFields():
        if held.message_type is None or held.message_type.GetOptions().map_entry:
            continue
        for one in value if held.is_repeated else [value]:
            yield from _changed(one, f"{path}{held.name}.")


def _allowed(field: Any) -> set[int]:
    wire = _WIRE[_type_name(field).upper()]
    return {wire, _BYTES} if field.is_repeated else {wire}


def _type_name(field: Any) -> str:
    return next(name for name in _WIRE if getattr(field, f"TYPE_{name}") == field.type).lower()
