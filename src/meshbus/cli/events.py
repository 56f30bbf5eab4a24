"""`meshbus pub` and `meshbus sub`: publish and receive events from a shell."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, note, plural, show_line, show_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from meshbus.cli.reach import Mesh

Channel: TypeAlias = Annotated[str, Parameter(help="Channel name, such as sensors/lidar.")]

_POLL_S = 0.05
_READ_AHEAD = 64
"""Lines read before they are published."""
_CHUNK = 65_536
_MAX_SAME = 1000
"""Runs whose files one directory can hold."""
_MOST = (64 << 20) + 1
"""What is read at most for one event: one byte more than an event can have, so that a longer one is refused."""


def pub(
    channel: Channel,
    payloads: Annotated[
        list[str] | None, Parameter(help="Events to publish; default: each line of standard input.")
    ] = None,
    /,
    *,
    raw: Annotated[
        bool, Parameter(help="Publish all of standard input as one event, unchanged.", show_default=False)
    ] = False,
    file: Annotated[
        list[Path] | None, Parameter(help="Publish this file as one event, unchanged; may be repeated.")
    ] = None,
    reliable: Annotated[bool | None, Parameter(help="Retransmit lost packets.", negative="--unreliable")] = None,
    wait: Annotated[float, Parameter(help="Seconds to wait for a subscriber before the first event.")] = 5.0,
    options: MeshOptions | None = None,
    json: Json = False,
) -> Exit:
    """Publish events and show how many subscribers got them.

    Exits with status 3 if the channel has no subscribers, with status 5 if some of them did not get an event, and with
    status 6 if it has none but the events are in the node's log, where they can be read later.
    """
    import asyncio

    from meshbus.cli.reach import open_mesh
    from meshbus.names.channel import ChannelName

    name = ChannelName(channel)  # raises for an invalid name before any connection is made
    files = _checked_files(file, payloads, raw=raw)

    async def publish() -> Exit:
        totals = dict.fromkeys(("events", "attempted", "delivered", "logged"), 0)
        async with open_mesh(options, publishes=name) as mesh:
            await wait_for_subscriber(mesh, name, wait)
            async for payload in _payloads(payloads, files, raw=raw):
                report = await mesh.publish(name, payload, reliable=reliable)
                totals["events"] += 1
                totals["attempted"] += report["attempted"]
                totals["delivered"] += report["delivered"]
                totals["logged"] += report["log_seq"] is not None
                _show_report(report, json=json)
        return _judge(totals, channel)

    return asyncio.run(publish())


def sub(
    channel: Channel,
    /,
    *,
    count: Annotated[int | None, Parameter(help="Stop after this many events.")] = None,
    timeout: Annotated[float | None, Parameter(help="Stop after this many seconds.")] = None,
    queue_group: Annotated[str, Parameter(help="Join this queue group; each event goes to one of its members.")] = "",
    when_full: Annotated[
        Literal["block", "drop_oldest", "drop_newest", "fail"] | None,
        Parameter(help="What to do when events arrive faster than they are read."),
    ] = None,
    publisher: Annotated[
        str | None, Parameter(help="Only events of this publisher, given by its node id; default: of every peer.")
    ] = None,
    since: Annotated[
        str | None, Parameter(help="Start in the publisher's log: a sequence number, or 'first' for the oldest event.")
    ] = None,
    raw: Annotated[bool, Parameter(help="Print payloads unchanged, one per line.", show_default=False)] = False,
    out: Annotated[
        Path | None, Parameter(help="Write each event to a file of its own in this directory, and print its name.")
    ] = None,
    options: MeshOptions | None = None,
    json: Json = False,
) -> Exit:
    """Show the events of a channel as they arrive; a name that ends in / stands for all channels below it.

    Exits with status 5 if fewer than `--count` events came, and with status 3 if none came or no publisher accepted the
    subscription.
    """
    import asyncio

    from meshbus.cli.reach import open_mesh
    from meshbus.names.channel import ChannelName

    ChannelName(channel + "x" if channel.endswith("/") else channel)  # raises for an invalid channel or prefix
    wanted: dict[str, Any] = {
        "publisher": None if publisher is None else _node_id(publisher),
        "queue_group": queue_group,
        "when_full": when_full,
        "since": int(since) if since is not None and since.isascii() and since.isdigit() else since,
    }
    seen, subscribed, accepted = 0, False, False
    if out is not None:
        _make_directory(out)

    async def receive() -> None:
        nonlocal seen, subscribed, accepted
        async with open_mesh(options) as mesh:
            async for row in mesh.subscribe(channel, **wanted):
                if "refused" in row:
                    subscribed, accepted = True, bool(row["publishers"])
                    waits = "" if accepted else "; no publisher has accepted it yet, peers are asked when they connect"
                    note(f"subscribed to {channel}{waits}")
                    _show_refusals(row["refused"])
                else:
                    seen += 1
                    shown = row if out is None else await asyncio.to_thread(_write_event, out, seen, row)
                    _show_event(shown, raw=raw, json=json)
                if count is not None and seen >= count:
                    return

    async def limited() -> None:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                await receive()
        except TimeoutError:
            if not limit.expired():  # a publisher did not answer in time: not the --timeout of this command
                raise
            note(
                f"received {plural(seen, 'event')} in {timeout:g} s"
                if subscribed
                else f"not subscribed to {channel} after {timeout:g} s: no publisher has answered"
            )

    asyncio.run(limited())
    if not (seen or accepted):
        return Exit.UNREACHABLE
    if count is None or seen >= count:
        return Exit.OK
    return Exit.PARTIAL if seen else Exit.UNREACHABLE


def _node_id(text: str) -> int:
    from meshbus.config.spelling import parse_node_id
    from meshbus.errors import ConfigError

    try:
        return parse_node_id(text)
    except ValueError as error:
        raise ConfigError("--publisher", str(error)) from None


async def wait_for_subscriber(mesh: Mesh, channel: str, seconds: float) -> None:
    """Wait until a channel has a subscriber, or the time is over."""
    import asyncio

    for _ in range(round(seconds / _POLL_S)):
        if await mesh.subscribers(channel):
            return
        await asyncio.sleep(_POLL_S)


def _checked_files(files: list[Path] | None, typed: Sequence[str] | None, *, raw: bool) -> list[Path]:
    """Return the files to publish; raise ConfigError for one that cannot be, before anything is published."""
    from meshbus.errors import ConfigError

    if files and (typed or raw):
        raise ConfigError("--file", "cannot be used with --raw or with events as arguments; publish them separately")
    for file in files or ():
        if not file.is_file():
            raise ConfigError("--file", f"{file} is not a file; give the path of one")
    return files or []


async def _payloads(typed: Sequence[str] | None, files: Sequence[Path], *, raw: bool) -> AsyncIterator[bytes]:
    """Yield the events to publish; reading files and standard input does not block the event loop."""
    import asyncio
    import threading

    if typed:
        for text in typed:
            yield text.encode()
        return
    if files:
        for file in files:
            yield await asyncio.to_thread(_read_file, file)
        return
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(_READ_AHEAD)

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed: the rest is not needed
            for payload in _stdin_events(sys.stdin.fileno(), raw=raw):
                asyncio.run_coroutine_threadsafe(lines.put(payload), loop).result()
            asyncio.run_coroutine_threadsafe(lines.put(None), loop).result()

    # Not an executor thread of the loop: asyncio.run would wait for it, that is, for the next line.
    threading.Thread(target=read, daemon=True).start()
    while (payload := await lines.get()) is not None:
        yield payload


def _stdin_events(handle: int, *, raw: bool) -> Iterator[bytes]:
    """Read a file descriptor as one event, or as one event per line.

    It does not use `sys.stdin`: a thread that waits for a line would still hold its lock when the process exits.
    """
    rest = bytearray()  # not bytes, which would be copied for each chunk of a large event
    while len(rest) < _MOST and (chunk := os.read(handle, min(_CHUNK, _MOST - len(rest)))):
        rest += chunk
        if raw or b"\n" not in chunk:
            continue
        *lines, rest = rest.split(b"\n")
        yield from (bytes(line.removesuffix(b"\r")) for line in lines)
    # An event that is too large ends the reading: what follows it is not a whole event.
    if rest or raw:
        yield bytes(rest if raw else rest.removesuffix(b"\r"))


def _read_file(path: Path) -> bytes:
    from meshbus.errors import ConfigError

    try:
        with path.open("rb") as file:
            return file.read(_MOST)
    except OSError as error:
        raise ConfigError("--file", f"{path} cannot be read: {error.strerror}") from None


def _make_directory(path: Path) -> None:
    from meshbus.errors import ConfigError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--out", f"{path} cannot be made: {error.strerror}; choose another directory") from None


def _write_event(directory: Path, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Write the payload of an event to a file, and return the row with the name of the file instead of it.

    The file has the number of the event and its channel as name; one that is there already is not overwritten.
    """
    from meshbus.errors import ConfigError
    from meshbus.node.payload import payload_of

    payload = payload_of(row)
    stem = f"{number:06d}-{row['channel'].replace('/', '.')}"
    for name in (stem, *(f"{stem}-{again}" for again in range(2, _MAX_SAME))):
        try:
            with (directory / name).open("xb") as file:
                file.write(payload)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError("--out", f"{directory / name} cannot be written: {error.strerror}") from None
        kept = {key: value for key, value in row.items() if key not in {"payload", "payload_base64"}}
        return {**kept, "file": str(directory / name), "bytes": len(payload)}
    raise ConfigError("--out", f"{directory} has {_MAX_SAME} files of this name; choose an empty directory")


