"""Subprotocol ids and versions, and their manifests and tags.

Every packet names the subprotocol its payload belongs to; an id that a node does not know is forwarded untouched. Who
handles what is kept in policy/registry.py; the bytes of a manifest are in wire/messages/manifest.py.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import LocalProtocolError
from meshbus.wire.constants import Subprotocol

MAX_ID = 0xFFFF
FIRST_VENDOR_ID = 0x1001
"""0x1000 is used by net-mesh for fold announcements (subprotocols.md §2)."""

TAG_PREFIX = "subprotocol:0x"

_ASSIGNED = frozenset(
    value
    for name, value in vars(Subprotocol).items()
    if name.isupper() and Subprotocol.EVENTS < value < FIRST_VENDOR_ID
)
"""Ids below the vendor range that have a meaning; 0 stands for plain events."""


class SubprotocolVersion(msgspec.Struct, frozen=True, order=True):
    """A version, compared by major and then by minor."""

    major: int
    minor: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.major <= 255 and 0 <= self.minor <= 255):
            raise LocalProtocolError(f"the parts of a version are from 0 to 255, got {self}")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class ManifestEntry(msgspec.Struct, frozen=True):
    """One subprotocol of a node: its version, and the lowest version of a peer that it accepts."""

    id: int
    version: SubprotocolVersion
    min_compatible: SubprotocolVersion

    def compatible(self, other: ManifestEntry) -> bool:
        """Return whether both are the same subprotocol and each accepts the version of the other."""
        # subprotocols.md §4: the major version has no meaning of its own here.
        return self.id == other.id and self.version >= other.min_compatible and other.version >= self.min_compatible


class SubprotocolManifest(msgspec.Struct, frozen=True):
    """All subprotocols of a node."""

    entries: tuple[ManifestEntry, ...] = ()

    def get(self, subprotocol_id: int) -> ManifestEntry | None:
        """Find an entry by id."""
        return next((entry for entry in self.entries if entry.id == subprotocol_id), None)


class SubprotocolDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A subprotocol as a node registers it."""

    id: int
    name: str
    version: SubprotocolVersion
    min_compatible: SubprotocolVersion | None = None
    """The lowest version of a peer that is accepted: by default `version` itself, and never above it."""
    handler_present: bool = True
    """False for ids that are only forwarded."""

    def __post_init__(self) -> None:
        if not 0 <= self.id <= MAX_ID:
            raise LocalProtocolError(f"a subprotocol id has 16 bits, got {self.id:#x}")
        # subprotocols.md §4: a floor above the version is lowered to it, or a node would not be compatible with itself.
        floor = self.version if self.min_compatible is None else min(self.min_compatible, self.version)
        msgspec.structs.force_setattr(self, "min_compatible", floor)

    def __str__(self) -> str:
        return f"{self.name}(0x{self.id:04x}) v{self.version}"

    @property
    def entry(self) -> ManifestEntry:
        """Its entry in a manifest."""
        return ManifestEntry(self.id, self.version, self.min_compatible or self.version)

    def compatible(self, other: SubprotocolDescriptor) -> bool:
        """Return whether both are the same subprotocol and each accepts the version of the other; as for entries."""
        return self.entry.compatible(other.entry)


def is_reserved(subprotocol_id: int) -> bool:
    """Return whether an id cannot be registered: below the vendor range only assigned ids can."""
    return subprotocol_id < FIRST_VENDOR_ID and subprotocol_id not in _ASSIGNED


def capability_tag(subprotocol_id: int) -> str:
    """Return the tag by which a node announces that it handles a subprotocol."""
    # subprotocols.md §5: four hexadecimal digits in lower case; other nodes compare the text.
    return f"{TAG_PREFIX}{subprotocol_id:04x}"
