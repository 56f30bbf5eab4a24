"""The schemas of a channel, stored beside its log: what its payloads were when each event was written.

    <log folder>/_schemas.json      {"version": 1, "schemas": [{"first": 0, "codec": "json", "schema": "temp DOUBLE"}, …]}

An entry is valid from its first sequence to that of the next entry. Events before the first entry are raw. The file is
replaced atomically and is not the writer's: a schema can be declared while a node writes the log. Decoding is in
spark/lake/payloads.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.files import Files, translated
from meshbus.log.folder import aside
from meshbus.log.payload import Codec, check_declared

SCHEMAS = "_schemas.json"
_LOCK = "_schemas.lock"
_FORMAT = 1
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


class _Header(msgspec.Struct, frozen=True):
    version: int


class _Content(_Header, frozen=True):
    schemas: tuple[Version, ...]


def read_versions(folder: Path) -> tuple[Version, ...]:
    """Return the schemas of a log in order; empty if there are none. Raises LogError if the file is damaged or newer."""
    place = folder / SCHEMAS
    with translated(place, "cannot read"):
        content = place.read_bytes() if place.exists() else b""
    if not content:
        return ()
    try:
        if msgspec.json.decode(content, type=_Header).version > _FORMAT:
            raise LogError(LogFault.NEWER, f"{place} was written by a newer version of meshbus; update this one")
        versions = msgspec.json.decode(content, type=_Content).schemas
    except (msgspec.MsgspecError, ConfigError) as error:
        raise LogError(
            LogFault.CORRUPT,
            f"{place} is damaged ({error}); restore it from a copy, or remove it and declare the schemas again",
        ) from None
    return tuple(sorted(versions, key=lambda version: version.first))


def version_at(versions: tuple[Version, ...], seq: int) -> Version | None:
    """Return the entry that is valid for a sequence, or None if the event is raw."""
    return next((version for version in reversed(versions) if version.first <= seq), None)


def declare(folder: Path, version: Version) -> bool:
    """Store a schema that is valid from `version.first` on; return False if it is valid there already.

    An entry with the same first sequence is replaced. Raises LogError if the file cannot be written, or if another
    process is writing it.
    """
    place, files = folder / SCHEMAS, Files()
    with translated(place, "cannot write"):
        handle = _lock(files, folder)
        try:
            known = read_versions(folder)
            present = version_at(known, version.first)
            if present is not None and msgspec.structs.replace(present, first=version.first) == version:
                return False
            kept = [other for other in known if other.first != version.first]
            if len(kept) >= _MOST:
                raise ConfigError("schema", f"{place} has {_MOST} entries already, which is the limit; start a new log")
            content = _Content(_FORMAT, tuple(sorted([*kept, version], key=lambda other: other.first)))
            files.write_aside(place, aside(place), [msgspec.json.encode(content)])
        finally:
            files.close(handle)
    return True


def _lock(files: Files, folder: Path) -> int:
    try:
        return files.lock(folder / _LOCK)
    except BlockingIOError:
        raise LogError(LogFault.LOCKED, f"another process is declaring a schema in {folder}; try again") from None
