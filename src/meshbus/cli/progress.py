"""A long job's progress on standard error: one line a stage.

On a terminal the line is written over while the stage goes on. Elsewhere a stage is a line when it begins, one now and
then, and one when it ends, so that a log file stays readable and shows life. Results are cli/output.py's business.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Self

from meshbus.cli.output import printable

_SELDOM_S = 5.0
"""Between lines of one stage where nothing can be written over."""


class Stage:
    """One stage, inside `with`; `say` tells how far it is, and the last thing said is what remains of it."""

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
        """Tell how far the stage is."""
        self._text = text
        now = time.monotonic()
        if self._live or now - self._said_at >= _SELDOM_S:
            self._said_at = now
            self._write()

    def _write(self, ended: str = "") -> None:
        line, tail = f"{self._name:9} {printable(self._text)}", f" ({ended})" if ended else " …"
        if self._live:
            shown = line[: _width() - len(tail) - 1]  # a line that wraps cannot be written over
            print(f"\r\033[K{shown}{tail}", end="\n" if ended else "", file=sys.stderr, flush=True)
        else:
            print(f"meshbus: {line}{tail}", file=sys.stderr, flush=True)


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
