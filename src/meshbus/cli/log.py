"""`meshbus log`: show logs on disk. Only `seal` and `schema` write; all but `seal` work while a node writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.output import Json, for_people, note, plural, show_facts, show_line, show_rows, show_text

if TYPE_CHECKING:
    from meshbus.errors import LogError
    from meshbus.log.backend import Snapshot
    from meshbus.log.event import LogEvent
    from meshbus.log.schemas import Version
    from meshbus.log.status import Finding

app = App(name="log")

_LOG_COLUMNS: tuple[str, ...] = ("channel", "first", "next", "segments", "sealed_bytes", "hot_events", "log_id")
_SEGMENT_COLUMNS: tuple[str, ...] = ("channel", "first", "end", "bytes", "place", "uri")

Root: TypeAlias = Annotated[Path, Parameter(help="Directory with logs at any level, such as the log_dir of a node.")]
Channel: TypeAlias = Annotated[str, Parameter(help="Channel name, such as sensors/lidar.")]
Raw: TypeAlias = Annotated[bool, Parameter(help="Print payloads unchanged, one per line.", show_default=False)]


@app.command
def ls(
    root: Root,
    /,
    *,
    segments: Annotated[
        bool, Parameter(help="List each sealed file instead: its size, and where it is.", show_default=False)
    ] = False,
    json: Json = False,
) -> Exit:
    """List the logs in a directory and below it, and the lag of their consumers; exits with status 5 if some cannot be read."""
    from meshbus.log.reader import find_roots

    rows: list[dict[str, Any]] = []
    problems: list[LogError] = []
    roots = find_roots(root)
    for one in roots or [root]:
        found, wrong = _list_root(one, segments=segments)
        rows += [row | {"folder": _shown(one, root)} for row in found]
        problems += wrong
    for problem in problems:
        note(str(problem))
    columns = _SEGMENT_COLUMNS if segments else _LOG_COLUMNS
    if roots not in ([], [root]):
        columns = ("folder", *columns)
    if for_people(json) and not segments:
        # Most logs have none of these.
        columns += tuple(name for name in ("local_bytes", "remote_bytes") if any(row["remote_bytes"] for row in rows))
        columns += tuple(name for name in ("gaps", "set_aside", "damaged_files") if any(row.get(name) for row in rows))
        columns += ("lag",) if any(row["lag"] for row in rows) else ()
        rows = [row | {"lag": ", ".join(f"{name} {lag}" for name, lag in row["lag"].items())} for row in rows]
    show_rows(rows, columns, json=json, empty=f"no {'sealed files' if segments else 'logs'} in {root}")
    return Exit.PARTIAL if problems else Exit.OK


@app.command
def cat(
    root: Root,
    channel: Channel,
    /,
    *,
    since: Annotated[int | None, Parameter(help="First sequence number; default: the oldest event.")] = None,
    until: Annotated[int | None, Parameter(help="Stop before this sequence number; default: the end.")] = None,
    raw: Raw = False,
    json: Json = False,
) -> None:
    """Show the events of a log, oldest first, from `--since` or the first available one."""
    from meshbus.log.reader import LogReader

    for event in LogReader(_root_of(root, channel), channel).snapshot().events(since, until):
        _show_event(event, raw=raw, json=json)


@app.command
def tail(
    root: Root,
    channel: Channel,
    /,
    *,
    since: Annotated[
        int | None, Parameter(help="First sequence number; default: only events that are appended from now on.")
    ] = None,
    count: Annotated[int | None, Parameter(help="Stop after this many events.")] = None,
    timeout: Annotated[float | None, Parameter(help="Stop after this many seconds without an event.")] = None,
    raw: Raw = False,
    json: Json = False,
) -> Exit:
    """Follow a log from `--since`, by default from now on; exits with status 5 if fewer than `--count` events came."""
    from meshbus.log.reader import LogReader
    from meshbus.log.tail import MAX_EVENTS, Followed, Tail

    reader = LogReader(_root_of(root, channel), channel)
    follower = Tail(Followed(reader), reader.snapshot().end if since is None else since)
    left = count
    while left is None or left > 0:
        events = follower.take(MAX_EVENTS if left is None else min(left, MAX_EVENTS))
        for event in events:
            _show_event(event, raw=raw, json=json)
        left = None if left is None else left - len(events)
        if not events and not follower.wait(timeout):
            note(f"no event for {timeout:g} s")
            return Exit.PARTIAL if count is not None else Exit.OK
    return Exit.OK


@app.command
def verify(
    root: Root,
    channel: Annotated[str | None, Parameter(help="Channel to verify; default: all.")] = None,
    /,
    *,
    json: Json = False,
) -> Exit:
    """Read all of the logs and verify checksums and structure; exits with status 1 if there is a problem."""
    from meshbus.log.reader import LogReader, find_roots, list_channels

    if channel is not None:
        logs = [(_root_of(root, channel), channel)]
    else:
        logs = [(one, str(entry.channel)) for one in find_roots(root) or [root] for entry in list_channels(one)]
    rows: list[dict[str, Any]] = []
    for folder, name in logs:
        rows += [_finding_row(name, finding) for finding in LogReader(folder, name).verify()]
    empty = f"no problems in {plural(len(logs), 'log')}"
    show_rows(rows, ("channel", "file", "first", "end", "problem"), json=json, empty=empty)
    if rows:
        note(f"{plural(len(rows), 'problem')}; the first is in {rows[0]['file']}: {rows[0]['problem']}")
    return Exit.FAILED if rows else Exit.OK


@app.command
def seal(root: Root, channel: Channel, /, *, json: Json = False) -> None:
    """Seal all events of a log into Parquet files. No node may be writing the log; a running node seals its own."""
    from meshbus.log.log import Redex
    from meshbus.log.reader import LogReader

    folder = _root_of(root, channel)
    LogReader(folder, channel).snapshot()  # raises for a mistyped name, which would otherwise create a log
    # Opening takes the writer's lock, and fails if a node holds it.
    with Redex(folder, background=False) as redex:
        log = redex.open(channel)
        sealed = log.seal()
        show_facts({"channel": channel, "sealed_events": sealed, "segments": len(log.snapshot().segments)}, json=json)


@app.command
def schema(
    root: Root,
    channel: Channel,
    /,
    *,
    codec: Annotated[
        str | None, Parameter(help="Declare this codec: raw, utf8, json, msgpack, arrow or protobuf. Default: show.")
    ] = None,
    fields: Annotated[str, Parameter(help="Fields of the payloads, such as 'temp DOUBLE NOT NULL, unit STRING'.")] = "",
    descriptor: Annotated[Path | None, Parameter(help="Protobuf: file with the FileDescriptorSet.")] = None,
    message: Annotated[str, Parameter(help="Protobuf: full name of the message.")] = "",
    first: Annotated[
        int | None,
        Parameter(help="First sequence that it is valid for. Default: the next one; 0 for the first schema of a log."),
    ] = None,
    json: Json = False,
) -> None:
    """Show the schemas that are stored beside a log, or declare a new one; a node may be writing the log."""
    from meshbus.log.reader import LogReader
    from meshbus.log.schemas import declare, read_versions

    reader = LogReader(_root_of(root, channel), channel)
    end = reader.snapshot().end  # raises for a mistyped name
    known = read_versions(reader.folder)
    if codec is not None:
        start = first if first is not None else end if known else 0
        if not declare(reader.folder, _version(start, codec, fields, descriptor, message)):
            note("this schema is valid there already")
    rows = [_version_row(version) for version in read_versions(reader.folder)]
    empty = f"{channel} has no schema; declare one with --codec and --fields"
    show_rows(rows, ("first", "codec", "fields", "message"), json=json, empty=empty)


def _version(first: int, codec: str, fields: str, descriptor: Path | None, message: str) -> Version:
    """Return a schema to declare. Raises ConfigError if it cannot be used to decode payloads."""
    from meshbus.errors import ConfigError
    from meshbus.log.payload import TYPED, Codec
    from meshbus.log.schemas import Version
    from meshbus.spark.lake.codec import Form, read_descriptor
    from meshbus.spark.lake.payloads import decoder_of

    if codec not in set(Codec):
        raise ConfigError("codec", f"unknown codec {codec!r}; choose from {', '.join(Codec)}")
    content = b"" if descriptor is None else read_descriptor(str(descriptor))
    version = Version(first, Codec(codec), fields, message, content)
    if version.codec in TYPED:
        decoder_of(Form(version.codec, (), content, message))
    return version


def _version_row(version: Version) -> dict[str, Any]:
    return {
        "first": version.first,
        "codec": version.codec.value,
        "fields": version.schema,
        "message": version.message,
    }


def _list_root(root: Path, *, segments: bool) -> tuple[list[dict[str, Any]], list[LogError]]:
    """Return a row for each log directly in a folder, or for each of its segments, and an error for each unreadable log."""
    from meshbus.errors import LogError
    from meshbus.log.consumers import lags, list_consumers
    from meshbus.log.reader import LogReader, find_channels

    entries, problems = find_channels(root)
    consumers = list_consumers(root)
    rows: list[dict[str, Any]] = []
    for entry in entries:
        try:
            snapshot = LogReader(root, entry.channel).snapshot()
            lag = {"lag": lags(consumers, entry.channel, snapshot.end)}
            rows += _segment_rows(snapshot) if segments else [_log_row(snapshot) | lag]
        except LogError as error:  # one unreadable log must not hide the others
            problems.append(error)
    return rows, problems


def _root_of(root: Path, channel: str) -> Path:
    """Return the folder below `root` that has the log of a channel. Raises ConfigError if several have one."""
    from meshbus.errors import ConfigError
    from meshbus.log.folder import folder_of
    from meshbus.log.reader import find_roots
    from meshbus.names.channel import ChannelName

    found = [one for one in find_roots(root) if folder_of(one, ChannelName(channel)).is_dir()]
    if len(found) > 1:
        places = ", ".join(map(str, found))
        raise ConfigError("root", f"{channel} has several logs below {root}; name one of {places}")
    return found[0] if found else root


def _shown(folder: Path, root: Path) -> str:
    return str(folder.relative_to(root)) if folder.is_relative_to(root) else str(folder)


def _log_row(snapshot: Snapshot) -> dict[str, Any]:
    if snapshot.damage:
        note(snapshot.damage)
    if waits := snapshot.waits:
        note(f"{snapshot.channel} waits for object storage: {waits}")
    segments = snapshot.segments
    return {
        "channel": snapshot.channel,
        "first": snapshot.first,
        "next": snapshot.end,
        "segments": len(segments),
        "sealed_bytes": sum(segment.bytes for segment in segments),
        "hot_events": snapshot.end - snapshot.sealed_end,
        "log_id": snapshot.log_id.hex(),
        "local_bytes": sum(segment.bytes for segment in segments if segment.local),
        "remote_bytes": sum(segment.bytes for segment in segments if segment.uri is not None),
        "waits": waits or None,
    } | _replica_facts(snapshot)


def _replica_facts(snapshot: Snapshot) -> dict[str, Any]:
    replica = snapshot.replica
    if replica is None:
        return {}
    return {
        "gaps": [f"{first}-{end - 1}" for first, end in replica.gaps],
        "set_aside": replica.set_aside,
        "damaged_files": replica.damaged_files,
    }


def _segment_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    return [
        {
            "channel": snapshot.channel,
            "first": segment.first,
            "end": segment.end,
            "bytes": segment.bytes,
            "place": segment.place,
            "uri": segment.uri,
        }
        for segment in snapshot.segments
    ]


def _finding_row(channel: str, finding: Finding) -> dict[str, Any]:
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(finding)
    return {"channel": channel, **row}


def _show_event(event: LogEvent, *, raw: bool, json: bool) -> None:
    if raw:
        sys.stdout.buffer.write(event.payload + b"\n")
        sys.stdout.buffer.flush()
    elif for_people(json):
        show_text(
            f"{event.seq}  {_time(event.ts_ns) or 'time unknown'}  {_payload(event.payload).get('payload', event.payload)}"
        )
    else:
        show_line(_event_row(event))


def _event_row(event: LogEvent) -> dict[str, Any]:
    row: dict[str, Any] = {"seq": event.seq, "ts": _time(event.ts_ns), "ts_ns": event.ts_ns}
    row |= {"origin": f"{event.origin:016x}", "pub_seq": event.pub_seq, **_payload(event.payload)}
    if event.headers is not None:
        row["headers"] = {key: value.decode("utf-8", "backslashreplace") for key, value in event.headers.items()}
    return row


def _payload(payload: bytes) -> dict[str, str]:
    """Return a payload as text if it is UTF-8, else as base64."""
    from base64 import b64encode

    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}


def _time(ns: int | None) -> str | None:
    from datetime import UTC, datetime, timedelta

    if ns is None:
        return None
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1_000)).isoformat()
