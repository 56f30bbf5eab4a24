"""Appends of every form, and the rows that a table of them must have, computed one by one."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshbus.log.embedded.blockscan import Parts, survey
from meshbus.log.log import RedexFile
from tests.log.making import CHANNEL, NOW, in_files, open_log

CHASH64 = 0xEC20E8AC7FA5E5D8
"""The canonical hash of CHANNEL, as in the name of its folder."""
_BITS = {"event_index": 31, "src": 32, "dst": 32, "ttl": 15, "hops": 15, "flags": 15, "decision": 15}
"""Bits of what can be given for a column; 64 for the others, and 63 for times and numbers."""
_NULLABLE = ("pub_seq", "ts_ns", "session_id", "stream_id", "packet_seq", "event_index", "decision")
_NAMES = (
    "pub_seq", "origin", "ts_ns", "recv_ts_ns", "session_id", "stream_id", "packet_seq", "event_index", "src", "dst",
    "ttl", "hops", "flags", "decision",
)  # fmt: skip
_COUNTING = ("pub_seq", "packet_seq", "event_index", "ts_ns", "recv_ts_ns")


class Append(NamedTuple):
    """One append: its events, its columns as they are given, and the same as one number or None per event."""

    events: list[bytes]
    columns: dict[str, Any]
    cells: dict[str, list[int | None]]


def varied_appends(seed: int, appends: int, *, most: int = 60) -> list[Append]:
    """Return appends of 1 to `most` events whose columns have random forms."""
    chance = random.Random(seed)
    return [_append(chance, chance.choice((1, 2, 3, chance.randint(1, most)))) for _ in range(appends)]


def write_all(log: RedexFile, appends: list[Append]) -> None:
    """Append everything to a log."""
    for each in appends:
        log.append_batch(each.events, **each.columns)


def surveyed(root: Path, appends: list[Append]) -> Parts:
    """Append everything to a new log, and return the parts of its hot file."""
    with open_log(root) as log:
        write_all(log, appends)
        (view,) = in_files(log).hot
        parts = survey(view)
    assert parts is not None
    return parts


def ranges(rows: int) -> list[tuple[int, int]]:
    """Return some ranges of rows: all, the ends, and those that cut blocks."""
    middle = rows // 2
    return [(0, rows), (0, 1), (rows - 1, rows), (middle, rows), (1, middle + 1), (middle, middle + 1)]


def table_rows(appends: list[Append], log_id: bytes) -> list[dict[str, Any]]:
    """Return the rows of the table `events`, with timestamps as microseconds."""
    rows: list[dict[str, Any]] = []
    for each in appends:
        for number, payload in enumerate(each.events):
            cells = {name: column[number] for name, column in each.cells.items()}
            if "pub_seq" not in each.cells:
                cells["pub_seq"] = len(rows)
            rows.append(_row(len(rows), payload, cells, log_id))
    return rows


def _row(seq: int, payload: bytes, cells: dict[str, int | None], log_id: bytes) -> dict[str, Any]:
    defaults: dict[str, int | None] = {name: None if name in _NULLABLE else 0 for name in _NAMES}
    row = {**defaults, "ts_ns": NOW, "recv_ts_ns": NOW, "recorder": 0, **cells}
    ids = {"origin": 64, "session_id": 64, "stream_id": 64, "packet_seq": 64, "src": 32, "dst": 32}
    for name, bits in ids.items():
        value = row[name]
        row[name] = value - (1 << bits) if value is not None and value >= 1 << bits - 1 else value
    found = {name: row[f"{name}_ns"] for name in ("ts", "recv_ts")}
    times = {name: None if at is None else at // 1000 for name, at in found.items()}
    constant = {"channel": CHANNEL, "log_id": log_id, "chash64": CHASH64 - (1 << 64), "chash": CHASH64 & 0xFFFF}
    return {**row, **times, **constant, "seq": seq, "payload": payload, "headers": None}


def _append(chance: random.Random, count: int) -> Append:
    events = [chance.randbytes(chance.choice((0, 1, 7, 64, 200))) for _ in range(count)]
    columns: dict[str, Any] = {}
    cells: dict[str, list[int | None]] = {}
    for name in chance.sample(_NAMES, chance.randint(0, len(_NAMES))):
        columns[name], cells[name] = _column(chance, name, count)
    return Append(events, columns, cells)


def _column(chance: random.Random, name: str, count: int) -> tuple[Any, list[int | None]]:
    form = chance.choice(("same", "each", "runs", "count", "some", "none"))
    values = _values(chance, name, count, form)
    if form == "same":
        # One publish number is that of the first event.
        return values[0], [values[0] + (number if name == "pub_seq" else 0) for number in range(count)]
    array = np.array(values, np.uint64).view(np.int64) if max(values) >= 1 << 63 else np.array(values, np.int64)
    if form in {"some", "none"} and name in _NULLABLE:
        hidden = [form == "none" or chance.random() < 0.3 for _ in range(count)]
        cells = [None if gone else value for gone, value in zip(hidden, values, strict=True)]
        return (None if form == "none" else np.ma.MaskedArray(array, hidden)), cells
    return array, list(values)


def _values(chance: random.Random, name: str, count: int, form: str) -> list[int]:
    bits = _BITS.get(name, 62 if name in _COUNTING and name != "packet_seq" else 64)
    top = (1 << chance.choice((1, 3, bits))) - count - 1
    first = chance.randint(0, max(top, 0))
    if form == "count" and name in _COUNTING:
        return [first + number for number in range(count)]
    if form == "runs":
        return [first if number % 16 < 9 else max(top, 0) for number in range(count)]
    return [chance.randint(0, max(top, 0)) for _ in range(count)]
