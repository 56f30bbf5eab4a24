"""Several errors of one configuration: all are found in one reading, and the first is raised with the others in it.

Who reads a file to use it sees the first error, as before. `meshbus policy validate` shows all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshbus.errors import ConfigError

MOST_ERRORS = 20
"""Errors of one reading. Our choice: a screen; a file with more of them has one cause, or is of another kind."""


class Findings:
    """Collects errors until somebody asks for them."""

    def __init__(self) -> None:
        self._errors: dict[str, ConfigError] = {}
        """By key: of several errors about one, the first says what to do."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep the errors that the block raises, and go on."""
        try:
            yield
        except ConfigError as error:
            self.add(error)

    def add(self, error: ConfigError) -> None:
        """Keep an error, with those that were found with it."""
        for one in (error, *error.more):
            if len(self._errors) < MOST_ERRORS:
                self._errors.setdefault(one.key, one)

    def raise_first(self) -> None:
        """Raise the first error, with the others in it; do nothing if there is none."""
        if self._errors:
            first, *more = self._errors.values()
            first.more = tuple(more)
            raise first
