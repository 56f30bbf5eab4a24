"""The Spark sink `meshbus`: append the rows of a query to the log of a channel, each batch of a stream exactly once.

    results.write.format("meshbus").option("channel", "alerts/summary").mode("append").save("/var/lib/meshbus/log")
    query.writeStream.format("meshbus").option("path", "/var/lib/meshbus/log").option("channel", "alerts/summary")
         .option("writerId", "summary").option("checkpointLocation", ...).start()

Workers write their rows to staging files beside the logs. The driver sorts them, so that a retried batch has the same
order, and appends them. Each event carries writer, batch and position in its headers, so the log itself shows how much of
a batch it has, and after a crash only the rest is appended (log/once.py). Use each writerId for one query only; a batch
query has none: its rows are appended once, when all tasks have succeeded.

If a node has the channel open for writing, set `.option("admin", "/path/of/its/admin.sock")`: the node then appends the
rows to its own log and sends them to the channel's subscribers. Without it, the sink locks the log while it appends.

Columns: `payload` (required), `ts_ns` and `headers`; any other column only affects the order.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from meshbus.errors import ConfigError, PipelineError, PipelineFault
from meshbus.log.durability import every_n
from meshbus.log.log import Redex
from meshbus.log.once import slices_left
from meshbus.names.channel import ChannelName

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STAGING = "_staging"
"""Directory of the staging files, below the directory of the logs."""


class SinkOptions(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The options of the sink."""

    path: str
    """The directory of the logs."""
    channel: str
    writer_id: str
    """Name of this streaming query; must never change or be reused, because the log remembers its batches by it."""
    admin: str = ""
    """The admin socket of the node that publishes the rows; empty to write to the log directly."""

    @classmethod
    def read(cls, given: Mapping[str, str], *, streaming: bool = True) -> SinkOptions:
        """Parse the options from Spark, whose keys are case-insensitive; raises ConfigError.

        A batch query gets a new writer of its own: Spark tries it once.
        """
        spelled = {key.lower(): value for key, value in given.items()}
        if not streaming:
            spelled["writerid"] = f"batch-{uuid.uuid4().hex}"
        missing = [name for name in ("path", "channel", "writerId") if not spelled.get(name.lower())]
        if missing:
            raise ConfigError("option", f"{', '.join(missing)} must be set to write to a log")
        options = cls(
            path=spelled["path"],
            channel=spelled["channel"],
            writer_id=spelled["writerid"],
            admin=spelled.get("admin", ""),
        )
        ChannelName(options.channel)
        # It names a folder, so it must be one that stays where it is.
        if "/" in options.writer_id or "\0" in options.writer_id or options.writer_id.startswith("."):
            raise ConfigError(
                "writerId", f"must be a name without '/' that does not start with '.', got {options.writer_id!r}"
            )
        return options


class Staged(WriterCommitMessage):
    """The staging file of a task."""

    def __init__(self, path: str, rows: int) -> None:
        self.path = path
        self.rows = rows


class _Writer:
    """What the writers of batch and streaming queries share: rows are staged by tasks, and appended by the driver."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        names = [field.name for field in schema.fields]
        if "payload" not in names:
            raise ConfigError("payload", f"must be a column of the query, which has {', '.join(names)}")
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage the rows of a task, in a worker."""
        # spark.md §2: the batch id is known only in `commit`, which runs in another process with a new writer. So rows
        # travel through a file, and its path in the commit message.
        batches = [batch for batch in iterator if len(batch)]
        if not batches:
            return Staged("", 0)
        return Staged(str(self._stage(batches)), sum(map(len, batches)))

    def _append(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Append the staged rows of a batch that the log does not have yet, on the driver."""
        import pyarrow as pa

        paths = _paths_in(messages)
        tables = [pa.ipc.open_file(pa.memory_map(path)).read_all() for path in paths]
        if tables:
            rows = ordered(pa.concat_tables(tables))
            if self._options.admin:
                publish_once(self._options, self._stage([rows]), batch)
            else:
                append_once(self._options, rows, batch)
        self._clear(paths)

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
        """Remove staging files, including those of attempts that crashed: no other query uses this writer."""
        for path in paths:
            Path(path).unlink(missing_ok=True)
        folder = self._staging()
        if folder.is_dir():
            for leftover in folder.glob("*.arrow"):
                leftover.unlink(missing_ok=True)

    def _staging(self) -> Path:
        return Path(self._options.path) / STAGING / self._options.writer_id


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of one streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the rows of a batch that the log does not have yet, on the driver."""
        self._append(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staging files of a failed batch."""
        self._clear(_paths_in(messages))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of one batch query: all of them or none, unless the disk fails meanwhile."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows, on the driver."""
        self._append(messages, 0)
        self._remove_folder()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staging files of a failed query."""
        self._clear(_paths_in(messages))
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder of a writer that never comes again."""
        with suppress(OSError):  # it was never made, or another query uses the folder above it
            self._staging().rmdir()
            self._staging().parent.rmdir()


def _paths_in(messages: list[WriterCommitMessage | None]) -> list[str]:
    return [message.path for message in messages if isinstance(message, Staged) and message.path]


def ordered(rows: Any) -> Any:
    """Sort rows by every sortable column, the payload last, so that the same rows always have the same order."""
    import pyarrow as pa

    # spark.md §6: the order of tasks and rows differs between attempts, and the log skips rows by position.
    names = [name for name in rows.column_names if name != "payload"]
    sortable = [name for name in names if not pa.types.is_nested(rows.schema.field(name).type)]
    return rows.sort_by([(name, "ascending") for name in [*sortable, "payload"]])


def append_once(options: SinkOptions, rows: Any, batch: int) -> int:
    """Append the rows of a batch that the log does not have yet, and return their number."""
    with Redex(options.path, background=False) as redex:
        # Durable before Spark commits the batch: it will not be offered again.
        log = redex.open(options.channel, fsync=every_n(1))
        slices = slices_left(log, rows, options.writer_id, batch)
        return sum(len(log.append_batch(payloads, **columns)) for payloads, columns in slices)


def publish_once(options: SinkOptions, path: Path, batch: int) -> int:
    """Ask a node to publish the rows of an Arrow file that its log does not have yet, and return their number.

    Raises PipelineError if the node does not answer or refuses.
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
            f"the node at {options.admin} does not answer ({error.strerror or error}); start it with 'meshbus up'",
        ) from None
    if not line:
        raise PipelineError(
            PipelineFault.FAILED, f"the node at {options.admin} closed the connection before it answered; check its log"
        )
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
