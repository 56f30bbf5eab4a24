"""Ranges of consecutive numbers in the rows of logs (rows of silver.runs): what is there, what is missing or late.

spark/lake/duplicates.py tells from them which events silver has already, and gold.gaps what is missing. The numbers of a
log nearly always count up, so they are compared with their neighbors and sorted only if they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.grouping import numbered
from meshbus.spark.lake.intervals import range_starts
from meshbus.spark.lake.numbering import Numbering, any_of
from meshbus.spark.lake.tableschema import RUNS
from meshbus.wire.messages.reliable import CLOCK_NUMBERS, FIRST_SEQUENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

Run: TypeAlias = Mapping[str, Any]
"""A row of silver.runs."""

BY_LOG, BY_PUBLISHER, BY_STREAM, UNNUMBERED = "log", "publisher", "stream", "unnumbered"
"""Kinds of ranges: positions in a log, numbers that publishers assign to their events, packets of a best-effort stream,
and positions of events that have neither a number nor a packet, so that nothing tells whether others are missing."""
COLUMNS = ("origin", "seq", "pub_seq", "session_id", "packet_seq", "event_index")
"""The columns of bronze.events that `runs_of` needs."""
WHOSE = ("kind", "channel", "log_id", "origin", "session_id")
"""The columns of silver.runs that say whose numbers those of a range are: only such are compared with each other."""

_MEASURED = ("first", "last", "events", "reordered")
_NOTHING = np.iinfo(np.int64).min
"""Lower than any number: the highest number of an owner that has none."""


def runs_of(
    channel: str,
    log: Numbering,
    rows: Any,
    highest: Mapping[tuple[object, ...], int],
    new: NDArray[np.bool_] | None = None,
) -> Any:
    """Return the ranges of consecutive rows of one log, an Arrow table with COLUMNS, as an Arrow table of silver.runs.

    `highest` has the highest number so far of each owner, by the values of WHOSE: a number below it counts as reordered.
    The publishers of a shared log are numbered by their positions in it, so its own range says all about them. Positions in
    a replicated log are in two ranges: those that arrived in this log, without an origin, and in one of the replicated log
    those of `new` rows (by default all), because another log may have the others.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_numbered = pc.is_valid(rows["pub_seq"])
    # A reliable stream without numbers loses nothing, but its sequences count more than packets of events.
    packet = rows["packet_seq"]
    plain = pc.and_(pc.greater_equal(packet, 0), pc.less(packet, FIRST_SEQUENCE))
    placed = pc.and_(pc.is_valid(rows["session_id"]), pc.is_valid(rows["event_index"]))
    in_stream = pc.fill_null(pc.and_(pc.and_(placed, plain), pc.invert(is_numbered)), False)
    positioned = log.positioned(rows)
    apart = pa.array(any_of(positioned, len(rows)))
    numbered, streamed = _where(rows, pc.and_not(is_numbered, apart)), _where(rows, in_stream)
    numbered = numbered.slice(0, 0) if log.shared else numbered
    clocked = pc.greater_equal(numbered["pub_seq"], CLOCK_NUMBERS)
    session = pc.if_else(clocked, numbered["session_id"], pa.scalar(None, pa.int64()))
    numbered = numbered.set_column(numbered.schema.get_field_index("session_id"), "session_id", session)
    packets = _where(streamed, pc.equal(streamed["event_index"], 0))
    unnumbered = _where(rows, pc.invert(pc.or_(is_numbered, in_stream)))
    own = {"channel": channel, "log_id": log.ids[-1]}
    parts = [
        _ranges(rows, {"kind": BY_LOG, **own}, [], "seq", {}),
        _ranges(numbered, {"kind": BY_PUBLISHER, **own}, ["origin", "session_id"], "pub_seq", highest),
        _ranges(packets, {"kind": BY_STREAM, **own}, ["origin", "session_id"], "packet_seq", highest),
        _ranges(unnumbered, {"kind": UNNUMBERED, **own}, ["origin"], "seq", {}),
    ]
    for log_id, chosen in positioned:
        arrived = _where(rows, pa.array(chosen))
        first = arrived if new is None else _where(rows, pa.array(chosen & new))
        parts += [
            _ranges(arrived, {"kind": BY_PUBLISHER, **own}, [], "pub_seq", highest),
            _ranges(first, {"kind": BY_LOG, "channel": channel, "log_id": log_id}, [], "pub_seq", {}),
        ]
    return pa.concat_tables(parts)


