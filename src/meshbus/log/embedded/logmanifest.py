"""The manifest: what is sealed, what has expired, and who the log is. One small file, replaced in one step.

A reader believes the manifest and nothing else: a segment that is not named in it does not exist yet, or no longer. Rows
from `hot_from` on are in the hot files, whatever older rows those still hold. `generation` counts the replacements, so
that a reader that looks at the hot files between two equal generations has a consistent picture.

Kept as JSON for people, with a checksum over the text of its body. Written by log/log.py, under its lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from meshbus.errors import LogError, LogFault
from meshbus.log.folder import MANIFEST, aside

if TYPE_CHECKING:
    from meshbus.log.files import Files

MANIFEST_VERSION = 1


class Segment(msgspec.Struct, frozen=True):
    """One sealed segment."""

    name: str
    first: int
    end: int
    """One past its last sequence."""
    bytes: int
    group_rows: int
    """Rows of each of its row groups; the last may have fewer."""
    written_ns: int
    """When its last row was written."""


class Retired(msgspec.Struct, frozen=True):
    """A segment that is no longer part of the log, and waits for running readers."""

    name: str
    at_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """What a log consists of."""

    channel: str
    log_id: str
    """32 hex digits, drawn at creation."""
    created_ns: int
    generation: int = 0
    first: int = 0
    """The first sequence that is still there."""
    segments: tuple[Segment, ...] = ()
    """In order, without gaps."""
    retired: tuple[Retired, ...] = ()

    @property
    def hot_from(self) -> int:
        """The first sequence that is in the hot files."""
        return max(self.first, self.segments[-1].end if self.segments else 0)

    @property
    def id_bytes(self) -> bytes:
        """The log id as the tables hold it."""
        return bytes.fromhex(self.log_id)


class _Envelope(msgspec.Struct, frozen=True):
    meshbus: str
    version: int
    checksum: str
    body: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    """Give the bytes of the file."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return msgspec.json.encode(_Envelope("manifest", MANIFEST_VERSION, _sum(body), msgspec.Raw(body))) + b"\n"


def decode_manifest(content: bytes, path: Path) -> Manifest:
    """Read the file; raises LogError when it is damaged, another file, or newer than we are."""
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version > MANIFEST_VERSION:
            raise LogError(
                LogFault.NEWER, f"{path}: version {envelope.version} was written by a newer meshbus: use that one"
            )
        if envelope.meshbus == "manifest" and envelope.checksum == _sum(bytes(envelope.body)):
            return msgspec.json.decode(envelope.body, type=Manifest)
    except msgspec.MsgspecError:
        pass
    raise LogError(LogFault.CORRUPT, f"{path}: is damaged, or no manifest: restore it from a copy")


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of a channel's folder; FileNotFoundError when there is none."""
    path = folder / MANIFEST
    return decode_manifest(path.read_bytes(), path)


def store_manifest(files: Files, folder: Path, manifest: Manifest) -> Manifest:
    """Replace the manifest by its next generation, safely, and give it back."""
    following = msgspec.structs.replace(manifest, generation=manifest.generation + 1)
    path = folder / MANIFEST
    files.write_aside(path, aside(path), [encode_manifest(following)])
    return following


def _sum(body: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(body)
