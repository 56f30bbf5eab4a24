"""Perfect hash of a small fixed set of numbers, as SQL expressions: a lookup inside Spark without a join.

Each number has a slot of its own in a table that is at most half full (hash and displace). A lookup takes one
multiplication, one array access for the displacement of its bucket (none in the smallest sets), and one comparison. The
tables are literals in the query plan: right for the channels and subnets of one policy, wrong for sets that grow with the
data.

Expressions are SQL text, because then Python makes one call to Java however long they are. Nothing here knows what the
numbers mean; spark/replay/expressions.py does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import msgspec

_BUCKET_BITS = 4
"""A table of 2**n slots has 2**(n - 4) buckets: about eight numbers per bucket at half load, and one bucket for 16 slots."""
_ATTEMPTS = 100
"""Multipliers that are tried before the table is doubled."""
_WORD = 0xFFFF_FFFF
_FACTORS = range(1 << 30, 1 << 31)
"""A 32-bit word times a factor stays below 2**63, because Spark in ANSI mode fails when a product overflows."""
_SHIFTS = range(32, 48)


class PerfectHash(msgspec.Struct, frozen=True):
    """A slot for each of some signed 64-bit numbers."""

    bits: int
    shift: int
    factor: int
    moved: tuple[int, ...]
    """By bucket: the displacement that its slots are XORed with."""
    table: tuple[int | None, ...]
    """By slot: its number, or None."""

    def where(self, number: int) -> int:
        """Return the slot of a number; a number that is not in the set is not in that slot."""
        home, bucket = self.spread(number)
        return home ^ self.moved[bucket]

    def spread(self, number: int) -> tuple[int, int]:
        """Return the slot of a number before displacement, and its bucket."""
        # The two's complement, as Java shifts it with `shiftrightunsigned`.
        unsigned = number & _WORD << 32 | number & _WORD
        product = ((unsigned ^ unsigned >> self.shift) & _WORD) * self.factor
        return product >> 32 - self.bits & len(self.table) - 1, product >> 32 & len(self.moved) - 1

    def where_sql(self, column: str) -> str:
        """Return `where` as an expression over a BIGINT column without nulls."""
        product = f"(({column} ^ shiftrightunsigned({column}, {self.shift})) & {_WORD}) * {self.factor}"
        home = f"shiftright({product}, {32 - self.bits}) & {len(self.table) - 1}"
        if len(self.moved) == 1:
            return f"CAST({home} AS INT)"
        bucket = f"CAST(shiftright({product}, 32) & {len(self.moved) - 1} AS INT)"
        return f"CAST(({home}) ^ get({array_sql(self.moved)}, {bucket}) AS INT)"

    def holds_sql(self, column: str, place: str) -> str:
        """Return an expression, never null, for whether a number is in the set, given its slot."""
        return f"get({array_sql(self.table)}, {place}) <=> {column}"


def array_sql(numbers: Iterable[int | None]) -> str:
    """Return numbers as a BIGINT array literal, as text that Spark splits once: faster to plan than a literal per number."""
    text = ",".join("" if number is None else str(number) for number in numbers)
    return f"TRY_CAST(split('{text}', ',') AS ARRAY<BIGINT>)"


def build_hash(numbers: Iterable[int]) -> PerfectHash:
    """Build the hash of a set of numbers; deterministic for the same set."""
    wanted = sorted(set(map(int, numbers)))  # int: a SubnetId would print as text
    random = Random(0)  # noqa: S311 - not for secrets: it only has to spread
    # At most half full, so that displacements are found quickly.
    bits = max(1, (2 * len(wanted) - 1).bit_length())
    while True:
        for _ in range(_ATTEMPTS):
            factor, shift = random.choice(_FACTORS) | 1, random.choice(_SHIFTS)
            empty = PerfectHash(bits, shift, factor, (0,) * (1 << max(0, bits - _BUCKET_BITS)), (None,) * (1 << bits))
            found = _settle(empty, wanted)
            if found is not None:
                return found
        bits += 1


def _settle(empty: PerfectHash, numbers: Sequence[int]) -> PerfectHash | None:
    """Displace the buckets, the fullest first, until no two numbers share a slot; None if that fails."""
    # Two numbers of one bucket with the same home can never be separated: they are displaced together.
    buckets: list[dict[int, int]] = [{} for _ in empty.moved]
    for number in numbers:
        home, bucket = empty.spread(number)
        if home in buckets[bucket]:
            return None
        buckets[bucket][home] = number
    moved, table = list(empty.moved), list(empty.table)
    # The fullest first, while most slots are free.
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
