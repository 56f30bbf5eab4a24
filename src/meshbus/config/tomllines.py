"""Lines of a TOML text: where each key is, so that an error about a value can name the line.

tomllib returns values without their place. This module reads the same text once more, which tomllib has accepted before, and
looks only for keys, headers and the ends of values. Paths are written as in the errors of config/loader.py, such as
`channels[2].publish_caps.require_tags[0]`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
"""All four kinds of strings; those of several lines may end with up to two more quotes, which belong to them."""
_SCALAR = re.compile(r"[^,\]}#\n]+")
"""A number, a truth value or a time: it ends where the next thing begins."""


def lines_of(text: str) -> dict[str, int]:
    """Return the line of each key, table and item of a list in a valid TOML text; the first line is 1."""
    scanner = _Scanner(text)
    with suppress(RecursionError):  # nested deeper than any setting; what comes before it is found
        scanner.scan()
    return scanner.lines


def line_of(key: str, lines: Mapping[str, int]) -> int | None:
    """Return the line of a key, or of the innermost table or list around it that is there, or None."""
    while key:
        if key in lines:
            return lines[key]
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return None


class _Scanner:
    """Reads one text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[str, int] = {}
        self._entries: dict[str, int] = {}
        """How many tables each array of tables has so far."""

    def scan(self) -> None:
        """Find the lines of everything."""
        table = ""
        self._skip()
        while self._at < len(self._text):
            if self._next("["):
                table = self._header()
            else:
                self._pair(table)
            self._skip()

    def _header(self) -> str:
        line, is_entry = self._line(), self._text.startswith("[[", self._at)
        self._at += 2 if is_entry else 1
        *outer, last = self._key()
        self._at += 2 if is_entry else 1
        path = ""
        for part in outer:
            path = _join(path, part)
            self.lines.setdefault(path, line)
            path = self._current(path)
        path = _join(path, last)
        if is_entry:
            self.lines.setdefault(path, line)
            self._entries[path] = self._entries.get(path, 0) + 1
        path = self._current(path)
        self.lines.setdefault(path, line)
        return path

    def _current(self, path: str) -> str:
        """Return the last table of an array of tables, to which a key inside it belongs."""
        return f"{path}[{self._entries[path] - 1}]" if path in self._entries else path

    def _pair(self, table: str) -> None:
        line, path = self._line(), table
        for part in self._key():
            path = _join(path, part)
            self.lines.setdefault(path, line)
        self._at += 1  # the equals sign
        self._skip()
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip()
            found = _BARE_KEY.match(self._text, self._at) or _STRING.match(self._text, self._at)
            assert found is not None, "tomllib accepted the text"
            parts.append(found[0].strip("\"'"))
            self._at = found.end()
            self._skip()
            if not self._next("."):
                return parts
            self._at += 1

    def _value(self, path: str) -> None:
        if self._next("["):
            self._list(path)
        elif self._next("{"):
            self._inline_table(path)
        else:
            found = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
            assert found is not None, "tomllib accepted the text"
            self._at = found.end()

    def _list(self, path: str) -> None:
        self._at += 1
        self._skip()
        number = 0
        while not self._next("]"):
            self.lines.setdefault(f"{path}[{number}]", self._line())
            self._value(f"{path}[{number}]")
            number += 1
            self._skip_comma()
        self._at += 1

    def _inline_table(self, path: str) -> None:
        self._at += 1
        self._skip()
        while not self._next("}"):
            self._pair(path)
            self._skip_comma()
        self._at += 1

    def _skip_comma(self) -> None:
        self._skip()
        if self._next(","):
            self._at += 1
            self._skip()

    def _skip(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        self._at = self._at if blank is None else blank.end()

    def _next(self, char: str) -> bool:
        return self._text.startswith(char, self._at)

    def _line(self) -> int:
        return bisect_right(self._breaks, self._at) + 1


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
