"""What payloads contain: their codec, and their fields in the syntax of SQL columns.

    parse_fields("temp DOUBLE NOT NULL, unit STRING, tags ARRAY<INT>")

The syntax is that of Spark's DDL, reduced to the types that every codec can carry, so that a schema can be checked where
there is no Spark. Decoding is in spark/lake/payloads.py; schemas are stored beside logs by log/schemas.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NoReturn

import msgspec

from meshbus.errors import ConfigError

_DEEPEST = 16
"""Levels of nested types: more than any payload needs, and far below Python's limit of recursion."""
_TOKEN = re.compile(r"\s*(?:`([^`]+)`|([A-Za-z_]\w*)|(\d+)|'((?:[^'\\]|\\.)*)'|([<>(),:]))")
_SPELLINGS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
}
"""Second names of types in SQL."""
_MOST_DIGITS = 38
"""Precision of decimals in Spark and in Arrow's 128 bits."""


class Codec(StrEnum):
    """How payloads are encoded."""

    RAW = "raw"
    """Bytes that are not decoded."""
    UTF8 = "utf8"
    JSON = "json"
    MSGPACK = "msgpack"
    ARROW = "arrow"
    """An Arrow IPC stream; an event may hold many rows."""
    PROTOBUF = "protobuf"
    """A Protobuf message; a descriptor set says what it contains."""


TYPED = frozenset({Codec.JSON, Codec.MSGPACK, Codec.ARROW, Codec.PROTOBUF})
"""The codecs whose payloads have fields."""


class Kind(msgspec.Struct, frozen=True):
    """The type of a field."""

    name: str
    """Spark's name in lower case: `double`, `array`, `struct`."""
    precision: int = 0
    scale: int = 0
    item: Kind | None = None
    """Type of the elements of an array, or of the values of a map, whose keys are strings."""
    fields: tuple[Field, ...] = ()
    """Fields of a struct."""

    @property
    def ddl(self) -> str:
        """The type in the syntax of SQL."""
        match self.name:
            case "decimal":
                return f"DECIMAL({self.precision},{self.scale})"
            case "array" if self.item is not None:
                return f"ARRAY<{self.item.ddl}>"
            case "map" if self.item is not None:
                return f"MAP<STRING,{self.item.ddl}>"
            case "struct":
                return f"STRUCT<{ddl_of(self.fields)}>"
            case _:
                return self.name.upper()


class Field(msgspec.Struct, frozen=True):
    """A field that a payload has, or must have if it is not nullable."""

    name: str
    kind: Kind
    nullable: bool = True


_PLAIN = frozenset(
    {
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
    }
)
"""Types without parameters."""
_NESTED = frozenset({"array", "map", "struct"})
_CHOICE = f"{', '.join(sorted(_PLAIN)).upper()}, DECIMAL(p,s), ARRAY<…>, MAP<STRING,…>, STRUCT<…>"


def check_declared(codec: Codec, schema: str, *, descriptor: bool, message: bool) -> tuple[Field, ...]:
    """Return the fields of a declaration; raises ConfigError if its parts do not fit together.

    A descriptor set and a message must be given for protobuf, and for nothing else.
    """
    if schema and codec not in TYPED:
        raise ConfigError("schema", f"{codec} payloads have no columns; choose from {', '.join(sorted(TYPED))}")
    if codec is Codec.PROTOBUF and not (descriptor and message):
        raise ConfigError(
            "descriptor",
            "protobuf payloads need 'descriptor', a file made by protoc --include_imports --descriptor_set_out, and"
            " 'message', the full name of the message",
        )
    if codec is not Codec.PROTOBUF and (descriptor or message):
        raise ConfigError("descriptor", f"'descriptor' and 'message' are for codec protobuf only, got codec {codec}")
    return parse_fields(schema)


def ddl_of(fields: tuple[Field, ...]) -> str:
    """Return fields in the syntax of SQL columns."""
    return ", ".join(f"`{field.name}` {field.kind.ddl}{'' if field.nullable else ' NOT NULL'}" for field in fields)