def _show_report(report: dict[str, Any], *, json: bool) -> None:
    if not for_people(json):
        show_line(report)
        return
    logged = "" if report["log_seq"] is None else f", logged as event {report['log_seq']}"
    show_text(f"delivered to {report['delivered']} of {report['attempted']} subscribers{logged}")
    for leg in report["errors"]:
        note(f"{leg['node_id']}: {leg['problem']}")
    for leg in report["filtered"]:
        note(f"{leg['node_id']}: not allowed to receive it: {leg['why']}")


def _show_refusals(refusals: list[dict[str, Any]]) -> None:
    for refusal in refusals:
        who = refusal["node_id"] if refusal["name"] is None else f"{refusal['name']} ({refusal['node_id']})"
        match refusal["reason"]:
            case "no_prefixes":
                note(f"{who} is a plain net-mesh node without prefixes; subscribe to its channels by name")
            case "timeout" | "silent":
                note(f"{who} does not answer; retrying")
            case reason:
                note(f"{who} refused {refusal['channel']}: {reason}")


def _judge(totals: dict[str, int], channel: str) -> Exit:
    missed = not totals["attempted"] or totals["delivered"] < totals["attempted"]
    if not totals["events"] or not missed:
        return Exit.OK
    who = "some subscribers did not get everything" if totals["attempted"] else f"no subscribers of {channel}"
    if totals["logged"] == totals["events"]:
        logged = f"{plural(totals['logged'], 'event')} logged" if totals["logged"] > 1 else "the event is logged"
        note(f"{who}; {logged}: do not publish again, `meshbus sub {channel} --since first` reads the log")
    elif not totals["attempted"]:
        note(f"{who}; try again later, or wait longer with --wait")
    if totals["attempted"]:
        return Exit.PARTIAL
    return Exit.LOGGED if totals["logged"] == totals["events"] else Exit.UNREACHABLE


def _show_event(row: dict[str, Any], *, raw: bool, json: bool) -> None:
    from meshbus.node.payload import payload_of

    if "file" in row and for_people(json):
        show_text(f"{row['channel']}  {row['file']} ({plural(row['bytes'], 'byte')})")
    elif raw and "file" not in row:
        sys.stdout.buffer.write(payload_of(row) + b"\n")
        sys.stdout.buffer.flush()
    elif for_people(json):
        show_text(f"{row['channel']}  {row['payload'] if 'payload' in row else repr(payload_of(row))}")
    else:
        show_line(row)
