"""The same decision as the loop of spark/lake/jsoncheck.py, as regular expressions and a recursion.

Tests compare the two. It is not used otherwise: where loops cannot be compiled, Spark decodes everything.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from meshbus.spark.lake.fields import DATE_PATTERN, TIME_PATTERN
from meshbus.spark.lake.jsonplan import (
    ANY,
    ARRAY,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    FIRST,
    FLOAT,
    INTEGER,
    KIND,
    MAP,
    ROOT,
    STRING,
    STRUCT,
    TIMESTAMP,
    Plan,
)
from meshbus.spark.lake.jsonvalues import FIRST_YEAR, FLOAT_DIGITS, INTEGER_DIGITS, LAST_YEAR, MOST_DIGITS, WIDEST_HOURS

DEEPEST: Final = 32
"""Levels of objects and arrays."""
MOST_KEYS: Final = 128
"""Of all open objects together: each key is compared with those before it."""
LARGEST: Final = 1 << 20
"""Bytes of a payload: far below all limits of Spark's parser."""


def accepts(payload: bytes, plan: Plan) -> bool:
    """Return whether a payload is surely valid."""
    return len(payload) <= LARGEST and _Reference(payload, plan).accepts()


class _Doubt(Exception):
    """The payload is not surely valid."""


class _Reference:
    """The rest of a payload, while it is read."""

    _space = re.compile(rb"[ \t\n\r]*")
    _string = re.compile(
        r'"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})*)"'.encode("ascii"), re.DOTALL
    )
    _key = re.compile(rb'"([^"\\\x00-\x1f]*)"', re.DOTALL)
    _number = re.compile(rb"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][+-]?[0-9]{1,2}(?![0-9]))?")
    _word = re.compile(rb"true|false|null")

    def __init__(self, payload: bytes, plan: Plan) -> None:
        self._payload, self._nodes, self._at, self._keys = payload, plan.nodes, 0, 0
        self._fields = plan.fields.tolist()
        self._names = [plan.names[at : at + size].tobytes() for at, size, *_ in self._fields]

    def accepts(self) -> bool:
        try:
            self._payload.decode()
            self._space_here()
            self._value(ROOT, 0, needed=self._nodes[ROOT, KIND] != ANY)
            self._space_here()
        except (_Doubt, UnicodeDecodeError):
            return False
        return self._at == len(self._payload)

    def _take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        found = pattern.match(self._payload, self._at)
        if found is None:
            raise _Doubt
        self._at = found.end()
        return found

    def _space_here(self) -> None:
        self._take(self._space)

    def _is_next(self, character: bytes) -> bool:
        """Step over a character and the space after it, if it is next."""
        found = self._payload.startswith(character, self._at)
        if found:
            self._at += 1
            self._space_here()
        return found

    def _value(self, node: int, depth: int, *, needed: bool) -> None:
        kind, *rest = self._nodes[node].tolist()
        match self._payload[self._at : self._at + 1]:
            case b"{" if kind in {ANY, MAP, STRUCT} and depth < DEEPEST:
                self._object(node, depth + 1)
            case b"[" if kind in {ANY, ARRAY} and depth < DEEPEST:
                self._array(node, depth + 1)
            case b'"':
                self._text(kind, rest, self._take(self._string)[1])
            case b"t" | b"f" | b"n":
                word = self._take(self._word)[0]
                _sure(not needed if word == b"null" else kind in {ANY, BOOLEAN})
            case _:
                self._amount(kind, rest, self._take(self._number))

    def _array(self, node: int, depth: int) -> None:
        self._is_next(b"[")
        while not self._payload.startswith(b"]", self._at):
            self._value(self._nodes[node, FIRST].item(), depth, needed=False)
            self._space_here()
            if not self._is_next(b","):
                break
            _sure(not self._payload.startswith(b"]", self._at))
        _sure(self._payload.startswith(b"]", self._at))
        self._at += 1

    def _object(self, node: int, depth: int) -> None:
        kind, _, _, first, count, missing = self._nodes[node].tolist()
        here = dict(zip(self._names[first : first + count], self._fields[first : first + count], strict=True))
        before, seen = self._keys, set()
        self._is_next(b"{")
        while not self._payload.startswith(b"}", self._at):
            key = self._take(self._key)[1]
            _sure(key not in seen and self._keys < MOST_KEYS)
            self._keys += 1
            seen.add(key)
            self._space_here()
            _sure(self._is_next(b":"))
            _, _, child, needed = here.get(key, (0, 0, first if kind == MAP else 0, 0)) if kind != ANY else (0,) * 4
            missing -= needed
            self._value(child, depth, needed=bool(needed))
            self._space_here()
            if not self._is_next(b","):
                break
            _sure(not self._payload.startswith(b"}", self._at))
        _sure(self._payload.startswith(b"}", self._at) and (kind != STRUCT or not missing))
        self._at += 1
        self._keys = before

    def _amount(self, kind: int, limits: list[int], found: re.Match[bytes]) -> None:
        whole, fraction, exponent = found.groups()
        digits = len(whole.removeprefix(b"-"))
        _sure(digits + len(fraction or b".") - 1 <= MOST_DIGITS)
        if kind in {INTEGER, DECIMAL}:
            _sure(fraction is exponent is None and digits <= INTEGER_DIGITS and whole != b"-0")
            _sure(limits[0] <= int(whole) <= limits[1])
        elif kind == FLOAT:
            _sure(exponent is None and digits <= FLOAT_DIGITS)
        else:
            _sure(kind in {ANY, DOUBLE})

    @staticmethod
    def _text(kind: int, limits: list[int], text: bytes) -> None:
        whole, part = limits[2:4]
        if kind == DECIMAL:
            digits = rb"[0-9]{1,%d}" % whole if whole else rb"0"
            _sure(re.fullmatch(rb"-?" + digits + (rb"(\.[0-9]{1,%d})?" % part if part else b""), text) is not None)
        elif kind == BINARY:
            _sure(len(text) % 4 == 0 and re.fullmatch(rb"[A-Za-z0-9+/]*={0,2}", text) is not None)
        elif kind in {DATE, TIMESTAMP}:
            pattern = DATE_PATTERN if kind == DATE else TIME_PATTERN
            _sure(re.fullmatch(pattern.encode(), text) is not None)
            try:
                year = dt.datetime.fromisoformat(text.decode()).year
            except ValueError:
                raise _Doubt from None
            _sure(FIRST_YEAR <= year <= LAST_YEAR)
            if kind == TIMESTAMP and not text.endswith(b"Z"):
                _sure(int(text[-5:-3]) <= WIDEST_HOURS)
        else:
            _sure(kind in {ANY, STRING})


def _sure(condition: bool) -> None:
    if not condition:
        raise _Doubt
