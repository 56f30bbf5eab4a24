"""Subnet assignment: the subnet of a node, from its tags (policy.md §6.2).

There are two kinds of rules. `SubnetPolicy` returns the subnet of the first rule whose tags a node has. `LevelPolicy`
sets single levels from the text after a tag prefix, as 0.23 nodes do, so nodes with the same level rules agree. A policy
is applied to the announced tags of *peers*; the subnet of this node is configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.subnet import LEVELS, SubnetId
from meshbus.policy.tag import text_list


class Assignment(Protocol):
    """A policy that assigns nodes to subnets."""

    def assign(self, tags: Iterable[str]) -> SubnetId:
        """Return the subnet of a node with these tags."""


class SubnetRule(msgspec.Struct, frozen=True, kw_only=True):
    """Assigns nodes with all these tags to one subnet."""

    match_tags: tuple[str, ...]
    """Exact texts of tags; an empty list matches every node."""
    target_subnet: SubnetId
    """Subnet of the nodes that match."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "match_tags", text_list("match_tags", self.match_tags))
        msgspec.structs.force_setattr(self, "target_subnet", SubnetId(self.target_subnet))


class SubnetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Ordered rules; the first that matches decides."""

    rules: tuple[SubnetRule, ...] = ()
    default_subnet: SubnetId = SubnetId.GLOBAL

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", tuple(self.rules))
        msgspec.structs.force_setattr(self, "default_subnet", SubnetId(self.default_subnet))

    def assign(self, tags: Iterable[str]) -> SubnetId:
        """Return the subnet of a node with these tags."""
        present = frozenset(tags)
        # policy.md §9: first match wins, as the founding documents describe it. Level rules are what 0.23 nodes use.
        return next(
            (rule.target_subnet for rule in self.rules if present.issuperset(rule.match_tags)), self.default_subnet
        )


class LevelRule(msgspec.Struct, frozen=True, kw_only=True):
    """Sets one level by a tag: with the prefix `region:` and the values `{"eu": 2}`, the tag `region:eu` sets it to 2."""

    tag_prefix: str
    """Beginning of the tags that the rule reads."""
    level: int
    """Level of the subnet that the rule sets, 0 to 3."""
    values: Mapping[str, int]
    """Value of the level, 1 to 255, by the rest of the tag."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "values", dict(self.values))
        if not 0 <= self.level < LEVELS:
            raise ConfigError("level", f"must be in [0, {LEVELS - 1}], got {self.level}")
        for text, value in self.values.items():
            if not 1 <= value <= 255:
                # policy.md §6.2: 0 is an error, because it means that a level is not set.
                raise ConfigError("values", f"the value of {text!r} must be in [1, 255], got {value}")

    def value_of(self, sorted_tags: Iterable[str]) -> int | None:
        """Return the value of the first tag that has one, or None."""
        for tag in sorted_tags:
            if tag.startswith(self.tag_prefix):
                # The whole remainder must be a key: `region:eu-west` does not set the level of `region:eu`.
                value = self.values.get(tag.removeprefix(self.tag_prefix))
                if value is not None:
                    return value
        return None


class LevelPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for single levels. Later rules override earlier ones; a node without a match is in GLOBAL."""

    rules: tuple[LevelRule, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", tuple(self.rules))

    def assign(self, tags: Iterable[str]) -> SubnetId:
        """Return the subnet of a node with these tags."""
        sorted_tags = sorted(set(tags))  # policy.md §6.2: in byte order of UTF-8, which is that of code points
        levels = [0] * LEVELS
        for rule in self.rules:
            value = rule.value_of(sorted_tags)
            if value is not None:
                levels[rule.level] = value
        return SubnetId.new(levels)
