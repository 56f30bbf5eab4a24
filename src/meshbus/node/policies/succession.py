"""Lets an open node go on under another key: its identity is replaced while its sessions, streams and subscriptions stay.

    can it? ──► new key ──► record, signed by both keys (and an issuer) ──► row of the audit log ──► identity file
       └── no ──► refused with what to do first; nothing changed                                        │ the moment it counts
                                      peers sign their sessions anew ◄── record to all peers, new key ◄─┘

The identity file is replaced in one step, and holds the record beside the new secret. So whenever the node is killed, it starts
with exactly one of the two keys, and with the record if and only if it has the new one: before the file is replaced nobody has
heard of the new key, and afterwards the node hands out the record when it is up again. The secret never leaves the node.

What peers do with the record is in engine/directory/revoking.py and in the hook `renamed` of the services.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from meshbus.config.node import NodeConfig
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.session.peer import Health, Peer
from meshbus.engine.settings import SecureMode
from meshbus.errors import ConfigError, MeshError, Timeout
from meshbus.keyfile import replace_identity
from meshbus.names.identity import Identity
from meshbus.node.audit import AuditLog, AuditRow, rotation_row
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.driving.waiting import Kind
from meshbus.node.peers.noticelog import RotationRefused, SecretRotated
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.revocation import Revocation

NAME = "identity"
REASON = "its key was rotated"
"""What a record says if the caller gives no reason."""

ASK_S = 0.5
"""How long a peer has to answer before it is asked again. Our choice: more than most round trips."""

_logger = logging.getLogger("meshbus.node")


class IdentityKeeper:
    """The identity of one node."""

    def __init__(
        self,
        live: Live,
        config: NodeConfig,
        path: Path | None,
        issuer: Identity | None,
        notice: Callable[[SecretRotated | RotationRefused], None],
    ) -> None:
        """Keep the identity in a file, or without one in memory only; `issuer` signs for the fleet, if this node has it."""
        self.bonds: Callable[[], str | None] = lambda: None
        """Returns what ties this node to its present key beside its peers, as a sentence; None if nothing does."""
        self._live = live
        self._config = config
        self._path = path
        self._issuer = issuer
        self._notice = notice
        self._draft: tuple[Identity, Revocation] | None = None
        self._changing = asyncio.Lock()
        self._tasks = TaskOwner("a change of the identity", _logger)

    def prepare(self, reason: str, issuer: bytes | None) -> Revocation:
        """Make a new key and the record that names it; an issuer that it names still has to endorse it.

        A key that was prepared before is forgotten. Raises ConfigError if this node cannot go on under another key, and
        LocalProtocolError if the reason is too long.
        """
        self._check()
        new = Identity.generate(os.urandom)
        own, at = self._live.engine.identity, time.time_ns() // 10**9
        record = Revocation.succeed(own, new, at=at, reason=reason, issuer=issuer)
        self._draft = new, record
        return record

    async def apply(self, record: Revocation | None, *, by: str, via: str, timeout_s: float) -> tuple[str, ...]:
        """Continue under the key that was prepared, or under a new one; return what changed, in words.

        Raises ConfigError or Timeout, and changes nothing, if that is not possible now.
        """
        # In a task of its own: a caller that goes away must not leave a change half done.
        outcome = await asyncio.shield(self._tasks.start(self._attempt(record, by, via, timeout_s)))
        if isinstance(outcome, MeshError):
            raise outcome
        return outcome

    async def close(self) -> None:
        """End what is under way; a key that is stored but not in use yet is that of the next start."""
        await self._tasks.close()

    async def _attempt(
        self, record: Revocation | None, by: str, via: str, timeout_s: float
    ) -> tuple[str, ...] | MeshError:
        async with self._changing:
            old = self._live.engine.node_id
            try:
                new, complete = self._complete(record)
                peers = self._check()
                await self._heard(peers, timeout_s)
                heir, before = new.entity_id.hex(), complete.subject.hex()
                told = f"the key {before} was replaced by {heir}; the node id is {new.node_id:016x} now"
                changes: tuple[str, ...] = (told,)
                await asyncio.to_thread(self._store, new, complete, rotation_row(old, by, via, changes=changes))
            except MeshError as error:
                await asyncio.to_thread(self._record_refusal, rotation_row(old, by, via, problem=str(error)))
                self._notice(RotationRefused(NAME, by, via, str(error)))
                return error
            self._draft = None

            def switch(engine: Engine, now: float, out: Output) -> None:
                assert engine.revoking is not None, "checked above"
                engine.revoking.succeed(new, complete, now, out)

            self._live.act(switch)
            late = await self._signed(peers, timeout_s)
            if late:
                names = ", ".join(f"{node_id:016x}" for node_id in late)
                changes += (f"not yet confirmed by {names}; their sessions go on when they have the record",)
            self._notice(SecretRotated(NAME, by, via, changes))
            return changes

    def _complete(self, record: Revocation | None) -> tuple[Identity, Revocation]:
        """Return the next identity and its record with all signatures."""
        issuers, issuer = self._config.policy_issuers, self._issuer
        if record is None:
            named = None if issuer is None or not issuers else issuer
            record = self.prepare(REASON, None if named is None else named.entity_id)
            record = record if named is None else record.endorse(named)
        draft = self._draft
        if draft is None or record.signed_bytes != draft[1].signed_bytes:
            raise ConfigError(
                "record", "was not prepared by this node, or is not its last one; run `meshbus rotate identity` again"
            )
        if issuers and record.issuer not in issuers:
            raise ConfigError(
                "policy_issuers",
                "one of them has to sign that this node gets another key; use `meshbus rotate identity --identity"
                " ISSUER_FILE`",
            )
        if not record.verify():
            raise ConfigError("record", f"is not signed by its issuer {record.issuer.hex()}; sign it again")
        return draft[0], record

    def _check(self) -> list[Peer]:
        """Return the peers that have to follow. Raises ConfigError with what has to be done first."""
        engine = self._live.engine
        if engine.revoking is None or self._config.secure is SecureMode.OFF:
            raise ConfigError(
                "secure", "is off, so peers could not tell the new key from one of an attacker; set it to auto"
            )
        problem = self.bonds()
        if problem is not None:
            raise ConfigError("identity", problem)
        present = [peer for peer in engine.peers if peer.health is not Health.FAILED]
        plain = [peer for peer in present if not (peer.link.epoch and peer.uses(Subprotocol.REVOCATION))]
        if plain:
            names = ", ".join(f"{peer.node_id:016x}" for peer in plain)
            raise ConfigError(
                "identity",
                f"{names} cannot follow, because plain net-mesh nodes and older versions know this node by its key; disconnect"
                " them, rotate, and give them the new key",
            )
        return present

    async def _heard(self, peers: list[Peer], timeout_s: float) -> None:
        """Wait until every peer has answered, so that all of them learn of the new key at once. Raises Timeout."""
        silent = {peer.node_id: peer for peer in peers}
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while silent:
                    # Again and again: a single message may be lost.
                    await self._ask(silent)
        if silent:
            names = ", ".join(f"{node_id:016x}" for node_id in sorted(silent))
            raise Timeout(f"peers before a change of the identity, {names}; nothing was changed", timeout_s)

    async def _ask(self, silent: dict[int, Peer]) -> None:
        """Ask peers whether they are there, and wait a moment; remove those that are."""
        reflex, news = self._live.engine.traversal.reflex, asyncio.Event()

        def heard(node_id: int) -> None:
            silent.pop(node_id, None)
            if not silent:
                news.set()

        def ask(_engine: Engine, _now: float, out: Output) -> list[Callable[[], None]]:
            return [reflex.ping(peer, partial(heard, node_id), out) for node_id, peer in silent.items()]

        stops = self._live.act(ask)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await news.wait()
        finally:
            for stop in stops:
                stop()

    async def _signed(self, peers: list[Peer], timeout_s: float) -> list[int]:
        """Wait until the sessions with these peers are signed by the new key; return those that are not in time."""
        secure, table = self._live.engine.secure, self._live.engine.peers

        def unsigned() -> list[int]:
            there = [peer.node_id for peer in peers if table.get(peer.node_id) is peer]
            return [node_id for node_id in there if not secure.is_signed(node_id)]

        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while late := unsigned():
                    await self._live.waiting.for_(Kind.SECURED, late[0])
        return unsigned()

    def _store(self, new: Identity, record: Revocation, row: AuditRow) -> None:
        """Write the row, then the file."""
        AuditLog(self._config.audit_path()).append(row)
        if self._path is not None:
            replace_identity(self._path, new, record)

    def _record_refusal(self, row: AuditRow) -> None:
        try:
            AuditLog(self._config.audit_path()).append(row)
        except ConfigError as unwritten:
            _logger.warning("a refused change of the identity is not in the audit log: %s", unwritten)
