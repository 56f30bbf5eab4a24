"""Capability tags: short texts that describe a node (policy.md §8.1).

A tag is *reserved* (only the mesh writes it), on an *axis* (`hardware.memory_gb=64`, `hardware.gpu`), or free text
(*legacy*). Its text is sent byte for byte. Only comparisons are lenient: `software.os=linux` and `software.os:linux` are
the same claim. Sets of tags, and filters over them, are in policy/capability.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice

import msgspec

from meshbus.errors import ChannelError, ConfigError
from meshbus.names.channel import ChannelName

# policy.md §8.1.
RESERVED_PREFIXES = ("causal:", "dataforts:", "fork-of:", "heat:", "scope:")
CHAIN_PREFIX = "causal:"
_CHAIN = re.compile(CHAIN_PREFIX + r"([0-9a-f]{16})(?::[0-9]+|\[[0-9]+\.\.[0-9]+\])?")
AXES = frozenset({"hardware", "software", "devices", "dataforts"})

SUBNET_LOCAL_TAG = "scope:subnet-local"
TENANT_PREFIX = "scope:tenant:"
REGION_PREFIX = "scope:region:"

CHANNEL_PREFIX = "publishes:"
"""Before the name of a channel that a node publishes on; meshbus nodes announce such tags (docs/wire/profile.md)."""
MAX_CHANNEL_TAGS = 64
"""Channels that one announcement names. Our choice: those of most nodes."""
MAX_CHANNEL_BYTES = 2048
"""Bytes of these names together. Our choice: a quarter of an announcement of the largest size."""


class TagKind(StrEnum):
    """The class of a tag."""

    RESERVED = "reserved"
    AXIS_PRESENT = "axis_present"
    AXIS_VALUE = "axis_value"
    LEGACY = "legacy"


class Tag(msgspec.Struct, frozen=True):
    """A parsed tag."""

    text: str
    kind: TagKind
    head: str = ""
    """The axis, or the reserved prefix."""
    key: str = ""
    separator: str = ""
    value: str = ""
    """The value on an axis, or the text after the reserved prefix."""

    @classmethod
    def parse(cls, text: str) -> Tag:
        """Parse a tag; raise ConfigError if it is empty. Every other text is a tag."""
        if not text:
            raise ConfigError("tag", "a tag must not be empty")
        # policy.md §8.1: the classes are tested in this order.
        for prefix in RESERVED_PREFIXES:
            if text.startswith(prefix):
                return cls(text, TagKind.RESERVED, head=prefix, value=text.removeprefix(prefix))
        axis, dot, rest = text.partition(".")
        if not dot or axis not in AXES:
            return cls(text, TagKind.LEGACY)
        key, separator, value = _split(rest)
        return cls(text, TagKind.AXIS_VALUE if separator else TagKind.AXIS_PRESENT, axis, key, separator, value)

    @property
    def canonical(self) -> str:
        """The canonical form, in which equal claims are equal texts: a value on an axis follows `=`."""
        return f"{self.head}.{self.key}={self.value}" if self.kind is TagKind.AXIS_VALUE else self.text


def is_reserved(text: str) -> bool:
    """Return whether only the mesh may write this tag."""
    return text.startswith(RESERVED_PREFIXES)


def canonical(text: str) -> str:
    """Return the canonical form of a tag; the empty text is its own."""
    return Tag.parse(text).canonical if text else text


def text_list(key: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts given for a setting as a tuple; raise ConfigError for a single text instead of a list."""
    # A single text is iterable too, and would silently become a list of its characters.
    if isinstance(texts, str):
        raise ConfigError(key, f"must be a list of texts, got the text {texts!r}")
    return tuple(texts)


def chain_tag(origin_hash: int, *, tip: int | None = None) -> str:
    """Return the tag of a node that holds the chain of an origin, up to the sequence number `tip` if it is given."""
    if not 0 <= origin_hash < 1 << 64:
        raise ConfigError("chain", f"an origin hash has 64 bits, got {origin_hash}")
    if tip is not None and tip < 0:
        raise ConfigError("chain", f"the tip is a sequence number from 0 on, got {tip}")
    bare = f"{CHAIN_PREFIX}{origin_hash:016x}"
    return bare if tip is None else f"{bare}:{tip}"


def chain_range_tag(origin_hash: int, first: int, end: int) -> str:
    """Return the tag of a node that holds the events of a chain from `first` to `end`, exclusive."""
    if first >= end:
        raise ConfigError("chain", f"the range {first}..{end} is empty; the end must be above the start")
    return f"{chain_tag(origin_hash)}[{first}..{end}]"


def chain_in(text: str) -> int | None:
    """Return the origin hash of the chain that a tag claims in any of its forms, or None if it is no such tag."""
    found = _CHAIN.fullmatch(text)
    return None if found is None else int(found[1], 16)


def fork_tag(origin_hash: int) -> str:
    """Return the tag of a node whose chain was forked from this one."""
    return f"fork-of:{origin_hash:016x}"


def heat_tag(origin_hash: int, rate: float) -> str:
    """Return the tag with the activity of a chain; rates outside [0, 1] are clamped."""
    if not math.isfinite(rate):
        raise ConfigError("heat", f"the rate must be a finite number, got {rate}")
    # policy.md §8.6: two decimals, clamped to [0, 1].
    return f"heat:{origin_hash:016x}={min(max(rate, 0.0), 1.0):.2f}"


def tenant_tag(tenant: str) -> str:
    """Return the tag of a node that is available to one tenant."""
    _need("tenant", tenant)
    return TENANT_PREFIX + tenant


def region_tag(region: str) -> str:
    """Return the tag of a node that is available to one region."""
    _need("region", region)
    return REGION_PREFIX + region


def channel_tag(channel: ChannelName) -> str:
    """Return the tag of a node that publishes on a channel."""
    return CHANNEL_PREFIX + channel


def nameable(channels: Iterable[ChannelName]) -> Iterator[ChannelName]:
    """Return the first channels, as many as one announcement may name."""
    size = 0
    for channel in islice(channels, MAX_CHANNEL_TAGS):
        size += len(channel)
        if size > MAX_CHANNEL_BYTES:
            return
        yield channel


def announced_channels(tags: Iterable[str]) -> tuple[ChannelName, ...]:
    """Return the channels that tags name, sorted; invalid names, and those beyond the limits, are left out."""
    named = sorted(tag.removeprefix(CHANNEL_PREFIX) for tag in tags if tag.startswith(CHANNEL_PREFIX))
    return tuple(nameable(channel for name in named if (channel := _channel(name)) is not None))


def _channel(name: str) -> ChannelName | None:
    try:
        return ChannelName(name)
    except ChannelError:
        return None


def _need(what: str, text: str) -> None:
    if not text:
        raise ConfigError(what, "the name must not be empty")


def _split(rest: str) -> tuple[str, str, str]:
    """Split at the first `=` or `:`, whichever comes first."""
    key, separator, value = rest.partition("=")
    other_key, colon, other_value = rest.partition(":")
    return (other_key, colon, other_value) if len(other_key) < len(key) else (key, separator, value)
