"""The pins of a node on disk: the nodes that were seen secure, so that a restart forgets none of them.

The engine keeps them in memory (engine/session/pins.py) and reports new ones; this file writes all of them, under a
temporary name and then over the old file, so that a crash leaves the old pins or the new ones. Writing happens beside
the event loop, and what changes meanwhile is written next. A damaged file is an error when a node starts: without its
pins, a node could be talked into sessions that others can read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from meshbus.engine.session.pins import MAX_PINS
from meshbus.errors import ConfigError
from meshbus.keyfile import VERSION, from_hex, read_table, replace_file
from meshbus.names.identity import KEY_BYTES, derive_node_id
from meshbus.node.driving.tasks import TaskOwner

_logger = logging.getLogger("meshbus.node")
_LINE_BYTES = 128
"""A line of the file is shorter, so a file of more than so many for each pin is something else."""


def load_pins(path: Path) -> dict[int, bytes]:
    """Read a file of pins; without a file there are none. Raises ConfigError if it is damaged or others can change it."""
    if not path.exists():
        return {}
    nodes = read_table(path, "pins", _LINE_BYTES * MAX_PINS).get("nodes", {})
    if not isinstance(nodes, dict):
        nodes = {"": nodes}
    pins: dict[int, bytes] = {}
    for name, value in nodes.items():
        entity_id = from_hex(value) if isinstance(value, str) else None
        # The id follows from the key: a line that was changed by hand is noticed.
        if entity_id is None or len(entity_id) != KEY_BYTES or name != f"{derive_node_id(entity_id):016x}":
            raise ConfigError(
                "pins",
                f"the entry {name!r} is damaged; restore the file from a copy, or run `meshbus pins reset --all`",
                source=str(path),
            )
        pins[derive_node_id(entity_id)] = entity_id
    return pins


def save_pins(path: Path, pins: Mapping[int, bytes]) -> None:
    """Replace a file of pins, completely or not at all. Raises ConfigError."""
    lines = "".join(f'"{node_id:016x}" = "{entity_id.hex()}"\n' for node_id, entity_id in sorted(pins.items()))
    replace_file(
        path,
        "# Nodes that were seen secure, with their public keys: nothing less is accepted from them.\n"
        "# `meshbus pins ls` shows them, `meshbus pins reset` removes them.\n"
        f'version = {VERSION}\nkind = "pins"\n\n[nodes]\n{lines}',
        "pins",
    )


class PinWriter:
    """Writes the pins of an open node whenever they change."""

    def __init__(self, path: Path | None, pins: Callable[[], Mapping[int, bytes]]) -> None:
        """Write what `pins` returns to a path; without one, pins are kept in memory only."""
        self._path = path
        self._pins = pins
        self._tasks = TaskOwner("writing pins", _logger)
        self._changed = False
        self._writing: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Write the pins soon."""
        self._changed = True
        if self._path is not None and (self._writing is None or self._writing.done()):
            self._writing = self._tasks.start(self._write(self._path))

    async def close(self) -> None:
        """Wait until everything is written."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self, path: Path) -> None:
        while self._changed:
            self._changed = False
            try:
                await asyncio.to_thread(save_pins, path, dict(self._pins()))
            except ConfigError as error:
                # The sessions are secure all the same; only a restart would forget that they were.
                _logger.warning("%s", error)
