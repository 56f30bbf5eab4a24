"""The manifest of a log: its identity, its segments and its first sequence. One small file, replaced atomically.

The manifest alone decides what belongs to the log: a segment that it does not name does not exist yet, or no longer.
Rows from `hot_from` on are in the hot files, even if those still hold older rows too. `generation` counts the
replacements: a reader that lists the hot files between two equal generations has a consistent view.

Stored as JSON, so that people can read it, with a checksum over the text of its body. Only the writer of the log
(log/embedded/log.py) replaces it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from meshbus.errors import UNDECODABLE, LogError, LogFault
from meshbus.formats import Format
from meshbus.log.embedded.block import MAX_SEQ
from meshbus.log.folder import MANIFEST, aside, segment_range
from meshbus.log.objectstore import last_names
from meshbus.log.segment import Segment

if TYPE_CHECKING:
    from meshbus.log.files import Files

MANIFEST_VERSION = 3
"""The newest version: a replicated log; 2 has objects on object storage. Others are still written as version 1, byte by
byte."""
_LOG_ID = re.compile(r"[0-9a-f]{32}")

ON_DISK = (
    Format(
        name="manifest of a log",
        where="`log_dir/*/*/_manifest.json`",
        what="the identity of a log, its sealed segments and its first sequence",
        version=MANIFEST_VERSION,
        mark='`"version"`: the lowest one that can express the log',
        refused="the start of a node that logs what it publishes there; logging what it receives; taking part in a replica set; reading",
    ),
)


class Retired(msgspec.Struct, frozen=True):
    """A segment that is no longer part of the log and is kept for running readers."""

    name: str
    at_ns: int
    bytes: int = 0
    """Its size on the disk; 0 if it was only on object storage, or if an older version retired it."""
    uri: str | msgspec.UnsetType = msgspec.UNSET
    """Its copy on object storage, if there is one."""


class Replica(msgspec.Struct, frozen=True):
    """What the manifest of a replicated log has in addition."""

    epochs: tuple[tuple[int, int], ...] = ()
    """Epochs with the sequence at which each starts, as far as they were known when a segment was sealed."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges that were skipped: the first missing sequence and one past the last."""


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
    replica: Replica | msgspec.UnsetType = msgspec.UNSET
    """Only in a replicated log: then readers see what is committed (log/embedded/marks.py)."""

    @property
    def hot_from(self) -> int:
        """The first sequence that is in the hot files and not in a segment."""
        return max(self.first, self.segments[-1].end if self.segments else 0)

    @property
    def has_objects(self) -> bool:
        """Whether something of the log is, or may be, on object storage."""
        return bool(self.objects)

    @property
    def objects(self) -> list[str]:
        """URIs of all that is, or may be, on object storage."""
        copies = [part.remote.uri for part in self.segments if part.remote is not msgspec.UNSET]
        return [*copies, *(old.uri for old in self.retired if old.uri is not msgspec.UNSET), *unused_of(self)]

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
    # An older meshbus would take segments that are only on object storage for lost, and read what is not committed.
    version = 3 if manifest.replica is not msgspec.UNSET else 2 if manifest.has_objects else 1
    # The checksum is over the text of the body, so that a reader need not encode it again to check it.
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return msgspec.json.encode(_Envelope("manifest", version, _sum(body), msgspec.Raw(body))) + b"\n"


def decode_manifest(content: bytes, path: Path) -> Manifest:
    """Parse the file; raises LogError if it is damaged, not a manifest, or of a newer version."""
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version > MANIFEST_VERSION:
            raise LogError(LogFault.NEWER, f"{path}: {ON_DISK[0].problem(envelope.version)}")
        # The body is decoded only after its checksum: damage must not look like another, valid manifest.
        if envelope.meshbus == "manifest" and envelope.checksum == _sum(bytes(envelope.body)):
            manifest = msgspec.json.decode(envelope.body, type=Manifest)
            if _is_sound(manifest):
                return manifest
    except UNDECODABLE:
        pass
    raise LogError(LogFault.CORRUPT, f"{path} is damaged or not a manifest; restore it from a copy")


def _is_sound(manifest: Manifest) -> bool:
    """Return whether a manifest can be one of a log: whoever changed it could also write the right checksum.

    A name in it is opened, moved and removed, so it must be that of a segment, and not of a file or an object elsewhere.
    """
    edges = [manifest.hot_from, *(edge for part in manifest.segments for edge in (part.first, part.end))]
    return (
        _LOG_ID.fullmatch(manifest.log_id) is not None
        and 0 <= manifest.first <= MAX_SEQ
        and all(0 <= edge <= MAX_SEQ for edge in edges)
        and all(segment_range(part.name) == (part.first, part.end) for part in manifest.segments)
        and all(part.first < part.end and part.group_rows > 0 for part in manifest.segments)
        and all(before.end == after.first for before, after in pairwise(manifest.segments))
        and all(segment_range(old.name) for old in manifest.retired)
        and all(_is_copy(uri) for uri in manifest.objects)
    )


def _is_copy(uri: str) -> bool:
    """Return whether an object has the name of a copy: it is in the folder of a log's id, and named like a segment."""
    log_id, name = last_names(uri)
    return _LOG_ID.fullmatch(log_id) is not None and segment_range(name) is not None


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
