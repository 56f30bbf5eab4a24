"""The census: what a node knew about other nodes and about the subscribers of its channels, over time.

    <log_dir>/_census/census_<16 hex>-<hash>/      one log for each node that writes here

It is a log like those of channels (log/log.py): append-only, checksummed, sealed, bounded by retention, and readable
while it is written. Its rows are facts, each with the time from which it holds:

    snapshot    the node itself; everything else that it knows follows. Written at the start and once an hour, so that
                an hour can be understood without those before it.
    node        a peer: its ids, its name, its subnet, and the offset of its clock
    roster      how many nodes are subscribed to a channel
    moving      a move of a daemon that the node drives has begun: which daemon, and where it ran
    moved       the same move has ended: where the daemon runs now
    not_moved   the same move has failed: where the daemon was to go, and why it did not

The columns are `CENSUS` in log/schema.py. node/logs/census.py writes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from meshbus.log.reader import LogReader, list_channels
from meshbus.log.schema import CENSUS, Column, ColumnType, arrow_schema
from meshbus.names.channel import ChannelName

FOLDER = "_census"
"""Below the log_dir of a node."""
_PREFIX = "census/"


class FactKind(StrEnum):
    """What a row of the census is about."""

    SNAPSHOT = "snapshot"
    NODE = "node"
    ROSTER = "roster"
    MOVING = "moving"
    MOVED = "moved"
    NOT_MOVED = "not_moved"


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the census, without its time; `CENSUS` in log/schema.py says what each field means."""

    kind: str
    """A FactKind, or one of a later version."""
    node_id: int | None = None
    origin: int | None = None
    entity: bytes | None = None
    name: str | None = None
    subnet: int | None = None
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    channel: str | None = None
    subscribers: int | None = None
    copies: int | None = None
    failure: str | None = None


_decoder = msgspec.json.Decoder(Fact)
_STORED = ("recorder", "log_id", "seq", "ts", "ts_ns")
"""Columns that every log has."""


def channel_of(node_id: int) -> ChannelName:
    """Return the name of the log that holds the census of a node."""
    return ChannelName(f"{_PREFIX}{node_id:016x}")


def list_censuses(log_dir: Path | str) -> dict[int, ChannelName]:
    """Return the logs below a log folder that hold a census, by the id of the node that writes it."""
    root = Path(log_dir) / FOLDER
    found = list_channels(root) if root.is_dir() else []
    return {int(entry.channel.removeprefix(_PREFIX), 16): ChannelName(entry.channel) for entry in found}


def names_in(log_dir: Path | str) -> dict[int, str]:
    """Return the names of the nodes that the censuses below a log folder know, by node id; the latest name of each."""
    found: dict[int, tuple[int, str]] = {}
    for channel in list_censuses(log_dir).values():
        rows = CensusReader(log_dir, channel).read({}).select(["node_id", "name", "ts_ns"])
        for row in rows.filter(rows.column("name").is_valid()).to_pylist():
            node_id = row["node_id"] & 0xFFFF_FFFF_FFFF_FFFF
            found[node_id] = max(found.get(node_id, (0, "")), (row["ts_ns"], row["name"]))
    return {node_id: name for node_id, (_, name) in found.items()}


class CensusReader:
    """Reads the census of one node, from any process; a later read costs only what is new."""

    def __init__(self, log_dir: Path | str, channel: ChannelName) -> None:
        self._reader = LogReader(Path(log_dir) / FOLDER, channel)

    def read(self, known: Mapping[bytes, int]) -> Any:
        """Return what was written since as a `pyarrow.Table` with the columns of CENSUS.

        `known` has the next position to read, by log id; what expired before it was read is left out.
        """
        import pyarrow as pa

        snapshot = self._reader.snapshot()
        start = max(known.get(snapshot.log_id, 0), snapshot.first)
        schema = arrow_schema(CENSUS, dictionaries=False)
        batches = snapshot.batches(start, snapshot.end, [*_STORED, "payload"]) if start < snapshot.end else ()
        return pa.Table.from_batches([_columns(batch, schema) for batch in batches], schema)


def _columns(batch: Any, schema: Any) -> Any:
    import pyarrow as pa

    facts = [_decoder.decode(payload) for payload in batch.column("payload").to_pylist()]
    arrays = [
        batch.column(column.name) if column.name in _STORED else _array(column, facts, schema.field(column.name).type)
        for column in CENSUS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, facts: Sequence[Fact], kind: Any) -> Any:
    import pyarrow as pa

    values = [getattr(fact, column.name) for fact in facts]
    if column.bit_cast:
        bits = np.int64 if column.type is ColumnType.BIGINT else np.int32
        wrap = 1 << 8 * bits().itemsize
        values = [value if value is None or value < wrap // 2 else value - wrap for value in values]
    return pa.array(values, kind)
