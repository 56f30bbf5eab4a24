"""Strings, numbers and other single values of JSON, read by compiled loops: where each ends, and whether a type accepts it.

A place is an index into the bytes of many payloads; `end` is that of the end of the payload. All answers err on the side of
refusing, see spark/lake/jsoncheck.py. For callers other than loops these are plain functions.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from meshbus import jit
from meshbus.spark.lake.jsonplan import (
    ANY,
    BINARY,
    BOOLEAN,
    COUNT,
    DATE,
    DECIMAL,
    DOUBLE,
    FIRST,
    FLOAT,
    HIGH,
    INTEGER,
    KIND,
    LOW,
    STRING,
    TIMESTAMP,
)

MOST_DIGITS: Final = 100
"""Of a number: with an exponent of two digits it is far below the largest double."""
INTEGER_DIGITS: Final = 18
"""Fit into 64 bits, whatever they are."""
FLOAT_DIGITS: Final = 38
"""Before the point: fit into 32 bits as well."""
FIRST_YEAR, LAST_YEAR = 1000, 9998
WIDEST_HOURS: Final = 17
"""Of the offset of a time zone."""
_QUOTE, _COLON, _MINUS, _PLUS, _POINT, _BACKSLASH, _EQUALS, _SLASH = b'":-+.\\=/'
_ZERO, _NINE, _LETTER_T, _LETTER_Z, _LETTER_U, _SMALL_E = b"09TZue"
_ESCAPED = np.frombuffer(b'"\\/bfnrt', np.uint8).copy()
_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8).copy() for word in (b"true", b"false", b"null"))


@jit.helper
def skip(data: Any, at: int, end: int) -> int:
    """Return the place of the next byte that is no space."""
    while at < end and (data[at] == 0x20 or 9 <= data[at] <= 10 or data[at] == 13):
        at += 1
    return at


@jit.helper
def character(data: Any, at: int, end: int) -> int:
    """Return the size of a UTF-8 character that is not ASCII, or 0 if there is none."""
    first = data[at]
    if first < 0xC2 or first > 0xF4:
        return 0
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > end:
        return 0
    for place in range(at + 1, at + size):
        if data[place] & 0xC0 != 0x80:
            return 0
    second = data[at + 1]
    # Longer forms than necessary, halves of surrogate pairs, and what is beyond Unicode.
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return size


@jit.helper
def _escape(data: Any, at: int, end: int) -> int:
    """Return the size of an escape whose backslash is before `at`, or 0 if it is none, or half of a surrogate pair."""
    if at < end and data[at] == _LETTER_U:
        if at + 5 > end:
            return 0
        value = 0
        for place in range(at + 1, at + 5):
            byte: Any = np.int64(data[place])
            small = byte | 0x20
            if _ZERO <= byte <= _NINE:
                value = value * 16 + byte - _ZERO
            elif 0x61 <= small <= 0x66:
                value = value * 16 + small - 0x61 + 10
            else:
                return 0
        return 0 if 0xD800 <= value <= 0xDFFF else 6
    if at < end:
        for known in _ESCAPED:
            if data[at] == known:
                return 2
    return 0


@jit.helper
def _string_end(data: Any, at: int, end: int) -> int:
    """Return the place of the quote that ends a string whose text begins at `at`, or -1."""
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte == _BACKSLASH:
            size = _escape(data, at + 1, end)
        elif byte < 0x80:
            size = int(byte >= 0x20)
        else:
            size = character(data, at, end)
        if not size:
            return -1
        at += size
    return -1


@jit.helper
def _word_end(data: Any, at: int, end: int, word: Any) -> int:
    if at + len(word) > end:
        return -1
    for place in range(len(word)):
        if data[at + place] != word[place]:
            return -1
    return at + len(word)


@jit.helper
def _digits_end(data: Any, at: int, end: int) -> int:
    while at < end and _ZERO <= data[at] <= _NINE:
        at += 1
    return at


@jit.helper
def _value_of(data: Any, at: int, end: int) -> int:
    """Return the number that digits mean, or -1 if one of them is none."""
    value = 0
    for place in range(at, end):
        digit: Any = np.int64(data[place]) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@jit.helper
def _number_end(data: Any, at: int, end: int, nodes: Any, node: int) -> int:
    """Return the end of a number that a node accepts, or -1."""
    kind, begin = nodes[node, KIND], at
    if at < end and data[at] == _MINUS:
        at += 1
    first = at
    at = _digits_end(data, at, end)
    digits = at - first
    if not digits or (digits > 1 and data[first] == _ZERO):
        return -1
    whole_end = at
    if at < end and data[at] == _POINT:
        at = _digits_end(data, at + 1, end)
        if at == whole_end + 1:
            return -1
    if digits + max(at - whole_end - 1, 0) > MOST_DIGITS:
        return -1
    before = at
    if at < end and data[at] | 0x20 == _SMALL_E:
        at += 1
        if at < end and (data[at] in (_PLUS, _MINUS)):
            at += 1
        exponent = at
        at = _digits_end(data, at, end)
        if not 1 <= at - exponent <= 2:
            return -1
    if kind in (ANY, DOUBLE):
        return at
    if kind == FLOAT:
        return at if at == before and digits <= FLOAT_DIGITS else -1
    if kind not in (INTEGER, DECIMAL) or at != whole_end or digits > INTEGER_DIGITS:
        return -1
    value = _value_of(data, first, whole_end)
    if first > begin:
        if not value:
            return -1
        value = -value
    return at if nodes[node, LOW] <= value <= nodes[node, HIGH] else -1


@jit.helper
def _is_date(data: Any, at: int) -> bool:
    year, month, day = _value_of(data, at, at + 4), _value_of(data, at + 5, at + 7), _value_of(data, at + 8, at + 10)
    if data[at + 4] != _MINUS or data[at + 7] != _MINUS or not FIRST_YEAR <= year <= LAST_YEAR:
        return False
    if not 1 <= month <= 12:
        return False
    if month == 2:
        most = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    else:
        most = 30 if month in (4, 6, 9, 11) else 31
    return 1 <= day <= most


@jit.helper
def _is_clock(data: Any, at: int, most_hours: int) -> bool:
    """Return whether five bytes are hours and minutes."""
    hours, minutes = _value_of(data, at, at + 2), _value_of(data, at + 3, at + 5)
    return data[at + 2] == _COLON and 0 <= hours <= most_hours and 0 <= minutes <= 59


@jit.helper
def _is_time(data: Any, at: int, end: int) -> bool:
    """Return whether a string goes on with `T` and a time of day with a zone; it has at least ten more bytes."""
    if data[at] != _LETTER_T or not _is_clock(data, at + 1, 23) or data[at + 6] != _COLON:
        return False
    if not 0 <= _value_of(data, at + 7, at + 9) <= 59:
        return False
    at += 9
    if data[at] == _POINT:
        begin = at + 1
        at = _digits_end(data, begin, end)
        if not 1 <= at - begin <= 6:
            return False
    if at + 1 == end:
        return bool(data[at] == _LETTER_Z)
    signed = at + 6 == end and (data[at] in (_PLUS, _MINUS))
    return signed and _is_clock(data, at + 1, WIDEST_HOURS)


@jit.helper
def _is_base64(data: Any, at: int, end: int) -> bool:
    if (end - at) % 4:
        return False
    last = end
    while last > at and end - last < 2 and data[last - 1] == _EQUALS:
        last -= 1
    for place in range(at, last):
        byte = data[place]
        small = byte | 0x20
        if not (0x61 <= small <= 0x7A or _ZERO <= byte <= _NINE or byte in (_PLUS, _SLASH)):
            return False
    return True


@jit.helper
def _is_decimal(data: Any, at: int, end: int, whole: int, part: int) -> bool:
    """Return whether a string is a number with at most so many digits before and after the point."""
    if at < end and data[at] == _MINUS:
        at += 1
    begin = at
    at = _digits_end(data, at, end)
    if whole:
        if not 1 <= at - begin <= whole:
            return False
    elif at - begin != 1 or data[begin] != _ZERO:
        return False
    if at == end:
        return True
    if data[at] != _POINT or not part:
        return False
    begin = at + 1
    return _digits_end(data, begin, end) == end and 1 <= end - begin <= part


@jit.helper
def _text_fits(data: Any, at: int, end: int, nodes: Any, node: int) -> bool:
    """Return whether a node accepts a string."""
    kind = nodes[node, KIND]
    if kind in (ANY, STRING):
        return True
    if kind == DATE:
        return end - at == 10 and _is_date(data, at)
    if kind == TIMESTAMP:
        return end - at >= 20 and _is_date(data, at) and _is_time(data, at + 10, end)
    if kind == BINARY:
        return _is_base64(data, at, end)
    return kind == DECIMAL and _is_decimal(data, at, end, nodes[node, FIRST], nodes[node, COUNT])


@jit.helper
def scalar_end(data: Any, at: int, end: int, nodes: Any, node: int, needed: bool) -> int:
    """Return the end of a value that is no object and no array, or -1."""
    byte, kind = data[at], nodes[node, KIND]
    if byte == _QUOTE:
        stop = _string_end(data, at + 1, end)
        return stop + 1 if stop >= 0 and _text_fits(data, at + 1, stop, nodes, node) else -1
    if byte == _NULL[0]:
        return -1 if needed else _word_end(data, at, end, _NULL)
    if byte == _TRUE[0] or byte == _FALSE[0]:
        if kind not in (ANY, BOOLEAN):
            return -1
        return _word_end(data, at, end, _TRUE if byte == _TRUE[0] else _FALSE)
    return _number_end(data, at, end, nodes, node)
