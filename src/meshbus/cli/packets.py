"""`meshbus packets`: show recorded packets. It only reads, and works while nodes are recording."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.output import Json, for_people, show_line, show_rows, show_text
from meshbus.policy.reason import RECORDED

if TYPE_CHECKING:
    from meshbus.log.packets.reader import PacketSnapshot

app = App(name="packets")

Root: TypeAlias = Annotated[Path, Parameter(help="Directory that holds the records: the log_dir of the nodes.")]

_WORDS = ", ".join(reason.word for reason in RECORDED.values())
_ENDS = {"delivered": "here", "dropped": "nowhere"}


@app.command
def ls(root: Root, /, *, json: Json = False) -> None:
    """List the nodes that recorded packets in a directory."""
    from meshbus.log.census import names_in
    from meshbus.log.packets.reader import PacketReader, list_recorders

    names = names_in(root)
    rows = [
        {"name": names.get(recorder), **_recorder_row(recorder, PacketReader(root, recorder).snapshot())}
        for recorder in list_recorders(root)
    ]
    columns = ("recorder", "name", "first", "next", "sealed_files", "sealed_rows", "hot_rows")
    show_rows(rows, columns, json=json, empty=f"no recorded packets in {root}; set record_packets on a node")


@app.command
def cat(
    root: Root,
    recorder: Annotated[
        str | None, Parameter(help="Node id as shown by `ls`; may be omitted if only one node recorded.")
    ] = None,
    /,
    *,
    limit: Annotated[
        int | None, Parameter(help="Show only the newest packets, at most this many; default: all.")
    ] = None,
    reason: Annotated[str | None, Parameter(help=f"Filter by drop reason: {_WORDS}.")] = None,
    channel: Annotated[str | None, Parameter(help="Filter by channel.")] = None,
    json: Json = False,
) -> None:
    """Show recorded packets and what the node decided about each, oldest first."""
    from meshbus.errors import ConfigError
    from meshbus.log.census import names_in
    from meshbus.log.packets.reader import PacketReader

    if limit is not None and limit < 1:
        raise ConfigError("--limit", f"must be at least 1, got {limit}; omit it to see all packets")
    # A deque with maxlen keeps the newest rows without holding all of them.
    found = _rows(PacketReader(root, _choose(root, recorder)).snapshot(), _code_of(reason), channel)
    names = {f"{node_id:016x}": name for node_id, name in names_in(root).items()}
    for row in found if limit is None else deque(found, maxlen=limit):
        if for_people(json):
            show_text(_sentence(row, names))
        else:
            show_line(row)


def _choose(root: Path, recorder: str | None) -> int:
    """Return the node id of the selected recorder. Raises ConfigError if the choice is missing or unknown."""
    from meshbus.errors import ConfigError
    from meshbus.log.packets.reader import list_recorders

    known = {f"{node_id:016x}": node_id for node_id in list_recorders(root)}
    if recorder is None and len(known) == 1:
        return next(iter(known.values()))
    if recorder in known:
        return known[recorder]
    if not known:
        raise ConfigError(
            "root", f"no recorded packets in {root}; set record_packets on a node, or give the node's log_dir"
        )
    wrong = "several nodes recorded here" if recorder is None else f"unknown recorder {recorder!r}"
    raise ConfigError("recorder", f"{wrong}; choose from {', '.join(sorted(known))}")


def _code_of(reason: str | None) -> int | None:
    from meshbus.errors import ConfigError

    codes = {known.word: code for code, known in RECORDED.items()}
    if reason is not None and reason not in codes:
        raise ConfigError("--reason", f"unknown reason {reason!r}; choose from {_WORDS}")
    return None if reason is None else codes[reason]


def _rows(snapshot: PacketSnapshot, reason: int | None, channel: str | None) -> Iterator[dict[str, Any]]:
    import pyarrow.compute as pc

    for whole in snapshot.batches(dictionaries=False):
        batch = whole
        if reason is not None:
            batch = batch.filter(pc.equal(batch.column("reason"), reason))
        if channel is not None:
            batch = batch.filter(pc.equal(batch.column("channel"), channel))
        for row in batch.to_pylist():
            yield _readable(row)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with names for its codes and hex ids; null columns are omitted."""
    from meshbus.log.schema import PACKETS, ColumnType
    from meshbus.policy.fate import Fate

    shown: dict[str, Any] = {}
    for column in PACKETS:
        value = row[column.name]
        if value is None:
            continue
        # Unsigned ids are stored as signed integers; show them as unsigned hex. Counters stay decimal.
        if column.bit_cast and column.name not in {"counter", "packet_seq"}:
            digits = 16 if column.type is ColumnType.BIGINT else 8
            value = f"{value % (1 << 4 * digits):0{digits}x}"
        shown[column.name] = value
    shown["ts"] = row["ts"].isoformat()
    shown["verdict"] = Fate(row["verdict"]).name.lower()
    dropped = RECORDED.get(row["reason"])
    shown["reason"] = None if dropped is None else dropped.word
    return shown


def _sentence(row: dict[str, Any], names: Mapping[str, str]) -> str:
    why = f" ({row['reason']})" if row["reason"] else ""
    hops = [row.get("previous_hop", "a stranger"), row.get("next_hop", _ENDS.get(row["verdict"], "a stranger"))]
    way = " → ".join(names.get(hop, hop) for hop in hops)
    what = row.get("channel", f"stream {row['stream_id']}")
    return f"{row['ts']}  {row['verdict']}{why}  {way}  {what}  {row['event_count']} events, {row['payload_len']} bytes"


def _recorder_row(recorder: int, snapshot: PacketSnapshot) -> dict[str, Any]:
    sealed = [part for part in snapshot.parts if part.sealed]
    rows = sum(part.end - part.first for part in sealed)
    return {
        "recorder": f"{recorder:016x}",
        "first": snapshot.first,
        "next": snapshot.end,
        "sealed_files": len(sealed),
        "sealed_rows": rows,
        "hot_rows": sum(part.end - part.first for part in snapshot.parts) - rows,
    }
