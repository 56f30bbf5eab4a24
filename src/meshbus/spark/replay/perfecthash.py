"""Looking numbers up in a small fixed set, inside Spark, without a join: by arithmetic on a column.

Each number of the set has a place of its own in a table that is at most half full. Where a number would be is one
multiplication and, in all but the smallest sets, one read of how its bucket was moved out of the way of others; whether it
is there is one comparison. The tables are literals in the plan of a query: right for the channels and subnets of one
policy, wrong for what grows with the data.

Expressions are SQL, because Python then makes one call to Java, however long they are. Nothing here knows what the numbers
mean; spark/replay/expressions.py does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import msgspec

_BUCKET_BITS = 4
"""How many bits buckets have less than places. At most eight numbers share one, then, and a table of 16 places has one."""
_ATTEMPTS = 100
"""Multipliers that are tried before the table is doubled."""
_WORD = 0xFFFF_FFFF
_FACTORS = range(1 << 30, 1 << 31)
"""A word times a factor stays below 2**63: Spark may be set to fail where a product overflows."""
_SHIFTS = range(32, 48)


class Places(msgspec.Struct, frozen=True):
    """A place for each of some numbers of 64 bits, signed, as Spark stores them."""

    bits: int
    shift: int
    factor: int
    moved: tuple[int, ...]
    """By bucket: what the places of its numbers are xored with."""
    table: tuple[int | None, ...]
    """By place: the number that has it."""

    def where(self, number: int) -> int:
        """Give the place of a number; of one that is not in the set, the only place to look at."""
        home, bucket = self.spread(number)
        return home ^ self.moved[bucket]

    def spread(self, number: int) -> tuple[int, int]:
        """Give the place of a number before its bucket is moved, and the bucket."""
        unsigned = number & _WORD << 32 | number & _WORD
        product = ((unsigned ^ unsigned >> self.shift) & _WORD) * self.factor
        return product >> 32 - self.bits & len(self.table) - 1, product >> 32 & len(self.moved) - 1

    def where_sql(self, column: str) -> str:
        """Give `where` as an expression over a BIGINT that is not null."""
        product = f"(({column} ^ shiftrightunsigned({column}, {self.shift})) & {_WORD}) * {self.factor}"
        home = f"shiftright({product}, {32 - self.bits}) & {len(self.table) - 1}"
        if len(self.moved) == 1:
            return f"CAST({home} AS INT)"
        bucket = f"CAST(shiftright({product}, 32) & {len(self.moved) - 1} AS INT)"
        return f"CAST(({home}) ^ get({array_sql(self.moved)}, {bucket}) AS INT)"

    def holds_sql(self, column: str, place: str) -> str:
        """Say whether a number is in the set, given its place: an expression that is never null."""
        return f"get({array_sql(self.table)}, {place}) <=> {column}"


def array_sql(numbers: Iterable[int | None]) -> str:
    """Give numbers as an array literal of BIGINT. A text that Spark splits once is quicker to plan than an expression each."""
    text = ",".join("" if number is None else str(number) for number in numbers)
    return f"TRY_CAST(split('{text}', ',') AS ARRAY<BIGINT>)"


def arrange(numbers: Iterable[int]) -> Places:
    """Find places for numbers; the same set is always arranged in the same way."""
    wanted = sorted(set(map(int, numbers)))  # subnets are numbers that spell themselves otherwise
    random = Random(0)  # noqa: S311 - nothing is secret: it only has to spread
    bits = max(1, (2 * len(wanted) - 1).bit_length())
    while True:
        for _ in range(_ATTEMPTS):
            factor, shift = random.choice(_FACTORS) | 1, random.choice(_SHIFTS)
            empty = Places(bits, shift, factor, (0,) * (1 << max(0, bits - _BUCKET_BITS)), (None,) * (1 << bits))
            found = _settle(empty, wanted)
            if found is not None:
                return found
        bits += 1


def _settle(empty: Places, numbers: Sequence[int]) -> Places | None:
    """Move the buckets, the fullest first, until no two numbers share a place; None where that fails."""
    buckets: list[dict[int, int]] = [{} for _ in empty.moved]
    for number in numbers:
        home, bucket = empty.spread(number)
        if home in buckets[bucket]:
            return None
        buckets[bucket][home] = number
    moved, table = list(empty.moved), list(empty.table)
    for bucket in sorted(range(len(buckets)), key=lambda one: -len(buckets[one])):
        homes = buckets[bucket]
        fits = (move for move in range(len(table)) if all(table[home ^ move] is None for home in homes))
        found = next(fits, None)
        if found is None:
            return None
        moved[bucket] = found
        for home, number in homes.items():
            table[home ^ found] = number
    return msgspec.structs.replace(empty, moved=tuple(moved), table=tuple(table))
