"""The Spark sink `meshbus`: rows of a streaming query back into the log of a channel, each batch exactly once.

    query.writeStream.format("meshbus").option("path", "/var/lib/meshbus/log").option("channel", "alerts/summary")
         .option("writerId", "summary").option("checkpointLocation", ...).start()

Workers put their rows into files beside the logs; the driver sorts them, so that a batch that is tried again has the same
order, and appends. Each event carries writer, batch and place in its headers, so the log itself says how much of a batch
it has: after a crash only the rest is appended (log/once.py). One query per writerId.

A channel that a node has open for writing belongs to that node: with `.option("admin", "/path/of/its/admin.sock")` the
node appends the rows to its own log, and sends them to the channel's subscribers. Otherwise the sink takes the log's lock
while it appends.

Columns: `payload` (required), `ts_ns`, `headers`, and anything else, which only decides the order.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from meshbus.errors import ConfigError, PipelineError, PipelineFault
from meshbus.log.durability import every_n
from meshbus.log.log import Redex
from meshbus.log.once import slices_left
from meshbus.names.channel import ChannelName

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STAGING = "_staging"


class SinkOptions(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What `.option(...)` takes."""

    path: str
    """The folder of the logs."""
    channel: str
    writer_id: str
    """Names this query for ever."""
    admin: str = ""
    """The admin socket of the node that publishes the rows; without it the log is written here."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SinkOptions:
        """Check what Spark hands over, whose keys come in any case; raises ConfigError."""
        spelled = {key.lower(): value for key, value in given.items()}
        missing = [name for name in ("path", "channel", "writerId") if not spelled.get(name.lower())]
        if missing:
            raise ConfigError("option", f"{', '.join(missing)} must be given to write to a log")
        options = cls(
            path=spelled["path"],
            channel=spelled["channel"],
            writer_id=spelled["writerid"],
            admin=spelled.get("admin", ""),
        )
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
        batches = [batch for batch in iterator if len(batch)]
        if not batches:
            return Staged("", 0)
        return Staged(str(self._stage(batches)), sum(map(len, batches)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the rows of a batch, but for those that the log has already; on the driver."""
        import pyarrow as pa

        paths = [message.path for message in messages if isinstance(message, Staged) and message.path]
        tables = [pa.ipc.open_file(pa.memory_map(path)).read_all() for path in paths]
        if tables:
            rows = ordered(pa.concat_tables(tables))
            if self._options.admin:
                publish_once(self._options, self._stage([rows]), batchId)
            else:
                append_once(self._options, rows, batchId)
        self._clear(paths)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget what was put aside."""
        self._clear([message.path for message in messages if isinstance(message, Staged) and message.path])

    def _stage(self, rows: Sequence[Any]) -> Path:
        import pyarrow as pa

        folder = self._staging()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows[0].schema) as writer:
            for part in rows:
                writer.write(part)
        return path

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
        slices = slices_left(log, rows, options.writer_id, batch)
        return sum(len(log.append_batch(payloads, **columns)) for payloads, columns in slices)


def publish_once(options: SinkOptions, path: Path, batch: int) -> int:
    """Have the node publish those rows of an Arrow file that its log does not have yet, and give how many those were.

    Raises PipelineError when it is not there, or refuses.
    """
    request = {
        "do": "publish_once",
        "channel": options.channel,
        "path": str(path.absolute()),
        "writer": options.writer_id,
        "batch": batch,
    }
    try:
        line = asyncio.run(_ask(options.admin, msgspec.json.encode(request) + b"\n"))
    except OSError as error:
        raise PipelineError(
            PipelineFault.FAILED,
            f"the node at {options.admin} does not answer ({error.strerror or error}): start it with `meshbus up`",
        ) from None
    if not line:
        raise PipelineError(PipelineFault.FAILED, f"the node at {options.admin} went away before it answered")
    answer: dict[str, Any] = msgspec.json.decode(line)
    if not answer["ok"]:
        raise PipelineError(PipelineFault.FAILED, f"the node at {options.admin} refused: {answer['problem']}")
    return int(answer["result"])


async def _ask(socket: str, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()
