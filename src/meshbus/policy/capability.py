"""Capabilities of nodes, and filters over them: one matcher for channel authorization and for searches.

A 0.23 node searches more leniently than it authorizes: it ignores context lengths and modalities, and takes any
`hardware.gpu.*` tag for a GPU (policy.md §8.5). Here both use the same filter, so a node that a search finds also passes
the filter on a channel. Tags are parsed in policy/tag.py, their typed views are in policy/views.py, and searches in
policy/discovery.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from meshbus.errors import ConfigError
from meshbus.policy.tag import Tag, TagKind, canonical, chain_in, is_reserved, text_list
from meshbus.policy.views import GPU_TAG, Gpu, GpuVendor, Hardware, Modality, Model, Tool, View, write_all

_TOOL_METADATA = "tool::"

E = TypeVar("E", bound=StrEnum)


class CapabilitySet:
    """The tags and metadata of one node. Immutable: every change returns a new set."""

    def __init__(self, tags: Iterable[str] = (), metadata: Mapping[str, str] | None = None) -> None:
        self.tags = frozenset(tags)
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        # policy.md §8.2: an announcement with an empty tag is dropped as a whole.
        if "" in self.tags:
            raise ConfigError("tag", "a tag must not be empty")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CapabilitySet) and self.tags == other.tags and self.metadata == other.metadata

    def __hash__(self) -> int:
        return hash((self.tags, frozenset(self.metadata.items())))

    def __repr__(self) -> str:
        return f"CapabilitySet({sorted(self.tags)!r}, {dict(self.metadata)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CapabilitySet, (self.tags, dict(self.metadata))

    def has_tag(self, text: str) -> bool:
        """Return whether the set has a tag; on an axis, `=` and `:` before the value count as equal."""
        return text in self.tags or canonical(text) in self.claims

    def add_tag(self, text: str) -> CapabilitySet:
        """Add a tag of the application; raise ConfigError if it has a prefix that is reserved for the mesh."""
        if is_reserved(text):
            raise ConfigError("tag", f"{text!r} has a prefix that is reserved for the mesh; choose another one")
        return self.with_tags([text])

    def with_tags(self, tags: Iterable[str]) -> CapabilitySet:
        """Add tags, including reserved ones."""
        return CapabilitySet(self.tags.union(tags), self.metadata)

    def without_tags(self, tags: Iterable[str]) -> CapabilitySet:
        """Remove tags, by their exact text."""
        return CapabilitySet(self.tags.difference(tags), self.metadata)

    def with_metadata(self, key: str, value: str) -> CapabilitySet:
        """Set one entry of the metadata; those of tools are set by `with_tools`."""
        # policy.md §8.6: 0.23 nodes ignore such a write silently; an error is easier to find.
        if key.startswith(_TOOL_METADATA):
            raise ConfigError("metadata", f"{key!r} belongs to a tool; pass its schemas to with_tools")
        return CapabilitySet(self.tags, {**self.metadata, key: value})

    def with_view(self, view: Hardware | Gpu) -> CapabilitySet:
        """Set the description of the machine or of its GPU, replacing the earlier one."""
        return self._replaced(type(view), view.write())

    def with_models(self, models: Sequence[Model]) -> CapabilitySet:
        """Set the list of models, replacing the earlier one."""
        return self._replaced(Model, write_all(tuple(models)))

    def with_tools(self, tools: Sequence[Tool], schemas: Mapping[str, str] | None = None) -> CapabilitySet:
        """Set the list of tools, replacing the earlier one.

        Keys of `schemas` are `<tool_id>::input_schema` and `<tool_id>::output_schema`; values are JSON texts.
        """
        listed = self._replaced(Tool, write_all(tuple(tools)))
        kept = {key: value for key, value in self.metadata.items() if not key.startswith(_TOOL_METADATA)}
        kept |= {_TOOL_METADATA + key: value for key, value in (schemas or {}).items()}
        return CapabilitySet(listed.tags, kept)

    @cached_property
    def claims(self) -> frozenset[str]:
        """The tags in canonical form, in which equal claims are equal texts."""
        return frozenset(map(canonical, self.tags))

    @cached_property
    def chains(self) -> frozenset[int]:
        """The chains that the node holds, wholly or in part, by origin hash (redex.md §8)."""
        return frozenset(chain for chain in map(chain_in, self.tags) if chain is not None)

    @cached_property
    def values(self) -> Mapping[str, str]:
        """The values of the keys on an axis, such as `hardware.memory_gb`."""
        # Sorted, so that of two tags with the same key the same one counts on every node.
        tags = (Tag.parse(text) for text in sorted(self.tags))
        return {f"{tag.head}.{tag.key}": tag.value for tag in tags if tag.kind is TagKind.AXIS_VALUE}

    @cached_property
    def hardware(self) -> Hardware:
        """The machine, as far as the tags describe it."""
        return Hardware.read(self.values)

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU, or None. Any tag about a GPU is enough, even without the presence tag (policy.md §8.1)."""
        return Gpu.read(self.values) if any(map(Gpu.owns, self.tags)) else None

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The models that the node offers."""
        return Model.read_all(self.values)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the node offers."""
        return Tool.read_all(self.values)

    def _replaced(self, view: type[View], tags: Iterable[str]) -> CapabilitySet:
        kept = (text for text in self.tags if not view.owns(canonical(text).partition("=")[0]))
        return CapabilitySet([*kept, *tags], self.metadata)


