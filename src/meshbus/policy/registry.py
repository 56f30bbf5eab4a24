"""Subprotocol registry: the subprotocols that this node handles, and those that it shares with a peer.

The registry records only which subprotocols have handlers; the handlers are elsewhere (engine/services.py). Relays
forward packets of any id unchanged (subprotocols.md §3). The types and ids are in wire/subprotocol.py.
"""

from __future__ import annotations

import msgspec

from meshbus.errors import RegistryError, RegistryFault
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.wire.constants import Subprotocol
from meshbus.wire.subprotocol import (
    SubprotocolDescriptor,
    SubprotocolManifest,
    SubprotocolVersion,
    capability_tag,
    is_reserved,
)

# subprotocols.md §5: the preloaded set.
_DEFAULTS = (
    (Subprotocol.CAUSAL, "causal"),
    (Subprotocol.SNAPSHOT, "snapshot"),
    (Subprotocol.MIGRATION, "migration"),
    (Subprotocol.NEGOTIATION, "negotiation"),
    (Subprotocol.STREAM_WINDOW, "stream-window"),
)


class SubprotocolRegistry:
    """The subprotocols of one node, by id."""

    def __init__(self) -> None:
        self._descriptors: dict[int, SubprotocolDescriptor] = {}
        self._unannounced: set[int] = set()
        """Ids that have no capability tag."""

    @classmethod
    def with_defaults(cls) -> SubprotocolRegistry:
        """Return a registry with the five preloaded subprotocols, all at version 1.0 (subprotocols.md §5)."""
        registry = cls()
        for subprotocol_id, name in _DEFAULTS:
            registry.register(SubprotocolDescriptor(id=subprotocol_id, name=name, version=SubprotocolVersion(1)))
        return registry

    def __len__(self) -> int:
        return len(self._descriptors)

    def register(
        self, descriptor: SubprotocolDescriptor, *, replace: bool = False, announced: bool = True
    ) -> SubprotocolDescriptor | None:
        """Register a subprotocol. With `replace`, it replaces the one with the same id, which is returned.

        One that is not `announced` is in the manifest, but has no capability tag. Raises RegistryError if the id is reserved, or if it is registered and `replace` is not set.
        """
        # subprotocols.md §5: the reference replaces silently. A duplicate or reserved id is more likely a mistake.
        if is_reserved(descriptor.id):
            raise RegistryError(RegistryFault.RESERVED, descriptor.id, "the id is reserved; choose one from 0x1001 on")
        previous = self._descriptors.get(descriptor.id)
        if previous is not None and not replace:
            raise RegistryError(
                RegistryFault.DUPLICATE,
                descriptor.id,
                f"already registered as {previous}; choose another id or replace it",
            )
        self._descriptors[descriptor.id] = descriptor
        (self._unannounced.discard if announced else self._unannounced.add)(descriptor.id)
        return previous

    def unregister(self, subprotocol_id: int) -> SubprotocolDescriptor | None:
        """Remove and return a subprotocol, or return None."""
        return self._descriptors.pop(subprotocol_id, None)

    def lookup(self, subprotocol_id: int) -> SubprotocolDescriptor | None:
        """Return the subprotocol with an id, or None."""
        return self._descriptors.get(subprotocol_id)

    def is_registered(self, subprotocol_id: int) -> bool:
        """Return whether an id is registered, with or without a handler."""
        return subprotocol_id in self._descriptors

    def is_handled(self, subprotocol_id: int) -> bool:
        """Return whether an id is registered with a handler."""
        descriptor = self._descriptors.get(subprotocol_id)
        return descriptor is not None and descriptor.handler_present

    def all_descriptors(self) -> list[SubprotocolDescriptor]:
        """Return all subprotocols, sorted by id."""
        return [self._descriptors[subprotocol_id] for subprotocol_id in sorted(self._descriptors)]

    def capability_tags(self) -> list[str]:
        """Return the capability tags of the handled subprotocols that are announced, sorted by id."""
        return [capability_tag(one.id) for one in self._handled() if one.id not in self._unannounced]

    def enrich_capabilities(self, capabilities: CapabilitySet) -> CapabilitySet:
        """Return the capabilities with the tags of the handled subprotocols."""
        return capabilities.with_tags(self.capability_tags())

    @staticmethod
    def capability_filter_for(subprotocol_id: int) -> CapabilityFilter:
        """Return the filter that finds nodes with a handler for a subprotocol."""
        return CapabilityFilter(require_tags=(capability_tag(subprotocol_id),))

    def manifest(self) -> SubprotocolManifest:
        """Return the manifest of the handled subprotocols, sorted by id."""
        return SubprotocolManifest(tuple(descriptor.entry for descriptor in self._handled()))

    def _handled(self) -> list[SubprotocolDescriptor]:
        return [descriptor for descriptor in self.all_descriptors() if descriptor.handler_present]


class Mismatch(msgspec.Struct, frozen=True):
    """A subprotocol that both sides have at incompatible versions."""

    id: int
    local_version: SubprotocolVersion
    remote_version: SubprotocolVersion

    def __str__(self) -> str:
        return f"0x{self.id:04x} (here {self.local_version}, there {self.remote_version})"


class NegotiatedSet(msgspec.Struct, frozen=True):
    """The subprotocols that two peers can use with each other; `subprotocol_id in negotiated` tests for one."""

    compatible: frozenset[int] = frozenset()
    incompatible: tuple[Mismatch, ...] = ()

    def __contains__(self, subprotocol_id: object) -> bool:
        return subprotocol_id in self.compatible


def negotiate(local: SubprotocolManifest, remote: SubprotocolManifest) -> NegotiatedSet:
    """Return the subprotocols of both sides, compatible or not; those of one side only are left out.

    subprotocols.md §6 defines the result.
    """
    theirs = {entry.id: entry for entry in remote.entries}
    shared = [(entry, theirs[entry.id]) for entry in local.entries if entry.id in theirs]
    return NegotiatedSet(
        frozenset(mine.id for mine, other in shared if mine.compatible(other)),
        tuple(Mismatch(mine.id, mine.version, other.version) for mine, other in shared if not mine.compatible(other)),
    )
