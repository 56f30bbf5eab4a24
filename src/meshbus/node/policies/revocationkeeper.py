"""Keeps the revocations of an open node on disk, and in the audit log.

    RevocationTaken ──► in effect already ──► file of revocations ──► row of the audit log
                                                  └── cannot be written ──► counted, logged, tried again

A revocation does not wait for a disk: the engine has cut what it names before anything is written. If the disk refuses it, it
stays in effect until the node stops, `saved` says so, and writing is tried again. This is the one change whose row in the
audit log follows it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from meshbus.config.node import NodeConfig
from meshbus.engine.base.notices import RevocationTaken
from meshbus.errors import ConfigError
from meshbus.node.audit import APPLIED, AuditKind, AuditLog, AuditRow, now_text
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.policies.revocationfile import save_revocations
from meshbus.policy.reason import Reason
from meshbus.wire.messages.revocation import Revocation

RETRY_S = 30.0
"""Pause before a file that could not be written is tried again."""
NO_ISSUERS = (
    "is not set, so this node takes no revocations; set it to the public keys of those who sign for the fleet, and"
    " policy_file to a file"
)

_logger = logging.getLogger("meshbus.node")


class RevocationKeeper:
    """The revocations of one node."""

    def __init__(self, live: Live, config: NodeConfig, path: Path | None) -> None:
        """Write to a path whenever something is revoked; without one, revocations are kept in memory only."""
        self.saved: bool | None = None if path is None else True
        """Whether all of them are on disk; None if this node keeps no file."""
        self._live = live
        self._config = config
        self._path = path
        self._by: dict[bytes, str] = {}
        """Who asked this node for a record, until its row is written."""
        self._rows: list[AuditRow] = []
        self._tasks = TaskOwner("writing revocations", _logger)
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def revoke(self, record: Revocation, by: str) -> bool:
        """Put a record into effect in the whole fleet; return False if it is in effect already.

        Raises ConfigError if this node has no issuers, AuthError if none of them signed it, LocalProtocolError if there is no
        room.
        """
        service = self._live.engine.revoking
        if service is None or not (self._config.policy_issuers or record.heir is not None):
            raise ConfigError("policy_issuers", NO_ISSUERS)
        self._by[record.id] = by
        try:
            return self._live.act(lambda _engine, now, out: service.revoke(record, now, out))
        finally:
            self._by.pop(record.id, None)

    def take(self, taken: RevocationTaken) -> None:
        """Write a record that came into effect."""
        record = taken.record
        heir = "" if record.heir is None else f" by {record.heir.hex()}"
        told = f"{record.what.word} of {record.subject.hex()}{heir}: {record.reason}"
        if record.node_id == self._live.engine.node_id:
            _logger.error("issuer %s revoked this node itself: %s", record.issuer.hex(), told)
        by = self._by.get(record.id)
        self._rows.append(
            AuditRow(
                kind=AuditKind.REVOCATION,
                at=now_text(),
                by=f"{'issuer' if record.is_endorsed else 'key'} {record.issuer.hex()}" if by is None else by,
                via="fleet" if by is None else "revoke",
                node_id=f"{self._live.engine.node_id:016x}",
                result=APPLIED,
                subject=record.subject.hex(),
                changes=(f"revoke {told}",),
            )
        )
        self.keep()

    def keep(self) -> None:
        """Write all records soon."""
        if self._path is not None:
            self.saved = False
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write())

    async def close(self) -> None:
        """Wait until everything is written, or was tried once more."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        while self._rows or self.saved is False:
            rows, self._rows = self._rows, []
            saved = await self._save()
            await asyncio.to_thread(self._record, rows)
            if saved or self._rows:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._closing.wait()
            if self._closing.is_set():
                await self._save()
                return

    async def _save(self) -> bool:
        if self._path is None:
            return True
        records = tuple(self._live.engine.revocations)
        try:
            await asyncio.to_thread(save_revocations, self._path, records)
        except ConfigError as error:
            self._live.engine.counters.count(Reason.REFUSE_REVOCATION)
            _logger.warning("a revocation is in effect, but a restart would forget it: %s", error)
            return False
        self.saved = not self._rows
        return True

    def _record(self, rows: list[AuditRow]) -> None:
        try:
            log = AuditLog(self._config.audit_path())
            for row in rows:
                log.append(row)
        except ConfigError as error:
            _logger.warning("a revocation is not in the audit log: %s", error)
