"""Manifests (0x0600): the subprotocols of a node and their versions (subprotocols.md §6).

Sent only to a peer that announced 0x0600: a plain 0.23 node would pass it to its application. policy/registry.py
compares two manifests.
"""

from __future__ import annotations

from struct import Struct

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import MAX_EVENT
from meshbus.wire.header import Buffer
from meshbus.wire.subprotocol import MAX_ID, ManifestEntry, SubprotocolManifest, SubprotocolVersion

_WHAT = "manifest"
_COUNT_BYTES = 2
_ENTRY = Struct("<HBBBB")
MAX_ENTRIES = (MAX_EVENT - _COUNT_BYTES) // _ENTRY.size
"""1350: as many as fit one packet."""


def encode_manifest(manifest: SubprotocolManifest) -> bytes:
    """Write a manifest; the order of its entries is kept.

    Raises LocalProtocolError if peers would refuse it.
    """
    entries = manifest.entries
    if len(entries) > MAX_ENTRIES:
        raise LocalProtocolError(f"{len(entries)} subprotocols do not fit one manifest of {MAX_ENTRIES}")
    if len({entry.id for entry in entries}) < len(entries):
        raise LocalProtocolError("a manifest names each subprotocol once")
    parts = [len(entries).to_bytes(_COUNT_BYTES, "little")]
    for entry in entries:
        if not 0 <= entry.id <= MAX_ID or entry.min_compatible > entry.version:
            raise LocalProtocolError(f"{entry} cannot be in a manifest")
        version, floor = entry.version, entry.min_compatible
        parts.append(_ENTRY.pack(entry.id, version.major, version.minor, floor.major, floor.minor))
    return b"".join(parts)


def decode_manifest(event: Buffer) -> SubprotocolManifest:
    """Read a manifest; an error in one entry refuses all of it."""
    view = memoryview(event)
    if len(view) < _COUNT_BYTES:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, f"{len(view)} of {_COUNT_BYTES} bytes")
    count = int.from_bytes(view[:_COUNT_BYTES], "little")
    # subprotocols.md §6: exact length, no id twice, no floor above its version. The order does not matter.
    if len(view) - _COUNT_BYTES != count * _ENTRY.size:
        raise MalformedPacket(_WHAT, Fault.BAD_LENGTH, f"{len(view)} bytes for {count} entries")
    entries = tuple(
        ManifestEntry(subprotocol_id, SubprotocolVersion(major, minor), SubprotocolVersion(floor_major, floor_minor))
        for subprotocol_id, major, minor, floor_major, floor_minor in _ENTRY.iter_unpack(view[_COUNT_BYTES:])
    )
    if len({entry.id for entry in entries}) < count:
        raise MalformedPacket(_WHAT, Fault.DUPLICATE, "an id is named twice")
    if any(entry.min_compatible > entry.version for entry in entries):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "a version is below its own floor")
    return SubprotocolManifest(entries)
