"""Warnings about what may happen many times a second: logged at most once a minute, with the number of those left out.

A full disk, or a peer that asks for something that fails, must not fill the log of the machine as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

EVERY_S = 60.0
"""Seconds between two warnings about the same thing."""


class SeldomWarning:
    """A warning about one thing; call it as often as the thing happens, from one thread at a time."""

    def __init__(self, logger: logging.Logger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._next_at = float("-inf")
        self._left_out = 0

    def __call__(self, text: str, *arguments: object) -> None:
        """Log the warning, unless the last one was less than a minute ago."""
        now = self._monotonic()
        if now < self._next_at:
            self._left_out += 1
            return
        self._next_at, left_out, self._left_out = now + EVERY_S, self._left_out, 0
        if left_out:
            text, arguments = f"{text} (and %d times since the last warning)", (*arguments, left_out)
        self._logger.warning(text, *arguments)
