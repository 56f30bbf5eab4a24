"""Keeps the mesh key of an open node, and replaces it while the node runs.

    read ──► follows from the key in force? ──► row of the audit log ──► psk_file on disk ──► the engine, in one call
               └── no ──► refused with the reason; row of the audit log; the old key stays

No session ends: until the window that the file names is over, both keys are accepted (engine/session/meshkeys.py). A file that
does not name the key in force as its `previous` is refused, because with it this node would leave its own mesh.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from meshbus.config.node import NodeConfig
from meshbus.errors import ConfigError
from meshbus.keyfile import MeshKey, format_mesh_key, load_mesh_key, replace_file
from meshbus.node.audit import AuditLog, AuditRow, rotation_row
from meshbus.node.driving.live import Live
from meshbus.node.driving.setup import previous_key
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.peers.noticelog import RotationRefused, SecretRotated

NAME = "mesh key"

_logger = logging.getLogger("meshbus.node")


class MeshKeyKeeper:
    """The mesh key of one node."""

    def __init__(
        self,
        live: Live,
        config: NodeConfig,
        current: MeshKey,
        notice: Callable[[SecretRotated | RotationRefused], None],
    ) -> None:
        """Begin with the key that the node starts with."""
        self._live = live
        self._config = config
        self._current = current
        self._notice = notice
        self._changing = asyncio.Lock()
        self._tasks = TaskOwner("a change of the mesh key", _logger)

    async def apply(self, path: Path | None, *, by: str, via: str) -> tuple[str, ...]:
        """Use the mesh key of a file, or read the node's own file again; return what changed, in words.

        Another file is copied to the node's own. Raises ConfigError, and changes nothing, if the key does not follow from
        the one in force, or cannot be stored.
        """
        # In a task of its own: a caller that goes away must not leave a change half done.
        outcome = await asyncio.shield(self._tasks.start(self._attempt(path, by, via)))
        if isinstance(outcome, ConfigError):
            raise outcome
        return outcome

    async def close(self) -> None:
        """End what is under way; a key that is stored but not in use yet is that of the next start."""
        await self._tasks.close()

    async def _attempt(self, path: Path | None, by: str, via: str) -> tuple[str, ...] | ConfigError:
        async with self._changing:
            try:
                source = path or self._own
                new = await asyncio.to_thread(load_mesh_key, source)
                changes = self._changes(new, str(source))
                if changes:
                    await asyncio.to_thread(self._store, new, self._row(by, via, changes))
            except ConfigError as error:
                try:
                    await asyncio.to_thread(self._append, self._row(by, via, problem=str(error)))
                except ConfigError as unwritten:
                    _logger.warning("a refused change of the mesh key is not in the audit log: %s", unwritten)
                self._notice(RotationRefused(NAME, by, via, str(error)))
                return error
        if changes:
            self._current = new
            self._live.act(lambda engine, now, out: engine.set_mesh_keys(new.key, previous_key(new), now, out))
            self._notice(SecretRotated(NAME, by, via, changes))
        return changes

    def _changes(self, new: MeshKey, source: str) -> tuple[str, ...]:
        """Return what a file changes, in words; nothing if it is the key in force. Raises ConfigError if it may not."""
        current = self._current
        if new == current:
            return ()
        if new.root != current.root:
            raise _refused("belongs to another mesh, whose nodes this node could not reach", source)
        if new.key == current.key:
            if new.previous not in {None, current.previous}:
                raise _refused("names another previous key than the one that was replaced here", source)
            return (f"the previous mesh key is accepted {_until(new)}",)
        if new.previous != current.key:
            raise _refused(
                "does not name the key in force as its previous one, so this node would leave its mesh", source
            )
        if new.until_s <= time.time_ns() // 10**9:
            raise _refused(f"accepts the previous key only {_until(new)}, which is over", source)
        return (f"the mesh key was replaced; the previous one is accepted {_until(new)}",)

    def _store(self, new: MeshKey, row: AuditRow) -> None:
        """Write the row, then the file."""
        own = self._own
        self._append(row)
        if load_mesh_key(own) != new:
            replace_file(own, format_mesh_key(new), "psk")

    def _append(self, row: AuditRow) -> None:
        AuditLog(self._config.audit_path()).append(row)

    def _row(self, by: str, via: str, changes: tuple[str, ...] = (), problem: str | None = None) -> AuditRow:
        return rotation_row(self._live.engine.node_id, by, via, changes=changes, problem=problem)

    @property
    def _own(self) -> Path:
        own = self._config.psk_file
        if own is None or not own.is_file():
            raise ConfigError(
                "psk_file",
                f"must name a file for a mesh key that can be replaced, got {own and str(own)!r}; move the key to a file, set"
                " psk_file to it, and restart the node",
            )
        return own


def _refused(problem: str, source: str) -> ConfigError:
    return ConfigError("psk", f"{problem}; create the new key with `meshbus key psk NEW --after FILE`", source=source)


def _until(mesh_key: MeshKey) -> str:
    if mesh_key.previous is None:
        return "no longer"
    return f"until {datetime.fromtimestamp(mesh_key.until_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
