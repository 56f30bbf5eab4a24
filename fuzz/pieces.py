"""Inputs that consist of several pieces: each has its length before it, in two bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_WIDTH = 2


def cut(data: bytes) -> Iterator[bytes]:
    """Yield the pieces of an input; a length that is too large takes what is left, so that every input has pieces."""
    at = 0
    while at + _WIDTH <= len(data):
        start = at + _WIDTH
        at = start + int.from_bytes(data[at:start], "little")
        yield data[start:at]


def join(pieces: Iterable[bytes]) -> bytes:
    """Return the input with these pieces."""
    return b"".join(len(piece).to_bytes(_WIDTH, "little") + piece for piece in pieces)
