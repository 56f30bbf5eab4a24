"""The Spark sink `meshbus`: rows of a streaming query back into the log of a channel, each batch exactly once.

    query.writeStream.format("meshbus").option("path", "/var/lib/meshbus/log").option("channel", "alerts/summary")
         .option("writerId", "summary").option("checkpointLocation", ...).start()

Workers put their rows into files beside the logs; the driver sorts them, so that a batch that is tried again has the same
order, and appends. Each event carries writer, batch and place in its headers, so the log itself says how much of a batch
it has: after a crash only the rest is appended. The sink takes the log's lock while it appends; a channel that a node has
open for writing belongs to that node. One query per writerId.

Columns: `payload` (required), `ts_ns`, `headers`, and anything else, which only decides the order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from meshbus.errors import ConfigError
from meshbus.log.durability import every_n
from meshbus.log.log import Redex
from meshbus.names.channel import ChannelName

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from meshbus.log.log import RedexFile

STAGING = "_staging"
WRITER, BATCH, PLACE = "meshbus.writer", "meshbus.batch", "meshbus.place"
"""Headers of an event that came from Spark."""

_EVENTS_AT_ONCE = 8_192
_LOOK_BACK = 1_024


class SinkOptions(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What `.option(...)` takes."""

    path: str
    """The folder of the logs."""
    channel: str
    writer_id: str
    """Names this query for ever."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SinkOptions:
        """Check what Spark hands over, whose keys come in any case; raises ConfigError."""
        spelled = {key.lower(): value for key, value in given.items()}
        missing = [name for name in cls.__struct_encode_fields__ if not spelled.get(name.lower())]
        if missing:
            raise ConfigError("option", f"{', '.join(missing)} must be given to write to a log")
        options = cls(path=spelled["path"], channel=spelled["channel"], writer_id=spelled["writerid"])
        ChannelName(options.channel)
        if "/" in options.writer_id:
            raise ConfigError("writerId", f"{options.writer_id!r} must be a name, not a path")
        return options


class Staged(WriterCommitMessage):
    """Where a task put its rows."""

    def __init__(self, path: str, rows: int) -> None:
        self.path = path
        self.rows = rows


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        names = [field.name for field in schema.fields]
        if "payload" not in names:
            raise ConfigError("payload", f"is no column of the query; there are {', '.join(names)}")
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Put the rows of a task aside, in a worker."""
        import pyarrow as pa

        batches = [batch for batch in iterator if len(batch)]
        if not batches:
            return Staged("", 0)
        folder = self._staging()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return Staged(str(path), sum(map(len, batches)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the rows of a batch, but for those that the log has already; on the driver."""
        import pyarrow as pa

        paths = [message.path for message in messages if isinstance(message, Staged) and message.path]
        tables = [pa.ipc.open_file(pa.memory_map(path)).read_all() for path in paths]
        if tables:
            append_once(self._options, ordered(pa.concat_tables(tables)), batchId)
        self._clear(paths)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget what was put aside."""
        self._clear([message.path for message in messages if isinstance(message, Staged) and message.path])

    def _clear(self, paths: list[str]) -> None:
        """Remove staged files, also those of tries that died: this writer has no other query."""
        for path in paths:
            Path(path).unlink(missing_ok=True)
        folder = self._staging()
        if folder.is_dir():
            for leftover in folder.glob("*.arrow"):
                leftover.unlink(missing_ok=True)

    def _staging(self) -> Path:
        return Path(self._options.path) / STAGING / self._options.writer_id


def ordered(rows: Any) -> Any:
    """Sort rows by every column that can be sorted, the payload last: the same rows always have the same order."""
    import pyarrow as pa

    names = [name for name in rows.column_names if name != "payload"]
    sortable = [name for name in names if not pa.types.is_nested(rows.schema.field(name).type)]
    return rows.sort_by([(name, "ascending") for name in [*sortable, "payload"]])


def append_once(options: SinkOptions, rows: Any, batch: int) -> int:
    """Append those rows of a batch that the log does not have yet, and give how many those were."""
    with Redex(options.path, background=False) as redex:
        log = redex.open(options.channel, fsync=every_n(1))
        done = rows_done(log, options.writer_id, batch)
        for start in range(done, len(rows), _EVENTS_AT_ONCE):
            part = rows.slice(start, _EVENTS_AT_ONCE)
            log.append_batch(part.column("payload"), **_columns(part, options.writer_id, batch, start))
        return max(len(rows) - done, 0)


def rows_done(log: RedexFile, writer: str, batch: int) -> int:
    """Say how many rows of a batch a log has: all of them when it has a later batch of this writer."""
    end = log.next_seq
    while end > log.first_seq:
        start = max(end - _LOOK_BACK, log.first_seq)
        for event in reversed(list(log.read_range(start, end))):
            headers = event.headers or {}
            if headers.get(WRITER) == writer.encode():
                newest = int(headers[BATCH])
                if newest > batch:
                    return 1 << 62
                return int(headers[PLACE]) + 1 if newest == batch else 0
        end = start
    return 0


def _columns(rows: Any, writer: str, batch: int, start: int) -> dict[str, Any]:
    given = rows.column("headers").to_pylist() if "headers" in rows.column_names else [None] * len(rows)
    marks = {WRITER: writer.encode(), BATCH: str(batch).encode()}
    columns: dict[str, Any] = {
        "headers": [{**dict(own or ()), **marks, PLACE: str(start + place).encode()} for place, own in enumerate(given)]
    }
    if "ts_ns" in rows.column_names:
        columns["ts_ns"] = rows.column("ts_ns").to_numpy()
    return columns
