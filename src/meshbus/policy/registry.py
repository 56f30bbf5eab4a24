"""Which subprotocols this node handles, and which it shares with a peer.

Handlers themselves live where they work; the registry only says that they exist. An id that is not registered is
forwarded untouched, and so is one that two peers did not agree on. The types and ids are in wire/subprotocol.py.
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

    @classmethod
    def with_defaults(cls) -> SubprotocolRegistry:
        """Start with the five subprotocols that the documents preload, all at version 1.0."""
        registry = cls()
        for subprotocol_id, name in _DEFAULTS:
            registry.register(SubprotocolDescriptor(id=subprotocol_id, name=name, version=SubprotocolVersion(1)))
        return registry

    def __len__(self) -> int:
        return len(self._descriptors)

    def register(self, descriptor: SubprotocolDescriptor, *, replace: bool = False) -> SubprotocolDescriptor | None:
        """Add a subprotocol; with `replace`, in place of the one under its id, which is given back.

        Raises RegistryError for a reserved id, and for one that is taken when not replacing.
        """
        if is_reserved(descriptor.id):
            raise RegistryError(RegistryFault.RESERVED, descriptor.id, "the id is reserved: choose one from 0x1001 on")
        previous = self._descriptors.get(descriptor.id)
        if previous is not None and not replace:
            raise RegistryError(RegistryFault.DUPLICATE, descriptor.id, f"already registered as {previous}")
        self._descriptors[descriptor.id] = descriptor
        return previous

    def unregister(self, subprotocol_id: int) -> SubprotocolDescriptor | None:
        """Remove a subprotocol and give it back."""
        return self._descriptors.pop(subprotocol_id, None)

    def lookup(self, subprotocol_id: int) -> SubprotocolDescriptor | None:
        """Find a subprotocol by id."""
        return self._descriptors.get(subprotocol_id)

    def is_registered(self, subprotocol_id: int) -> bool:
        """Return whether the id is known, with or without a handler."""
        return subprotocol_id in self._descriptors

    def is_handled(self, subprotocol_id: int) -> bool:
        """Return whether there is a handler for the id."""
        descriptor = self._descriptors.get(subprotocol_id)
        return descriptor is not None and descriptor.handler_present

    def all_descriptors(self) -> list[SubprotocolDescriptor]:
        """List the subprotocols by ascending id."""
        return [self._descriptors[subprotocol_id] for subprotocol_id in sorted(self._descriptors)]

    def capability_tags(self) -> list[str]:
        """List the tags of what is handled, by ascending id."""
        return [capability_tag(descriptor.id) for descriptor in self._handled()]

    def enrich_capabilities(self, capabilities: CapabilitySet) -> CapabilitySet:
        """Add the tags of what is handled."""
        return capabilities.with_tags(self.capability_tags())

    @staticmethod
    def capability_filter_for(subprotocol_id: int) -> CapabilityFilter:
        """Return the filter that finds the nodes handling a subprotocol."""
        return CapabilityFilter(require_tags=(capability_tag(subprotocol_id),))

    def manifest(self) -> SubprotocolManifest:
        """Return what is handled, by ascending id."""
        return SubprotocolManifest(tuple(descriptor.entry for descriptor in self._handled()))

    def _handled(self) -> list[SubprotocolDescriptor]:
        return [descriptor for descriptor in self.all_descriptors() if descriptor.handler_present]


class Mismatch(msgspec.Struct, frozen=True):
    """A subprotocol that both sides have, at versions that do not get along."""

    id: int
    local_version: SubprotocolVersion
    remote_version: SubprotocolVersion


class NegotiatedSet(msgspec.Struct, frozen=True):
    """What two peers can use with each other; `subprotocol_id in negotiated` asks."""

    compatible: frozenset[int] = frozenset()
    incompatible: tuple[Mismatch, ...] = ()

    def __contains__(self, subprotocol_id: object) -> bool:
        return subprotocol_id in self.compatible


def negotiate(local: SubprotocolManifest, remote: SubprotocolManifest) -> NegotiatedSet:
    """Find what both sides speak at versions that get along; what only one side has is in neither list."""
    theirs = {entry.id: entry for entry in remote.entries}
    shared = [(entry, theirs[entry.id]) for entry in local.entries if entry.id in theirs]
    return NegotiatedSet(
        frozenset(mine.id for mine, other in shared if mine.compatible(other)),
        tuple(Mismatch(mine.id, mine.version, other.version) for mine, other in shared if not mine.compatible(other)),
    )
