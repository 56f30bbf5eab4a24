"""Subnet ids: a four-level hierarchy (region, fleet, vehicle, subsystem) packed in 32 bits.

Level 0 is the most significant byte, so ancestry is a masked comparison. Who belongs to which subnet is decided in
policy/assign.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

from meshbus.errors import ConfigError

LEVELS = 4


def depth_mask(depth: int) -> int:
    """Return the mask that keeps the top `depth` levels."""
    return 0xFFFFFFFF & ~((1 << (32 - 8 * depth)) - 1)


class SubnetId(int):
    """One position in the hierarchy; an `int` of the packed 32 bits."""

    __slots__ = ()

    GLOBAL: ClassVar[SubnetId]
    """No subnet at all, and the ancestor of every subnet."""

    def __new__(cls, raw: int) -> Self:
        """Wrap a packed id."""
        if not 0 <= raw <= 0xFFFFFFFF:
            raise ConfigError("subnet", f"{raw} does not fit the 32 bits of a subnet id")
        return super().__new__(cls, raw)

    @classmethod
    def new(cls, levels: Iterable[int]) -> SubnetId:
        """Build an id from up to four levels, the widest first: `[3, 7]` is fleet 7 of region 3."""
        values = tuple(levels)
        if len(values) > LEVELS:
            raise ConfigError("subnet", f"{len(values)} levels given, at most {LEVELS} exist")
        raw = 0
        for index, value in enumerate(values):
            if not 0 <= value <= 255:
                raise ConfigError("subnet", f"level {index} is {value}, it must be from 0 to 255")
            raw |= value << (24 - 8 * index)
        return cls(raw)

    @classmethod
    def parse(cls, text: str) -> SubnetId:
        """Read `global` or dotted levels such as `3.7`."""
        trimmed = text.strip()
        if trimmed.lower() == "global":
            return cls.GLOBAL
        parts = trimmed.split(".")
        if len(parts) > LEVELS:
            raise ConfigError("subnet", f"{text!r} has {len(parts)} levels, at most {LEVELS} exist")
        # policy.md §6.1: a leading `+` and leading zeros are accepted.
        digits = [part.removeprefix("+") for part in parts]
        # int() rejects thousands of digits, so the length is checked first.
        if not all(part.isascii() and part.isdigit() and len(part) <= 32 and int(part) <= 255 for part in digits):
            raise ConfigError("subnet", f"{text!r} is not a subnet; write 'global' or up to four numbers like '3.7'")
        return cls.new(int(part) for part in digits)

    def __str__(self) -> str:
        depth = self.depth
        return ".".join(str(self.level(n)) for n in range(depth)) if depth else "global"

    def __repr__(self) -> str:
        return f"SubnetId({str(self)!r})"

    def level(self, n: int) -> int:
        """Return level `n`; 0 for levels that do not exist."""
        return (self >> (24 - 8 * n)) & 0xFF if 0 <= n < LEVELS else 0

    @property
    def depth(self) -> int:
        """The position of the deepest non-zero level: 0 for GLOBAL, 3 for both `3.7.2` and `3.0.7`."""
        # policy.md §6.1: the deepest level that is not zero, even if one above it is.
        for depth in range(LEVELS, 0, -1):
            if self.level(depth - 1):
                return depth
        return 0

    @property
    def parent(self) -> SubnetId:
        """The id without its deepest level; GLOBAL is its own parent."""
        # policy.md §6.1: a gap is skipped, so the parent of `3.0.7` is `3`.
        return SubnetId(self & depth_mask(max(self.depth - 1, 0)))

    @property
    def is_global(self) -> bool:
        """Whether this is GLOBAL."""
        return self == 0

    def contains(self, other: int) -> bool:
        """Return whether `other` is this subnet or lies below it."""
        # policy.md §6.1: GLOBAL has depth 0, so its mask is empty and it contains everything.
        return (self ^ other) & depth_mask(self.depth) == 0

    def is_sibling(self, other: SubnetId) -> bool:
        """Return whether both are different children of one parent."""
        depth = self.depth
        return depth > 0 and depth == other.depth and self != other and (self ^ other) & depth_mask(depth - 1) == 0

    def distance(self, other: SubnetId) -> int:
        """Return the number of levels from the deeper of the two up to where their paths diverge."""
        if self == other:
            return 0
        deepest = max(self.depth, other.depth)
        if self.is_global or other.is_global:
            return deepest
        # policy.md §6.1: the crossing depth of the latency model of 0.23; siblings have distance 1.
        parting = next(n for n in range(LEVELS) if self.level(n) != other.level(n))
        return deepest - parting


SubnetId.GLOBAL = SubnetId(0)
