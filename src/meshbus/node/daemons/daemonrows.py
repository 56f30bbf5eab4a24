"""Daemons as JSON objects, and back: what the admin socket says about them, and what it is told to run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from meshbus.config.daemon import DaemonEntry
from meshbus.names.channel import ChannelName
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonLine, DaemonMove
from meshbus.node.daemons.daemons import Daemons

FOLLOW_S = 0.2
"""How often new lines about a daemon are looked for. Our choice: at once for people, and cheap."""

Who = Callable[[int], dict[str, Any]]
"""Returns the id and the name of a node as a JSON object."""


class DaemonWish(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon to run, as a client of the admin socket describes it; the fields are those of `[[daemons]]`."""

    name: str
    factory: str
    inputs: tuple[str, ...] = ()
    output: str | None = None
    key: str | None = None
    """An absolute path."""
    checkpoints: str | None = None
    skip_gaps: bool = False
    path: tuple[str, ...] = ()
    """Directories in which the module is looked for first, as absolute paths."""
    offer: bool = False
    """Only let it move here."""


async def start_wish(daemons: Daemons, path: Sequence[Path], wish: DaemonWish) -> DaemonInfo:
    """Run or offer a daemon, whose code is looked for in `path` too. Raises ConfigError or DaemonError."""
    output = None if wish.output is None else str(ChannelName(wish.output))
    # The rules for what may be written are those of the file.
    entry = DaemonEntry(name=wish.name, factory=wish.factory, inputs=wish.inputs)
    factory = entry.load_factory([*map(Path, wish.path), *path])
    options: dict[str, Any] = {"output": output, "key": wish.key, "checkpoints": wish.checkpoints}
    if wish.offer:
        return await daemons.offer(wish.name, factory, skip_gaps=wish.skip_gaps, **options)
    return await daemons.run(wish.name, factory, inputs=wish.inputs, skip_gaps=wish.skip_gaps, **options)


def daemon_row(info: DaemonInfo, who: Who) -> dict[str, Any]:
    """Return the state of a daemon as a JSON object."""
    return {
        "name": info.name,
        "origin": f"{info.origin:016x}",
        "where": None if info.node is None else who(info.node),
        "state": str(info.state),
        "phase": info.phase,
        "inputs": [
            {
                "channel": one.channel,
                "publisher": None if one.publisher is None else who(one.publisher),
                "next_seq": one.next_seq,
            }
            for one in info.inputs
        ],
        "output": info.output,
        "outputs": info.outputs,
        "processed": info.processed,
        "moves": info.moves,
        "errors": info.errors,
        "error": info.error,
    }


def move_row(move: DaemonMove, who: Who) -> dict[str, Any]:
    """Return a move as a JSON object."""
    return {
        "origin": f"{move.origin:016x}",
        "source": who(move.source),
        "target": who(move.target),
        "seconds": round(move.seconds, 3),
    }


def line_row(line: DaemonLine) -> dict[str, Any]:
    """Return something that happened to a daemon as a JSON object."""
    return {
        "at": datetime.fromtimestamp(line.at_ns / 1e9, UTC).isoformat(),
        "level": line.level,
        "text": line.text,
    }


async def lines_of(daemons: Daemons, daemon: str | int, *, follow: bool) -> AsyncIterator[DaemonLine]:
    """Yield what happened to a daemon, the oldest first, and what happens from now on if `follow`."""
    last: DaemonLine | None = None
    while True:
        lines = daemons.logs(daemon)
        for line in _after(lines, last):
            yield line
        last = lines[-1] if lines else last
        if not follow:
            return
        await asyncio.sleep(FOLLOW_S)


def _after(lines: Sequence[DaemonLine], last: DaemonLine | None) -> Sequence[DaemonLine]:
    """Return the lines after one of them; all if it is not kept any more."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number] is last:
            return lines[number + 1 :]
    return lines
