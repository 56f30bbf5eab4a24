"""The packages that an installed meshbus needs, as they lie in the environment that runs this program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "meshbus"
EXTRAS = ("arrow", "fast", "web")
"""What a node of a fleet uses. Spark is not in it: a pipeline runs elsewhere, with a Java of its own."""


def needed(extras: Iterable[str] = EXTRAS) -> dict[str, Distribution]:
    """Return the distributions that meshbus needs with these extras, without itself, by their names in order."""
    found: dict[str, Distribution] = {}
    waiting = [(PROJECT, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if not _applies(requirement, wanted):
                continue
            other = canonicalize_name(requirement.name)
            if other == PROJECT:
                continue
            if other not in found:
                found[other] = distribution(other)
                waiting.append((other, frozenset(requirement.extras)))
    return dict(sorted(found.items()))


def files_of(package: Distribution) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the files that are imported from a distribution: where they belong, and where they are.

    Scripts are left out, which lie outside; so is what Python compiled, which differs from run to run.
    """
    for file in package.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            yield PurePosixPath(file), Path(str(package.locate_file(file)))


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
