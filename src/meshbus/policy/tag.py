"""Capability tags: the short texts by which a node says what it is and has.

A tag is *reserved* (the mesh itself writes it), lies on an *axis* (`hardware.memory_gb=64`, `hardware.gpu`), or is free
text. The text travels byte for byte; only comparing is lenient: `software.os=linux` and `software.os:linux` are one
claim. Sets of tags and filters over them are in policy/capability.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from meshbus.errors import ConfigError

RESERVED_PREFIXES = ("causal:", "dataforts:", "fork-of:", "heat:", "scope:")
AXES = frozenset({"hardware", "software", "devices", "dataforts"})

SUBNET_LOCAL_TAG = "scope:subnet-local"
TENANT_PREFIX = "scope:tenant:"
REGION_PREFIX = "scope:region:"


class TagKind(StrEnum):
    """The class of a tag."""

    RESERVED = "reserved"
    AXIS_PRESENT = "axis_present"
    AXIS_VALUE = "axis_value"
    LEGACY = "legacy"


class Tag(msgspec.Struct, frozen=True):
    """A tag taken apart."""

    text: str
    kind: TagKind
    head: str = ""
    """The axis, or the reserved prefix."""
    key: str = ""
    separator: str = ""
    value: str = ""
    """The value on an axis, or what follows the reserved prefix."""

    @classmethod
    def parse(cls, text: str) -> Tag:
        """Take a tag apart; only the empty text is none."""
        if not text:
            raise ConfigError("tag", "a tag cannot be empty")
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
        """The text in which equal claims are equal: values on an axis after `=`."""
        return f"{self.head}.{self.key}={self.value}" if self.kind is TagKind.AXIS_VALUE else self.text


def is_reserved(text: str) -> bool:
    """Return whether only the mesh itself may write this tag."""
    return text.startswith(RESERVED_PREFIXES)


def canonical(text: str) -> str:
    """Return the text in which equal claims are equal; any text has one, also the empty."""
    return Tag.parse(text).canonical if text else text


def text_list(key: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Take the list of texts given for a setting; one text instead, which would become its letters, is an error."""
    if isinstance(texts, str):
        raise ConfigError(key, f"a list is expected, got the text {texts!r}")
    return tuple(texts)


def chain_tag(origin_hash: int, *, tip: int | None = None) -> str:
    """Say that a node holds the chain of an origin, up to sequence number `tip` where that is known."""
    return f"causal:{origin_hash:016x}" if tip is None else f"causal:{origin_hash:016x}:{tip}"


def chain_range_tag(origin_hash: int, first: int, end: int) -> str:
    """Say that a node holds the events of a chain from `first` up to, and not including, `end`."""
    if first >= end:
        raise ConfigError("chain", f"the range {first}..{end} is empty")
    return f"causal:{origin_hash:016x}[{first}..{end}]"


def fork_tag(origin_hash: int) -> str:
    """Say that a node's chain was forked from this one."""
    return f"fork-of:{origin_hash:016x}"


def heat_tag(origin_hash: int, rate: float) -> str:
    """Return how hot a chain runs; rates outside 0 to 1 are clamped."""
    if not math.isfinite(rate):
        raise ConfigError("heat", f"{rate} is not a rate")
    return f"heat:{origin_hash:016x}={min(max(rate, 0.0), 1.0):.2f}"


def tenant_tag(tenant: str) -> str:
    """Offer a node to one tenant."""
    _need("tenant", tenant)
    return TENANT_PREFIX + tenant


def region_tag(region: str) -> str:
    """Offer a node to one region."""
    _need("region", region)
    return REGION_PREFIX + region


def _need(what: str, text: str) -> None:
    if not text:
        raise ConfigError(what, "a name is needed")


def _split(rest: str) -> tuple[str, str, str]:
    """Split at the first `=` or `:`, whichever comes first."""
    key, separator, value = rest.partition("=")
    other_key, colon, other_value = rest.partition(":")
    return (other_key, colon, other_value) if len(other_key) < len(key) else (key, separator, value)