def _where(rows: Any, condition: Any) -> Any:
    """Return the rows that meet a condition, without a copy if that is all or none, as it nearly always is."""
    import pyarrow.compute as pc

    count = pc.sum(condition).as_py() or 0
    if count in {0, len(rows)}:
        return rows.slice(0, count)
    return rows.filter(condition)


def _ranges(
    rows: Any, fixed: Mapping[str, object], whose: list[str], number: str, highest: Mapping[tuple[object, ...], int]
) -> Any:
    import pyarrow as pa

    schema = arrow_schema(RUNS, dictionaries=False)
    if not len(rows):
        return schema.empty_table()
    groups, owners = groups_of(rows, whose)
    numbers = rows[number].to_numpy()
    made: list[dict[str, object]] = []
    for places, owner in zip(groups, owners, strict=True):
        known = {**fixed, **owner}
        ranges = _ranges_of_one(numbers[places], highest.get(tuple(known.get(name) for name in WHOSE), _NOTHING))
        made += [{**known, **dict(zip(_MEASURED, one, strict=True))} for one in ranges.tolist()]
    return pa.Table.from_pylist(made, schema)


def _ranges_of_one(numbers: NDArray[np.int64], highest: int) -> NDArray[np.int64]:
    """Return the ranges of one owner's numbers, in the order of its log: first, last, events and how many were late."""
    late = numbers < highest
    if not counts_up(numbers):
        before = np.maximum.accumulate(numbers)
        late[1:] |= before[:-1] > numbers[1:]
        order = np.argsort(numbers, kind="stable")
        numbers, late = numbers[order], late[order]
    # Compared and not subtracted: the difference of two extreme numbers exceeds 64 bits.
    begins = (numbers[1:] != numbers[:-1]) & (numbers[1:] != numbers[:-1] + 1)
    starts = np.concatenate(([0], np.flatnonzero(begins) + 1))
    ends = np.append(starts[1:], len(numbers))
    return np.stack(
        (numbers[starts], numbers[ends - 1], ends - starts, np.add.reduceat(late, starts, dtype=np.int64)), 1
    )


def counts_up(numbers: NDArray[np.int64]) -> bool:
    """Return whether each number is higher than the one before."""
    return bool(np.all(numbers[1:] > numbers[:-1]))


def groups_of(rows: Any, names: Sequence[str]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the places of the rows of each group, in order, and the group's values; equal columns make a group."""
    numbers = numbered(rows, names)
    if not numbers.any():
        return [slice(None)], rows.select(names).slice(0, 1).to_pylist() if names else [{}]
    order = np.argsort(numbers, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(numbers))[:-1])
    return groups, rows.select(names).take([int(places[0]) for places in groups]).to_pylist()


def merge_runs(runs: Any) -> Any:
    """Merge ranges that touch or overlap; the counts stay the same, in fewer rows."""
    import pyarrow as pa

    if not len(runs):
        return runs
    groups, owners = groups_of(runs, WHOSE)
    measured = np.stack([runs[name].to_numpy() for name in _MEASURED], 1)
    made = [
        {**owner, **dict(zip(_MEASURED, one, strict=True))}
        for places, owner in zip(groups, owners, strict=True)
        for one in _merged(measured[places]).tolist()
    ]
    return pa.Table.from_pylist(made, arrow_schema(RUNS, dictionaries=False))


def _merged(ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge the ranges of one owner, with the columns of _MEASURED."""
    ranges = ranges[np.lexsort((ranges[:, 1], ranges[:, 0]))]
    firsts, reach = ranges[:, 0], np.maximum.accumulate(ranges[:, 1])
    starts = range_starts(firsts, reach)
    ends = np.append(starts[1:], len(ranges)) - 1
    sums = np.add.reduceat(ranges[:, 2:], starts, axis=0)
    return np.column_stack((firsts[starts], reach[ends], sums))
