"""Find the payloads that are surely valid JSON with the declared fields, without the interpreter's lock.

Nearly all payloads of a channel are ordinary: what spark/lake/decode.py would accept unchanged. A loop that reads each byte
once can tell, in a fraction of the time of a parser that builds values. It answers *yes* or *not sure*, and never yes for
a payload that spark/lake/decode.py refuses. What it is not sure of is decoded by Spark, which has the last word and the
sentence for quarantine; so it may be narrow. Not sure are, besides payloads that are wrong: keys with escapes, more than
`DEEPEST` levels or `MOST_KEYS` keys, integers of more than 18 digits and `-0`, exponents of more than two digits (none
at all for FLOAT), surrogate pairs by escapes, and times before the year 1000 or with the largest offsets.

The plan of the fields is made by spark/lake/jsonplan.py; single values are read by spark/lake/jsonvalues.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus import jit
from meshbus.log.payload import Codec
from meshbus.spark.lake.jsonplan import (
    ANY,
    ARRAY,
    COUNT,
    FIRST,
    KIND,
    MAP,
    NAME_AT,
    NAME_SIZE,
    NEEDED,
    NODE,
    REQUIRED,
    ROOT,
    STRUCT,
    Plan,
    plan_of,
)
from meshbus.spark.lake.jsonreference import DEEPEST, LARGEST, MOST_KEYS, accepts
from meshbus.spark.lake.jsonvalues import character, scalar_end, skip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshbus.spark.lake.codec import Form

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.int64]
    Offsets = NDArray[np.int32]
    Answers = NDArray[np.bool_]

_QUOTE, _COMMA, _COLON, _BACKSLASH, _OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY = b'",:\\{}['
_OWNER, _CLOSES, _KEYS, _MISSING, _NEXT = range(5)
"""Columns of the stack of open objects and arrays: node, closing bracket, number of keys when it was opened, required fields
that are missing, and the field that is expected next."""
_HASH_START, _HASH_FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def surely_valid(form: Form, payloads: Any) -> Answers:
    """Return for each payload of an Arrow array of binary whether it is surely valid as json or utf8.

    All are not sure for other codecs, and where loops cannot be compiled.
    """
    count = len(payloads)
    sure = np.zeros(count, np.bool_)
    if form.codec not in {Codec.JSON, Codec.UTF8} or not jit.available() or payloads.null_count or not count:
        return sure
    _, places, content = payloads.buffers()
    offsets = np.frombuffer(places, np.int32, count + 1, payloads.offset * 4)
    # An empty buffer may be missing.
    data = np.frombuffer(content if content is not None and content.size else b"\0", np.uint8)
    for array in (offsets, data):
        array.flags.writeable = False  # always, because numba compiles a loop again for a writable array
    if form.codec is Codec.UTF8:
        _check_text.run(data, offsets, sure)
    else:
        _check_json.run(data, offsets, *plan_of(form.fields), sure)
    return sure


# ── text ────────────────────────────────────────────────────────────────────────────────────


def _check_text_reference(data: Bytes, offsets: Offsets, sure: Answers) -> None:
    for row in range(len(sure)):
        try:
            data[offsets[row] : offsets[row + 1]].tobytes().decode()
            sure[row] = True
        except UnicodeDecodeError:
            sure[row] = False


@jit.helper
def _edges(offsets: Any, row: int) -> tuple[Any, Any]:
    return np.int64(offsets[row]), np.int64(offsets[row + 1])


@jit.kernel(_check_text_reference)
def _check_text(data: Bytes, offsets: Offsets, sure: Answers) -> None:
    for row in range(len(sure)):
        at, end = _edges(offsets, row)
        while at < end:
            size = 1 if data[at] < 0x80 else character(data, at, end)
            if not size:
                break
            at += size
        sure[row] = at == end


# ── json ────────────────────────────────────────────────────────────────────────────────────


def _check_json_reference(
    data: Bytes, offsets: Offsets, nodes: Numbers, fields: Numbers, names: Bytes, sure: Answers
) -> None:
    for row in range(len(sure)):
        sure[row] = accepts(data[offsets[row] : offsets[row + 1]].tobytes(), Plan(nodes, fields, names))


@jit.helper
def _add_key(data: Any, at: int, end: int, keys: Any, first: int, used: int) -> int:
    """Note the key that begins at `at`, if it is new and simple; return the place of its second quote, or -1."""
    if at >= end or data[at] != _QUOTE or used == len(keys):
        return -1
    found = _HASH_START
    at += 1
    while at < end and data[at] != _QUOTE:
        byte = data[at]
        size = int(byte >= 0x20 and byte != _BACKSLASH) if byte < 0x80 else character(data, at, end)
        if not size:
            return -1
        for place in range(at, at + size):
            found = (found ^ np.uint64(data[place])) * _HASH_FACTOR
        at += size
    if at >= end:
        return -1
    for place in range(first, used):
        if keys[place] == found:  # equal, or nearly impossible
            return -1
    keys[used] = found
    return at


@jit.helper
def _find_field(data: Any, at: int, end: int, nodes: Any, fields: Any, names: Any, stack: Any, top: int) -> Any:
    """Return the field of the innermost object, which is a struct, that has a name, or -1; note that it is there."""
    owner, size = stack[top, _OWNER], end - at
    count = nodes[owner, COUNT]
    for step in range(count):
        # In the order of the schema from the field after the last one: usually the first try is right.
        place = stack[top, _NEXT] + step
        if place >= count:
            place -= count
        field = nodes[owner, FIRST] + place
        if fields[field, NAME_SIZE] == size and _same(data, at, names, fields[field, NAME_AT], size):
            stack[top, _NEXT] = place + 1
            stack[top, _MISSING] -= fields[field, NEEDED]
            return field
    return -1


@jit.helper
def _same(data: Any, at: int, names: Any, name: int, size: int) -> bool:
    place = 0
    while place < size and data[at + place] == names[name + place]:
        place += 1
    return place == size


@jit.helper
def _after_colon(data: Any, at: int, end: int) -> int:
    """Return where the value of a key begins; the end of the payload if there is none."""
    at = skip(data, at, end)
    return skip(data, at + 1, end) if at < end and data[at] == _COLON else end


@jit.helper
def _opens(kind: int, byte: int) -> bool:
    if byte == _OPEN_OBJECT:
        return kind in (ANY, MAP, STRUCT)
    return byte == _OPEN_ARRAY and kind in (ANY, ARRAY)


@jit.helper
def _accepts(data: Any, at: int, end: int, nodes: Any, fields: Any, names: Any, stack: Any, keys: Any) -> bool:
    """Return whether a payload is surely valid."""
    # Elements by two numbers, never rows: numba counts references to rows.
    top, used, node, needed = -1, 0, ROOT, nodes[ROOT, KIND] != ANY
    at = skip(data, at, end)
    while at < end:  # a value begins
        byte = data[at]
        opened = byte in (_OPEN_OBJECT, _OPEN_ARRAY)
        if opened:
            top += 1
            if top == DEEPEST or not _opens(nodes[node, KIND], byte):
                return False
            stack[top, _OWNER], stack[top, _CLOSES] = node, byte + 2  # brackets are two apart in ASCII
            stack[top, _KEYS], stack[top, _MISSING], stack[top, _NEXT] = used, nodes[node, REQUIRED], 0
            at += 1
        else:
            at = scalar_end(data, at, end, nodes, node, needed)
            if at < 0:
                return False
        at = skip(data, at, end)
        while top >= 0 and at < end and data[at] == stack[top, _CLOSES]:
            if stack[top, _MISSING]:
                return False
            used, opened = stack[top, _KEYS], False
            top -= 1
            at = skip(data, at + 1, end)
        if top < 0:
            return at == end
        if not opened:
            if at >= end or data[at] != _COMMA:
                return False
            at = skip(data, at + 1, end)
        node, needed = nodes[stack[top, _OWNER], FIRST], False  # what an array or a map holds
        if stack[top, _CLOSES] == _CLOSE_OBJECT:
            stop = _add_key(data, at, end, keys, stack[top, _KEYS], used)
            if stop < 0:
                return False
            used += 1
            if nodes[stack[top, _OWNER], KIND] == STRUCT:
                field = _find_field(data, at + 1, stop, nodes, fields, names, stack, top)
                node, needed = (fields[field, NODE], fields[field, NEEDED] != 0) if field >= 0 else (0, False)
            at = _after_colon(data, stop + 1, end)
    return False


@jit.kernel(_check_json_reference)
def _check_json(data: Bytes, offsets: Offsets, nodes: Numbers, fields: Numbers, names: Bytes, sure: Answers) -> None:
    stack, keys = np.empty((DEEPEST, 5), np.int64), np.empty(MOST_KEYS, np.uint64)
    for row in range(len(sure)):
        at, end = _edges(offsets, row)
        sure[row] = end - at <= LARGEST and _accepts(data, at, end, nodes, fields, names, stack, keys)
