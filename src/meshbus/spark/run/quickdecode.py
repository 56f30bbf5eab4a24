"""Decode text and JSON without Spark, as far as that needs no parser: what is surely valid only gets two more columns.

`value` of such a row is its payload as it is, so all that decoding does is to check it, and spark/lake/jsoncheck.py does
that in less than a microsecond. The rest goes to the folder of undecoded rows, which spark/lake/decode.py reads. Files are
read, checked and written by threads: none of the three needs the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from meshbus import jit
from meshbus.log.payload import Codec
from meshbus.log.schema import arrow_schema
from meshbus.spark.lake.codec import Declaration, Form, Stored, codec_of, form_of
from meshbus.spark.lake.jsoncheck import surely_valid
from meshbus.spark.lake.tableschema import SILVER_EVENTS
from meshbus.spark.run.rowsfile import RowsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_THREADS = 8
"""Each holds a few row groups in memory."""


def quick_form(rules: Sequence[Declaration | Stored | None]) -> Form | None:
    """Return the form of payloads that are decoded here; None if there are several, or if Spark has to decode them."""
    quick = {Codec.UTF8, Codec.JSON} if jit.available() else set()
    declared = rules[0]
    if len(rules) > 1 or declared is None or codec_of(declared) not in quick:
        return None
    return form_of(declared)


class QuickDecoder:
    """Writes decoded rows to one folder, and rows for Spark to another; everything is written at the end of the block."""

    def __init__(self, decoded: Path, undecoded: Path) -> None:
        self._decoded, self._undecoded = decoded, undecoded
        self._rows = RowsFile(decoded / "decoded.parquet")
        self._threads = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), "meshbus-decode")
        self._running: list[Future[None]] = []

    def decode(self, rows: Any, form: Form) -> Any:
        """Write the rows that can be decoded here, and return the others."""
        sure = _surely_valid(rows, form)
        self._rows.write(_decoded(_chosen(rows, sure), form))
        return _chosen(rows, ~sure)

    def decode_file(self, name: str, read: Callable[[], Iterable[Any]], form: Form, fresh: NDArray[np.bool_]) -> None:
        """Write the rows of tables of which `fresh` tells which to take, to files of this name in both folders."""
        self._running.append(self._threads.submit(self._decode_file, name, read, form, fresh))

    def _decode_file(self, name: str, read: Callable[[], Iterable[Any]], form: Form, fresh: NDArray[np.bool_]) -> None:
        at = 0
        with RowsFile(self._decoded / name) as decoded, RowsFile(self._undecoded / name) as undecoded:
            for table in read():
                rows = _chosen(table, fresh[at : at + len(table)])
                at += len(table)
                sure = _surely_valid(rows, form)
                decoded.write(_decoded(_chosen(rows, sure), form))
                undecoded.write(_chosen(rows, ~sure))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Also after an error: the caller removes the folders, so nothing may write to them any more.
        self._threads.shutdown(wait=True, cancel_futures=error is not None)
        self._rows.__exit__(kind, error, trace)
        if error is None:
            for one in self._running:
                one.result()


def _surely_valid(rows: Any, form: Form) -> NDArray[np.bool_]:
    chunks = rows["payload"].chunks
    return np.concatenate([np.zeros(0, np.bool_), *(surely_valid(form, chunk) for chunk in chunks)])


def _chosen(rows: Any, which: NDArray[np.bool_]) -> Any:
    """Return some rows of a table, without a copy if these are all or none."""
    import pyarrow as pa

    if which.all():
        return rows
    return rows.filter(pa.array(which)) if which.any() else rows.slice(0, 0)


def _decoded(rows: Any, form: Form) -> Any:
    """Return rows as those of silver.events."""
    import pyarrow as pa

    text = pa.string()
    # The bytes are known to be UTF-8, so they are not copied.
    value = pa.chunked_array([chunk.view(text) for chunk in rows["payload"].chunks], text)
    codec = pa.repeat(pa.scalar(form.codec.value, text), len(rows))
    return pa.Table.from_arrays([*rows.columns, codec, value], schema=arrow_schema(SILVER_EVENTS, dictionaries=False))