class CapabilityFilter(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Conditions on a node, all of which must hold; a filter without conditions matches every node (policy.md §8.5)."""

    require_tags: tuple[str, ...] = ()
    """The node has all of these tags."""
    require_models: tuple[str, ...] = ()
    """The node has at least one of these models, by id."""
    require_tools: tuple[str, ...] = ()
    """The node has at least one of these tools, by id."""
    min_memory_gb: int | None = None
    """The node has at least this much memory."""
    require_gpu: bool = False
    """The node has the presence tag `hardware.gpu`; set by `gpu_vendor` and `min_vram_gb` too."""
    gpu_vendor: GpuVendor | None = None
    """The node has a GPU of this vendor."""
    min_vram_gb: int | None = None
    """Some GPU of the node has at least this much memory."""
    min_context_length: int | None = None
    """Some model has at least this length; a node without models fails even with 0."""
    require_modalities: tuple[Modality, ...] = ()
    """Each one is offered by some model, not necessarily by the same."""

    def __post_init__(self) -> None:
        for name in ("require_tags", "require_models", "require_tools"):
            _settle(self, name, text_list(name, getattr(self, name)))
        modalities = text_list("require_modalities", self.require_modalities)
        _settle(
            self, "require_modalities", tuple(member_of(Modality, "require_modalities", name) for name in modalities)
        )
        if self.gpu_vendor is not None:
            _settle(self, "gpu_vendor", member_of(GpuVendor, "gpu_vendor", self.gpu_vendor))
        # policy.md §8.5: both builders also require the presence tag.
        if self.gpu_vendor is not None or self.min_vram_gb is not None:
            _settle(self, "require_gpu", True)

    @cached_property
    def required_claims(self) -> frozenset[str]:
        """The canonical tags that every matching node has, so that an index can look them up."""
        tags = (*self.require_tags, GPU_TAG) if self.require_gpu else self.require_tags
        return frozenset(map(canonical, tags))

    def matches(self, capabilities: CapabilitySet) -> bool:
        """Return whether a node with these capabilities passes the filter."""
        return (
            capabilities.claims.issuperset(self.required_claims)
            and self._matches_machine(capabilities)
            and self._matches_software(capabilities)
        )

    def _matches_machine(self, capabilities: CapabilitySet) -> bool:
        if self.min_memory_gb is not None and capabilities.hardware.memory_gb < self.min_memory_gb:
            return False
        if self.gpu_vendor is None and self.min_vram_gb is None:
            return True
        # The presence tag is among `required_claims`, so it was checked already; its details may still be missing.
        gpu = capabilities.gpu or Gpu()
        return self.gpu_vendor in {None, gpu.vendor} and gpu.vram_gb >= (self.min_vram_gb or 0)

    def _matches_software(self, capabilities: CapabilitySet) -> bool:
        if self.require_models and not _meet(self.require_models, (model.id for model in capabilities.models)):
            return False
        if self.require_tools and not _meet(self.require_tools, (tool.tool_id for tool in capabilities.tools)):
            return False
        # policy.md §8.5: fails without models, even for 0.
        if self.min_context_length is not None and not any(
            model.context_length >= self.min_context_length for model in capabilities.models
        ):
            return False
        offered = {modality for model in capabilities.models for modality in model.modalities}
        return offered.issuperset(self.require_modalities)


def _meet(wanted: Iterable[str], offered: Iterable[str]) -> bool:
    return not set(wanted).isdisjoint(offered)


def member_of(kind: type[E], key: str, text: str) -> E:
    """Return the member of an enumeration by its value. Raises ConfigError, which lists the values."""
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(key, f"unknown value {text!r}; choose from {', '.join(kind)}") from None


def _settle(struct: msgspec.Struct, name: str, value: object) -> None:
    """Set a field of a frozen struct in its `__post_init__`."""
    msgspec.structs.force_setattr(struct, name, value)
