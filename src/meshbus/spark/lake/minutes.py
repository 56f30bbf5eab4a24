"""The minutes and hours of times in Arrow columns.

Computed by numpy, from the integers in the columns: the times come from other nodes, and may be of any year.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.spark.lake.tableschema import WINDOW_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

MINUTE_NS = WINDOW_S * 10**9
MINUTE_US = WINDOW_S * 10**6
HOUR_FORMAT = "%Y-%m-%dT%H"
"""The text of an hour, in UTC."""


def start_of_minute(time: Any) -> Any:
    """Return the starts of the minutes of times, in integer microseconds: those are cheaper to group than times."""
    import pyarrow as pa

    return mapped(time.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), lambda us: us // MINUTE_US * MINUTE_US)


def mapped(column: Any, function: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Any:
    """Compute a column from a column of integers; null stays null."""
    import pyarrow as pa

    unknown = column.is_null().to_numpy() if column.null_count else None
    return pa.chunked_array([pa.array(function(column.fill_null(0).to_numpy()), mask=unknown)])


def hours_of(times: Any) -> Any:
    """Return the hours of times as text, such as 2026-11-15T23, each of them made once."""
    import pyarrow as pa

    encoded = times.cast(pa.timestamp("us")).combine_chunks().dictionary_encode()
    texts = np.datetime_as_string(encoded.dictionary.to_numpy().astype("datetime64[h]"))
    return pa.array(texts, pa.string()).take(encoded.indices)


def start_of_hour(hour: str) -> datetime:
    """Return when an hour begins."""
    return datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)
