"""Names for what tables know by number: nodes and subnets, as people read them in figures, tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshbus.names.subnet import SubnetId

IDS = {"origin", "recorder", "peer", "node_id", "session_id", "source", "target"}
"""Columns with 64-bit ids."""
UNKNOWN = "unknown"
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class NamedId(int):
    """An id of a node whose name is known; counts and compares as the number."""

    name: str

    @classmethod
    def of(cls, value: int, name: str) -> NamedId:
        """Add a name to an id."""
        made = cls(value)
        made.name = name
        return made


def hex_of(value: int) -> str:
    """Return an id in hexadecimal, as `meshbus peers` shows it; tables store it as a signed number."""
    return f"{value & _MASK:016x}"


def label(value: int | None) -> str:
    """Return the name of a node, its id if it has none, or that it is unknown."""
    if value is None:
        return UNKNOWN
    return value.name if isinstance(value, NamedId) else hex_of(value)


def subnet_label(stored: int | None) -> str:
    """Return the text form of a subnet as tables store it."""
    return UNKNOWN if stored is None else str(SubnetId(stored & 0xFFFFFFFF))


def names_of(nodes: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return the names of nodes by node id and by origin hash, from the rows of gold.nodes."""
    return {
        row[key]: row["name"] for row in nodes if row["name"] for key in ("node_id", "origin") if row[key] is not None
    }


def with_names(row: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return a row with the names of the nodes whose ids it has; gold.nodes has a column for them."""
    return {
        key: NamedId.of(value, names[value]) if key in IDS and value in names and "name" not in row else value
        for key, value in row.items()
    }