def parse_fields(schema: str) -> tuple[Field, ...]:
    """Return the fields of a schema; empty for an empty text. Raises ConfigError."""
    if not schema.strip():
        return ()
    parser = _Parser(schema)
    fields = parser.fields(0)
    if parser.token is not None:
        parser.refuse("expected ',' or the end")
    return fields


class _Parser:
    """Recursive descent over the tokens of a schema, one ahead."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._tokens = self._scan()
        self.token: str | None = None
        self._quoted = False
        self._advance()

    def _scan(self) -> Iterator[tuple[str, bool]]:
        at = 0
        while self._schema[at:].strip():
            match = _TOKEN.match(self._schema, at)
            if match is None:
                self.refuse(f"unexpected {self._schema[at:].strip()[0]!r}")
            quoted, text = match[1], match[4]
            yield quoted or text or match[0].strip(), quoted is not None or text is not None
            at = match.end()

    def _advance(self) -> str:
        """Step to the next token and return the one before it."""
        before = self.token or ""
        self.token, self._quoted = next(self._tokens, (None, False))
        return before

    def refuse(self, why: str) -> NoReturn:
        raise ConfigError(
            "schema", f"cannot parse {self._schema!r} as columns: {why}; write for example temp DOUBLE, unit STRING"
        )

    def _take(self, wanted: str) -> bool:
        """Step over a token if it is the wanted one, in any case; return whether it was."""
        found = self.token is not None and not self._quoted and self.token.lower() == wanted
        if found:
            self._advance()
        return found

    def _need(self, wanted: str) -> None:
        if not self._take(wanted):
            self.refuse(f"expected {wanted!r}, got {self.token or 'the end'!r}")

    def fields(self, depth: int) -> tuple[Field, ...]:
        found = [self._field(depth)]
        while self._take(","):
            found.append(self._field(depth))
        names = [field.name for field in found]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            self.refuse(f"{', '.join(repeated)} is there twice")
        return tuple(found)

    def _field(self, depth: int) -> Field:
        if self.token is None or not (self._quoted or self.token[0].isalpha() or self.token[0] == "_"):
            self.refuse(f"expected the name of a column, got {self.token or 'the end'!r}")
        name = self._advance()
        if '"' in name or "\\" in name:
            self.refuse(f"the name {name} must not contain quotes and backslashes")
        self._take(":")
        kind = self._kind(depth)
        nullable = not self._take("not")
        if not nullable:
            self._need("null")
        if self._take("comment"):
            self._advance()
        return Field(name, kind, nullable)

    def _kind(self, depth: int) -> Kind:
        if depth > _DEEPEST:
            self.refuse(f"types are nested more than {_DEEPEST} times")
        word = self._advance()
        name = _SPELLINGS.get(word.lower(), word.lower())
        if name not in _PLAIN | _NESTED | {"decimal"}:
            self.refuse(f"unknown type {word or 'at the end'}; choose from {_CHOICE}")
        if name == "decimal":
            return self._decimal()
        if name in _PLAIN:
            return Kind(name)
        self._need("<")
        kind = self._nested(name, depth + 1)
        self._need(">")
        return kind

    def _nested(self, name: str, depth: int) -> Kind:
        match name:
            case "struct":
                return Kind(name, fields=self.fields(depth))
            case "map":
                if self._kind(depth).name != "string":
                    self.refuse("the keys of a MAP must be STRING")
                self._need(",")
        return Kind(name, item=self._kind(depth))

    def _decimal(self) -> Kind:
        precision, scale = 10, 0  # as in Spark
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._need(")")
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            self.refuse(
                f"DECIMAL({precision},{scale}) must have 1 to {_MOST_DIGITS} digits, of which it may have a part after the point"
            )
        return Kind("decimal", precision=precision, scale=scale)

    def _number(self) -> int:
        if self.token is None or not self.token.isdecimal():
            self.refuse(f"expected a number, got {self.token or 'the end'!r}")
        return int(self._advance())
