"""The manifest of a log: its identity, its segments and its first sequence. One small file, replaced atomically.

The manifest alone decides what belongs to the log: a segment that it does not name does not exist yet, or no longer.
Rows from `hot_from` on are in the hot files, even if those still hold older rows too. `generation` counts the
replacements: a reader that lists the hot files between two equal generations has a consistent view.

Stored as JSON, so that people can read it, with a checksum over the text of its body. Only the writer of the log
(log/embedded/log.py) replaces it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from meshbus.errors import LogError, LogFault
from meshbus.log.folder import MANIFEST, aside
from meshbus.log.segment import Segment

if TYPE_CHECKING:
    from meshbus.log.files import Files

MANIFEST_VERSION = 2
"""The newest version: a log with objects on object storage. One without is still written as version 1, byte by byte."""


class Retired(msgspec.Struct, frozen=True):
    """A segment that is no longer part of the log and is kept for running readers."""

    name: str
    at_ns: int
    bytes: int = 0
    """Its size on the disk; 0 if it was only on object storage, or if an older version retired it."""
    uri: str | msgspec.UnsetType = msgspec.UNSET
    """Its copy on object storage, if there is one."""


class Manifest(msgspec.Struct, frozen=True):
    """The parts of a log."""

    channel: str
    log_id: str
    """32 hex digits, drawn at creation."""
    created_ns: int
    generation: int = 0
    first: int = 0
    """The first sequence that has not expired."""
    segments: tuple[Segment, ...] = ()
    """In order, without gaps."""
    retired: tuple[Retired, ...] = ()
    unused: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """URIs of objects that are not, or not yet, part of the log: copies that were begun, and those of expired segments."""

    @property
    def hot_from(self) -> int:
        """The first sequence that is in the hot files and not in a segment."""
        return max(self.first, self.segments[-1].end if self.segments else 0)

    @property
    def has_objects(self) -> bool:
        """Whether something of the log is, or may be, on object storage."""
        objects = [part.remote for part in self.segments] + [old.uri for old in self.retired] + [self.unused]
        return any(one is not msgspec.UNSET for one in objects)

    @property
    def id_bytes(self) -> bytes:
        """The log id as tables store it."""
        return bytes.fromhex(self.log_id)


class _Envelope(msgspec.Struct, frozen=True):
    meshbus: str
    version: int
    checksum: str
    body: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of the file."""
    # An older meshbus would take segments that are only on object storage for lost.
    version = MANIFEST_VERSION if manifest.has_objects else 1
    # The checksum is over the text of the body, so that a reader need not encode it again to check it.
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return msgspec.json.encode(_Envelope("manifest", version, _sum(body), msgspec.Raw(body))) + b"\n"


def decode_manifest(content: bytes, path: Path) -> Manifest:
    """Parse the file; raises LogError if it is damaged, not a manifest, or of a newer version."""
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version > MANIFEST_VERSION:
            raise LogError(
                LogFault.NEWER, f"{path}: version {envelope.version} was written by a newer meshbus; upgrade to read it"
            )
        # The body is decoded only after its checksum: damage must not look like another, valid manifest.
        if envelope.meshbus == "manifest" and envelope.checksum == _sum(bytes(envelope.body)):
            return msgspec.json.decode(envelope.body, type=Manifest)
    except msgspec.MsgspecError:
        pass
    raise LogError(LogFault.CORRUPT, f"{path} is damaged or not a manifest; restore it from a copy")


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a log's folder; raises FileNotFoundError if there is none."""
    path = folder / MANIFEST
    return decode_manifest(path.read_bytes(), path)


def store_manifest(files: Files, folder: Path, manifest: Manifest) -> Manifest:
    """Replace the manifest atomically by its next generation, which is returned."""
    following = msgspec.structs.replace(manifest, generation=manifest.generation + 1)
    path = folder / MANIFEST
    files.write_aside(path, aside(path), [encode_manifest(following)])
    return following


def unused_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the URIs of objects that are not part of the log."""
    return () if manifest.unused is msgspec.UNSET else manifest.unused


def with_unused(manifest: Manifest, uris: tuple[str, ...]) -> Manifest:
    """Return a manifest with other unused objects; without any, the field is left out."""
    return msgspec.structs.replace(manifest, unused=uris or msgspec.UNSET)


def _sum(body: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(body)
