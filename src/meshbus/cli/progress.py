"""Progress of a long job on standard error, one line per stage.

On a terminal the line is rewritten while the stage runs. Elsewhere a stage prints a line when it begins, one every few
seconds, and one when it ends, so that a log file stays readable. cli/output.py prints results.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Self

from meshbus.cli.output import printable

_SELDOM_S = 5.0
"""Time between lines of one stage when standard error is not a terminal."""


class Stage:
    """One stage, used as a context manager; `say` updates its text, and the last text remains."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._begin = self._said_at = time.monotonic()
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took = f"{time.monotonic() - self._begin:.1f} s"
        self._write(took if error is None else f"stopped after {took}")

    def say(self, text: str) -> None:
        """Update the text of the stage."""
        self._text = text
        now = time.monotonic()
        # In a log file, lines that say the same again and again would bury the rest.
        if self._live or now - self._said_at >= _SELDOM_S:
            self._said_at = now
            self._write()

    def _write(self, ended: str = "") -> None:
        line, tail = f"{self._name:9} {printable(self._text)}", f" ({ended})" if ended else " …"
        if self._live:
            shown = line[: _width() - len(tail) - 1]  # a line that wraps cannot be rewritten
            print(f"\r\033[K{shown}{tail}", end="\n" if ended else "", file=sys.stderr, flush=True)
        else:
            print(f"meshbus: {line}{tail}", file=sys.stderr, flush=True)


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
