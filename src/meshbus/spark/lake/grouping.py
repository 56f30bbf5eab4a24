"""Group the rows of Arrow tables, and compute sums, percentiles and the latest known facts of groups.

Gold tables and counts are computed with these functions: by Arrow where it has an aggregate, and otherwise by numpy over
the numbers of groups. Null is a value of a key like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Measures: TypeAlias = Mapping[str, tuple[Any, str]]
"""By the name of a result: a column, and a function of Arrow; `count_all` has no column."""


def added(keys: Mapping[str, Any], measures: Measures) -> Any:
    """Group columns by keys, and return the keys of each group with its measures."""
    import pyarrow as pa

    valued = {name: values for name, (values, _) in measures.items() if values is not None}
    made = {name: how if values is None else f"{name}_{how}" for name, (values, how) in measures.items()}
    wanted = [([] if values is None else name, how) for name, (values, how) in measures.items()]
    # In this thread: the caller has several.
    grouped = pa.table({**keys, **valued}).group_by(list(keys), use_threads=False).aggregate(wanted)
    return grouped.select([*keys, *made.values()]).rename_columns([*keys, *measures])


def stacked(*tables: Any) -> Any:
    """Return the rows of several tables as one; a column that a table does not have is null in its rows."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="default")


def numbered(rows: Any, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each row's group, of rows with equal values in some columns: from 0, by their first rows."""
    import pyarrow as pa

    numbers = np.zeros(len(rows), np.int64)
    for name in names:
        column = rows[name]
        if _is_constant(column):
            continue
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        # Encoded again, because the product of all sizes might exceed 64 bits.
        numbers = numbers * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        numbers = pa.array(numbers).dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def _is_constant(column: Any) -> bool:
    """Return whether all values are equal, which is much cheaper to find out than their groups."""
    import pyarrow.compute as pc

    if column.null_count:
        return bool(column.null_count == len(column))
    bounds = pc.min_max(column).as_py()
    return bool(bounds["min"] == bounds["max"])


class Groups:
    """The groups of a table's rows that have equal keys."""

    def __init__(self, rows: Any, keys: Sequence[str]) -> None:
        self.numbers = numbered(rows, keys)
        """The group of each row."""
        self.firsts = np.zeros(int(self.numbers.max(initial=-1)) + 1, np.int64)
        """The first row of each group."""
        self.firsts[self.numbers[::-1]] = np.arange(len(rows))[::-1]
        self.keys = rows.select(keys).take(self.firsts)
        """The keys of each group."""

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.firsts)

    def add_up(self, measures: Measures) -> Any:
        """Return the keys of each group with its measures."""
        import pyarrow as pa

        made = added({"_group": pa.array(self.numbers)}, measures).sort_by("_group")
        found = self.keys
        for name in measures:
            found = found.append_column(name, made[name])
        return found

    def percentiles(self, values: Any, rows: Any, shares: Sequence[float]) -> list[Any]:
        """Return a column for each share: the percentile of values that count `rows` times; null without values.

        Between two values it is interpolated, as by Spark's `percentile` and numpy.
        """
        import pyarrow as pa

        known = values.is_valid().to_numpy()
        number, value, weight = self.numbers[known], values.drop_null().to_numpy(), rows.to_numpy()[known]
        order = np.lexsort((value, number))
        number, value, reach = number[order], value[order], np.cumsum(weight[order])
        total = np.zeros(len(self), np.int64)
        np.add.at(total, number, weight[order])
        before = np.cumsum(total) - total
        there = np.flatnonzero(total)
        found = []
        for share in shares:
            rank = share * (total[there] - 1)
            low, high = (
                value[np.searchsorted(reach, before[there] + whole.astype(np.int64), side="right")]
                for whole in (np.floor(rank), np.ceil(rank))
            )
            made = np.zeros(len(self))
            made[there] = low + (high - low) * (rank - np.floor(rank))
            found.append(pa.array(made, mask=total == 0))
        return found


def latest(
    whose: NDArray[np.int64], at: NDArray[np.int64], of: NDArray[np.int64], until: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find for each question the last fact until a time, and the next one after it; the place is -1 if there is none.

    Facts, in the order of their owner and time, have an owner `whose` and a time `at`; questions are about an owner `of`
    and a time `until`, in any order.
    """
    order = np.lexsort((np.repeat([0, 1], [len(whose), len(of)]), np.append(at, until), np.append(whose, of)))
    last = np.maximum.accumulate(np.where(order < len(whose), order, -1))
    before = np.empty(len(of), np.int64)
    asks = order >= len(whose)
    before[order[asks] - len(whose)] = last[asks]
    after = before + 1
    # Beyond the first and the last fact is none; what is there belongs to nobody who is asked about.
    owners = np.append(whose, [-1, -1])
    return np.where(owners[before] == of, before, -1), np.where(owners[after] == of, after, -1)
