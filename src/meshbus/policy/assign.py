"""Which subnet a node belongs to, by its tags.

Two kinds of rules: `SubnetPolicy` gives the subnet of the first rule whose tags a node has; `LevelPolicy` sets single
levels from what follows a prefix, as the other implementation does, so two nodes with the same level rules agree. A
policy is applied to what *peers* announce; a node's own subnet is configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.subnet import LEVELS, SubnetId
from meshbus.policy.tag import text_list


class Assignment(Protocol):
    """Any policy that puts nodes into subnets."""

    def assign(self, tags: Iterable[str]) -> SubnetId:
        """Return the subnet of a node with these tags."""


class SubnetRule(msgspec.Struct, frozen=True, kw_only=True):
    """Put nodes with all these tags into one subnet."""

    match_tags: tuple[str, ...]
    """Exact texts; none at all matches every node."""
    target_subnet: SubnetId

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "match_tags", text_list("match_tags", self.match_tags))
        msgspec.structs.force_setattr(self, "target_subnet", SubnetId(self.target_subnet))


class SubnetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Ordered rules, of which the first that matches decides."""

    rules: tuple[SubnetRule, ...] = ()
    default_subnet: SubnetId = SubnetId.GLOBAL

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", tuple(self.rules))
        msgspec.structs.force_setattr(self, "default_subnet", SubnetId(self.default_subnet))

    def assign(self, tags: Iterable[str]) -> SubnetId:
        """Return the subnet of a node with these tags."""
        present = frozenset(tags)
        return next(
            (rule.target_subnet for rule in self.rules if present.issuperset(rule.match_tags)), self.default_subnet
        )


class LevelRule(msgspec.Struct, frozen=True, kw_only=True):
    """Set one level from the tag with a prefix: after `region:`, `{"eu": 2}` makes `region:eu` level 2."""

    tag_prefix: str
    level: int
    values: Mapping[str, int]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "values", dict(self.values))
        if not 0 <= self.level < LEVELS:
            raise ConfigError("level", f"{self.level} is not a level: they are 0 to {LEVELS - 1}")
        for text, value in self.values.items():
            if not 1 <= value <= 255:
                raise ConfigError(
                    "values", f"{text!r} has the value {value}, it must be from 1 to 255 (0 is no subnet)"
                )

    def value_of(self, sorted_tags: Iterable[str]) -> int | None:
        """Return the value of the first tag that has one."""
        for tag in sorted_tags:
            if tag.startswith(self.tag_prefix):
                value = self.values.get(tag.removeprefix(self.tag_prefix))
                if value is not None:
                    return value
        return None


class LevelPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for single levels. Later rules win over earlier ones; without a match a node is in GLOBAL."""

    rules: tuple[LevelRule, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", tuple(self.rules))

    def assign(self, tags: Iterable[str]) -> SubnetId:
        """Return the subnet of a node with these tags."""
        sorted_tags = sorted(set(tags))  # by code point, which is the byte order of UTF-8
        levels = [0] * LEVELS
        for rule in self.rules:
            value = rule.value_of(sorted_tags)
            if value is not None:
                levels[rule.level] = value
        return SubnetId.new(levels)
