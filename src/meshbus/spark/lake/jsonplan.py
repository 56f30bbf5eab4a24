"""The fields of a JSON payload as plain arrays, for the loop of spark/lake/jsoncheck.py.

A type is a node, and a struct refers to consecutive fields, each with a name and a node. Node 0 accepts every value, and
node 1 is the payload as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meshbus.spark.lake.fields import largest_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.log.payload import Field, Kind

ANY, BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, ARRAY, MAP, STRUCT = range(13)
"""Kinds of nodes."""
KIND: Final = 0
"""Columns of a node. LOW and HIGH are the limits of integers; FIRST is the first field of a struct, the item of an array or
map, or the digits of a decimal before the point; COUNT the fields of a struct, or the digits after the point."""
LOW, HIGH, FIRST, COUNT, REQUIRED = range(1, 6)
NAME_AT, NAME_SIZE, NODE, NEEDED = range(4)
"""Columns of a field."""
ROOT: Final = 1
_PLAIN = {
    "boolean": BOOLEAN,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "binary": BINARY,
    "date": DATE,
    "timestamp": TIMESTAMP,
}


class Plan(NamedTuple):
    """What a payload must have."""

    nodes: NDArray[np.int64]
    fields: NDArray[np.int64]
    names: NDArray[np.uint8]
    """The names of all fields, one after the other."""


def plan_of(fields: Sequence[Field]) -> Plan:
    """Return the plan of payloads with these fields; without any, every JSON value is accepted."""
    builder = _Builder()
    builder.add_struct(fields)
    # A table has at least one row, so that arrays always have two dimensions.
    rows = builder.fields or [[0, 0, 0, 0]]
    return Plan(np.array(builder.nodes), np.array(rows), np.frombuffer(bytes(builder.names), np.uint8).copy())


class _Builder:
    """Collects nodes and fields."""

    def __init__(self) -> None:
        self.nodes: list[list[int]] = [[ANY, 0, 0, 0, 0, 0]]
        self.fields: list[list[int]] = []
        self.names = bytearray()

    def add(self, kind: Kind) -> int:
        """Add a type and return the number of its node."""
        if kind.name == "struct":
            return self.add_struct(kind.fields)
        place = len(self.nodes)
        self.nodes.append(node := [_PLAIN.get(kind.name, INTEGER), 0, 0, 0, 0, 0])
        if kind.item is not None:
            node[KIND], node[FIRST] = (ARRAY if kind.name == "array" else MAP), self.add(kind.item)
        elif kind.name == "decimal":
            most = largest_integer(kind)
            node[:] = [DECIMAL, -most, most, kind.precision - kind.scale, kind.scale, 0]
        elif kind.name not in _PLAIN:
            node[LOW], node[HIGH] = -largest_integer(kind) - 1, largest_integer(kind)
        return place

    def add_struct(self, fields: Sequence[Field]) -> int:
        place, first = len(self.nodes), len(self.fields)
        required = sum(not field.nullable for field in fields)
        self.nodes.append([STRUCT if fields else ANY, 0, 0, first, len(fields), required])
        for field in fields:
            name = field.name.encode()
            self.fields.append([len(self.names), len(name), 0, not field.nullable])
            self.names += name
        for number, field in enumerate(fields, first):
            self.fields[number][NODE] = self.add(field.kind)
        return place
