"""The schemas of a channel, stored beside its log: what its payloads were when each event was written.

    <log folder>/_schemas.json      {"version": 1, "schemas": [{"first": 0, "codec": "json", "schema": "temp DOUBLE"}, …]}

An entry is valid from its first sequence to that of the next entry. Events before the first entry are raw. The file is
not the writer's (log/sidefile.py): a schema can be declared while a node writes the log. Decoding is in
spark/lake/payloads.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from meshbus.errors import ConfigError
from meshbus.log.payload import Codec, check_declared
from meshbus.log.sidefile import FORMAT, Content, SideFile

SCHEMAS = "_schemas.json"
_MOST = 1000
"""Entries in a file: a channel that changes its schema more often has none."""
_LONGEST = 4 << 20
"""Bytes of a descriptor set; real ones have some ten thousand."""


class Version(msgspec.Struct, frozen=True, omit_defaults=True):
    """What payloads are from one sequence on."""

    first: int
    """First sequence that it is valid for."""
    codec: Codec
    schema: str = ""
    """Fields, in the syntax of log/payload.py; empty if payloads may have any."""
    message: str = ""
    """Protobuf only: full name of the message."""
    descriptor: bytes = b""
    """Protobuf only: the FileDescriptorSet, so that no other file is needed."""

    def __post_init__(self) -> None:
        check_declared(self.codec, self.schema, descriptor=bool(self.descriptor), message=bool(self.message))
        if len(self.descriptor) > _LONGEST:
            raise ConfigError(
                "descriptor", f"the descriptor set has {len(self.descriptor)} bytes, at most {_LONGEST} are allowed"
            )


class _Content(Content, frozen=True):
    schemas: tuple[Version, ...]


_FILE = SideFile("schemas", _Content, "schemas")


def read_versions(folder: Path) -> tuple[Version, ...]:
    """Return the schemas of a log in order; empty if there are none. Raises LogError if the file is damaged or newer."""
    content = _FILE.read(folder)
    return () if content is None else tuple(sorted(content.schemas, key=lambda version: version.first))


def version_at(versions: tuple[Version, ...], seq: int) -> Version | None:
    """Return the entry that is valid for a sequence, or None if the event is raw."""
    return next((version for version in reversed(versions) if version.first <= seq), None)


def declare(folder: Path, version: Version) -> bool:
    """Store a schema that is valid from `version.first` on; return False if it is valid there already.

    An entry with the same first sequence is replaced. Raises LogError if the file cannot be written, or if another
    process is writing it.
    """

    def change(content: _Content | None) -> _Content | None:
        known = () if content is None else content.schemas
        present = version_at(tuple(sorted(known, key=lambda other: other.first)), version.first)
        if present is not None and msgspec.structs.replace(present, first=version.first) == version:
            return None
        kept = [other for other in known if other.first != version.first]
        if len(kept) >= _MOST:
            raise ConfigError(
                "schema", f"{folder / SCHEMAS} has {_MOST} entries already, which is the limit; start a new log"
            )
        return _Content(FORMAT, tuple(sorted([*kept, version], key=lambda other: other.first)))

    return _FILE.change(folder, change)
