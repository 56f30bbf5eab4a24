"""The inputs that a run begins with: one file for each target in fuzz/corpus, a line of hexadecimal digits for each input.

A corpus is kept small: `distil` leaves a few inputs that together reach what all of them reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fuzz.reach import Reach
from fuzz.target import Target

FOLDER = Path(__file__).parent / "corpus"
MOST_INPUTS = 48
"""Inputs of one target in the tree."""
MOST_BYTES = 32 * 1024
"""Bytes of all inputs of one target in the tree."""


def load(name: str, folder: Path = FOLDER) -> list[bytes]:
    """Return the inputs of a target; none if it has no file."""
    path = folder / f"{name}.hex"
    return [bytes.fromhex(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def store(name: str, inputs: Iterable[bytes], folder: Path = FOLDER) -> None:
    """Replace the inputs of a target."""
    lines = sorted((data.hex() for data in set(inputs)), key=lambda line: (len(line), line))
    (folder / f"{name}.hex").write_text("".join(line + "\n" for line in lines), "ascii")


def distil(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Return few inputs that reach as much as all of them, within the limits of the tree; those that reach most first."""
    run, reach = target.make(), Reach()
    reached: dict[bytes, set[int]] = {}
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        with suppress(*target.refuses):
            reach.follow(run, data)
        reached[data] = reach.arcs
    chosen: list[bytes] = []
    missing = set[int]().union(*reached.values())
    left = MOST_BYTES
    while missing and len(chosen) < MOST_INPUTS:
        fits = [data for data in reached if len(data) <= left]
        best = max(fits, key=lambda data: len(reached[data] & missing), default=None)
        if best is None or not reached[best] & missing:
            break
        chosen.append(best)
        missing -= reached.pop(best)
        left -= len(best)
    return chosen
