"""Changes of inputs: bits, numbers, pieces moved, doubled, cut or taken from another input, and words of the code.

A word is a constant of a function that was reached: its kinds, magic numbers and limits. Without them a fuzzer would have to
guess them byte by byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

WIDTHS = (1, 2, 4, 8)
MOST_CHANGES = 6
"""Changes of one input. Our choice: most of what several bytes have to agree on is in the corpus already."""
MOST_WORDS = 4096
_LONG_WORD = 64
_LONG_RUN = 1024


class Mutator:
    """Changes inputs by chance."""

    def __init__(self, chance: random.Random, most_bytes: int) -> None:
        self._chance = chance
        self._most = most_bytes
        self._words: list[bytes] = []
        self._known: set[bytes] = set()
        self._changes: Sequence[Callable[[bytearray], None]] = (
            self._flip, self._byte, self._number, self._number, self._word, self._word, self._word_over,
            self._insert, self._remove, self._remove, self._double, self._move, self._run, self._end,
        )  # fmt: skip

    def learn(self, constants: Iterable[object]) -> None:
        """Use constants of the code in later changes."""
        for constant in constants:
            for word in _spellings(constant):
                if 0 < len(word) <= _LONG_WORD and word not in self._known and len(self._words) < MOST_WORDS:
                    self._known.add(word)
                    self._words.append(word)

    def change(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """Return an input that differs from this one; `others` are inputs to take parts from."""
        changed = bytearray(data)
        if others and self._chance.random() < 0.1:
            changed = self._spliced(changed, self._chance.choice(others))
        for _ in range(self._chance.randint(1, MOST_CHANGES)):
            self._chance.choice(self._changes)(changed)
        return bytes(changed[: self._most])

    # ── single changes ──────────────────────────────────────────────────────────────────────

    def _place(self, data: bytearray) -> int:
        return self._chance.randrange(len(data) + 1)

    def _stretch(self, data: bytearray) -> tuple[int, int]:
        start = self._place(data)
        # Short ones are more frequent: fields have a few bytes.
        return start, min(len(data), start + self._chance.randint(1, self._chance.choice((2, 8, 32, 256))))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] = self._chance.choice((0, 1, 0x7F, 0x80, 0xFF, self._any_byte()))

    def _any_byte(self) -> int:
        return self._chance.randrange(256)

    def _number(self, data: bytearray) -> None:
        """Change a number by a little, or to the least or largest of its width."""
        width = self._chance.choice(WIDTHS)
        if len(data) < width:
            return
        at, order = self._chance.randrange(len(data) - width + 1), self._chance.choice(("little", "big"))
        limit = 1 << 8 * width
        found = int.from_bytes(data[at : at + width], "little" if order == "little" else "big")
        edge = self._chance.choice((0, 1, limit - 1, limit // 2, limit // 2 - 1, len(data), len(data) - at - width))
        value = found + self._chance.randint(-16, 16) if self._chance.random() < 0.5 else edge
        data[at : at + width] = (value % limit).to_bytes(width, "little" if order == "little" else "big")

    def _word(self, data: bytearray) -> None:
        if self._words:
            at = self._place(data)
            data[at:at] = self._chance.choice(self._words)

    def _word_over(self, data: bytearray) -> None:
        if self._words:
            word, at = self._chance.choice(self._words), self._place(data)
            data[at : at + len(word)] = word

    def _insert(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self._chance.randbytes(self._chance.randint(1, 16))

    def _remove(self, data: bytearray) -> None:
        start, stop = self._stretch(data)
        del data[start:stop]

    def _double(self, data: bytearray) -> None:
        start, stop = self._stretch(data)
        data[stop:stop] = data[start:stop]

    def _move(self, data: bytearray) -> None:
        start, stop = self._stretch(data)
        part = data[start:stop]
        at = self._place(data)
        data[at : at + len(part)] = part

    def _run(self, data: bytearray) -> None:
        """Repeat a byte many times, for what nests or counts."""
        at = self._place(data)
        one = data[at : at + 1] or bytes((self._any_byte(),))
        data[at:at] = one * self._chance.randint(1, self._chance.choice((16, 128, _LONG_RUN)))

    def _end(self, data: bytearray) -> None:
        del data[self._place(data) :]

    def _spliced(self, data: bytearray, other: bytes) -> bytearray:
        start = self._chance.randrange(len(other) + 1)
        return data[: self._place(data)] + other[start:]


def _spellings(constant: object) -> Iterable[bytes]:
    """Yield how a constant may stand in an input."""
    match constant:
        case bool():
            return
        case int() if constant >= 0:
            for width in WIDTHS:
                if constant < 1 << 8 * width:
                    yield constant.to_bytes(width, "little")
        case bytes():
            yield constant
        case str() if constant.isascii():
            yield constant.encode()
