"""Invites of an open node: making, approving and withdrawing them, and deciding about newcomers.

    hello ──► known invite? ──► has the token and its own key? ──► allowed now? (policy/invites.py)
                                    ──► row of the audit log on disk ──► invites on disk ──► answer

A node with `issuer_key` can invite. Every change is on disk before it is answered, so a restart or a crash neither forgets a
newcomer that was admitted nor opens an invite again. A newcomer that has no token leaves no row, only a counter: strangers
must not be able to fill the audit log. The exchange itself is wire/joining.py, its connections are joinlistener.py, and the
newcomer's side is newcomer.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from meshbus.config.node import NodeConfig
from meshbus.engine.base.counters import Counters
from meshbus.errors import BadTag, ConfigError, MalformedPacket
from meshbus.names.identity import Identity, derive_node_id
from meshbus.node.audit import APPLIED, REFUSED, AuditKind, AuditLog, AuditRow, now_text
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.invites.grants import Grants
from meshbus.node.invites.invitefile import load_invites, save_invites
from meshbus.node.peers.noticelog import JoinNotice, JoinRefused, JoinWaiting, NodeJoined
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.invites import (
    Invite,
    InviteBook,
    InviteSpec,
    InviteState,
    approve,
    confirm,
    present,
    withdraw,
)
from meshbus.policy.reason import Reason
from meshbus.wire.certificate import MAX_TAG_BYTES, MAX_TAGS
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import Admission, Granted, JoinAnswer, Refused, Waiting, read_hello

MOST_REFUSALS = 16
"""Rows of the audit log about refused newcomers of one invite, while a node runs; the rest is counted only."""

_logger = logging.getLogger("meshbus.node")
T = TypeVar("T")


def unix_now() -> float:
    """Return the time in unix seconds, by which invites expire."""
    return time.time_ns() / 1e9


class InviteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An invite as its node lists it."""

    invite: str
    """Its id in hex, by which it is approved or withdrawn."""
    name: str
    tags: tuple[str, ...]
    subnet: str
    state: str
    """`open`, `waiting`, `approved`, `granted`, `used`, `withdrawn` or `expired`."""
    approval: bool
    expires: str
    """When, in UTC."""
    public_key: str | None
    """The key of the node that presented it first, which is the only one that can use it."""


class Exchange(NamedTuple):
    """What is answered to a newcomer that has the token."""

    invite_id: bytes
    admission: Admission
    sealed: bytes
    granted: bool
    """Whether a confirmation is to follow."""
    refused: bool


class Inviting:
    """The invites of one node."""

    def __init__(
        self,
        config: NodeConfig,
        identity: Identity,
        grants: Grants,
        counters: Counters,
        notice: Callable[[JoinNotice], None],
    ) -> None:
        """Read the invites of earlier runs. Raises ConfigError if their file is damaged."""
        self._identity = identity
        self._grants = grants
        self._counters = counters
        self._notice = notice
        self._path = config.invites_path()
        self._audit = AuditLog(config.audit_path())
        self._book = InviteBook(load_invites(self._path))
        self._refusals: Counter[bytes] = Counter()
        self._changing = asyncio.Lock()
        self._tasks = TaskOwner("a change of invites", _logger)

    async def close(self) -> None:
        """End what is under way; what is on disk is what the next start reads."""
        await self._tasks.close()

    async def _whole(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change in a task of its own, one after the other: a caller that goes away leaves none half done."""

        async def attempt() -> T | ConfigError:
            try:
                async with self._changing:
                    return await change
            except ConfigError as error:
                return error
            finally:
                change.close()  # at the end of the node it may not have begun

        outcome = await asyncio.shield(self._tasks.start(attempt()))
        if isinstance(outcome, ConfigError):
            raise outcome
        return outcome

    # ── operators ───────────────────────────────────────────────────────────────────────────

    def last_end(self) -> int | None:
        """Return when the last open invite expires, in unix seconds; None if none is open."""
        return self._book.last_end(unix_now())

    def infos(self) -> list[InviteInfo]:
        """Return all invites that are kept, the oldest first."""
        now = unix_now()
        return [_info(invite, now) for invite in self._book]

    async def invite(self, spec: InviteSpec, by: str) -> InviteToken:
        """Make an invite and return its token, which is kept nowhere. Raises ConfigError."""
        _check_tags(spec.tags)
        token = InviteToken.new(self._identity.entity_id, self._grants.issuer, os.urandom)
        await self._whole(self._add(token, spec, by))
        return token

    async def _add(self, token: InviteToken, spec: InviteSpec, by: str) -> None:
        now = unix_now()
        invite = Invite(
            invite_id=token.invite_id,
            psk=token.psk,
            issuer=token.issuer,
            expires=int(now) + spec.ttl_s,
            spec=spec,
        )
        book = InviteBook(self._book)
        book.add(invite, now)
        await self._store(book, self._row(invite, by, "invite", f"invited {_described(invite)}"))
        for gone in self._refusals.keys() - {one.invite_id for one in book}:
            del self._refusals[gone]

    async def approve(self, invite_id: bytes, by: str) -> InviteInfo:
        """Approve the newcomer that presented an invite. Raises ConfigError if no newcomer waits."""
        return await self._whole(self._change(invite_id, approve, by, "approve", "approved the newcomer for"))

    async def withdraw(self, invite_id: bytes, by: str) -> InviteInfo:
        """Withdraw an invite. Raises ConfigError if it is over."""
        return await self._whole(self._change(invite_id, withdraw, by, "withdraw", "withdrew the invite for"))

    async def _change(
        self, invite_id: bytes, change: Callable[[Invite, float], Invite], by: str, via: str, what: str
    ) -> InviteInfo:
        now = unix_now()
        invite = self._book.get(invite_id)
        if invite is None:
            raise ConfigError("invite", f"unknown invite {invite_id.hex()}; `meshbus invite ls` lists them")
        changed = change(invite, now)
        await self._put(changed, self._row(changed, by, via, f"{what} {_described(changed)}"))
        return _info(changed, now)

    # ── newcomers ───────────────────────────────────────────────────────────────────────────

    async def receive(self, hello: bytes) -> Exchange | Reason:
        """Decide about a newcomer by its first message; return the sealed answer, or a reason for somebody without a token.

        Raises MalformedPacket for something else than a hello.
        """
        invite_id, message = read_hello(hello)
        invite = self._book.get(invite_id)
        if invite is None:
            self._counters.count(Reason.REFUSE_JOIN_UNKNOWN)
            return Reason.REFUSE_JOIN_UNKNOWN
        try:
            admission = Admission(self._identity, invite_id, invite.issuer, invite.psk, message)
        except (BadTag, MalformedPacket):
            self._counters.count(Reason.REFUSE_JOIN_PROOF)
            return Reason.REFUSE_JOIN_PROOF
        answer = await self._whole(self._decide(invite_id, admission.newcomer))
        sealed = admission.answer(answer, os.urandom(32))
        return Exchange(invite_id, admission, sealed, isinstance(answer, Granted), isinstance(answer, Refused))

    async def _decide(self, invite_id: bytes, newcomer: bytes) -> JoinAnswer:
        now = unix_now()
        invite = self._book.get(invite_id)
        if invite is None:  # it was over, and made room for a new one just now
            self._counters.count(Reason.REFUSE_JOIN_UNKNOWN)
            return _refused(Reason.REFUSE_JOIN_UNKNOWN)
        revoked = self._grants.revoked(newcomer)
        outcome = Reason.REFUSE_REVOKED if revoked else present(invite, newcomer, self._grants.issuer, now)
        if isinstance(outcome, Reason):
            return await self._refuse(invite, newcomer, outcome)
        try:
            if outcome != invite:
                await self._put(outcome, self._row_of_newcomer(outcome, newcomer))
        except ConfigError as error:
            _logger.warning("a newcomer was not admitted: %s", error)
            self._counters.count(Reason.REFUSE_JOIN_STORAGE)
            return _refused(Reason.REFUSE_JOIN_STORAGE)
        shown = invite_id.hex()
        if outcome.state is InviteState.WAITING:
            if outcome != invite:
                self._notice(JoinWaiting(invite.spec.name, newcomer, shown))
            return Waiting(shown)
        if outcome != invite:
            self._notice(NodeJoined(invite.spec.name, newcomer, shown))
        return self._grants.grant(outcome, now)

    async def _refuse(self, invite: Invite, newcomer: bytes, reason: Reason) -> Refused:
        self._counters.count(reason)
        shown = invite.invite_id.hex()
        self._refusals[invite.invite_id] += 1
        if self._refusals[invite.invite_id] <= MOST_REFUSALS:
            self._notice(JoinRefused(invite.spec.name, newcomer, shown, reason.why, reason.sentence))
            row = self._row(invite, _newcomer(newcomer), "join", f"asked to join as {invite.spec.name}")
            row = msgspec.structs.replace(row, subject=newcomer.hex(), result=REFUSED, problem=reason.sentence)
            try:
                await asyncio.to_thread(self._audit.append, row)
            except ConfigError as error:
                _logger.warning("a refused newcomer is not in the audit log: %s", error)
        return _refused(reason)

    async def confirm(self, exchange: Exchange, signature: bytes) -> None:
        """Use up an invite whose newcomer confirms that it stored what it was granted."""
        if not exchange.admission.confirmed(signature):
            self._counters.count(Reason.REFUSE_JOIN_PROOF)
            return
        await self._whole(self._use_up(exchange.invite_id, exchange.admission.newcomer))

    async def _use_up(self, invite_id: bytes, newcomer: bytes) -> None:
        invite = self._book.get(invite_id)
        used = None if invite is None else confirm(invite, newcomer)
        if used is None or used == invite:
            return
        try:
            await self._put(used, None)
        except ConfigError as error:
            # The newcomer is in; its invite stays bound to its key, so no other node can use it.
            _logger.warning("a used invite is not stored: %s", error)

    # ── disk ────────────────────────────────────────────────────────────────────────────────

    async def _put(self, invite: Invite, row: AuditRow | None) -> None:
        book = InviteBook(self._book)
        book.put(invite)
        await self._store(book, row)

    async def _store(self, book: InviteBook, row: AuditRow | None) -> None:
        """Write a row and the invites; the change takes effect only if both are on disk. Raises ConfigError."""
        if row is not None:
            await asyncio.to_thread(self._audit.append, row)
        try:
            await asyncio.to_thread(save_invites, self._path, [*book])
        except ConfigError as error:
            if row is not None:
                refused = msgspec.structs.replace(row, result=REFUSED, problem=str(error))
                await asyncio.to_thread(self._audit.append, refused)
            raise
        self._book = book

    def _row_of_newcomer(self, invite: Invite, newcomer: bytes) -> AuditRow:
        what = "waits for approval as" if invite.state is InviteState.WAITING else "joined as"
        return self._row(invite, _newcomer(newcomer), "join", f"{what} {_described(invite)}")

    def _row(self, invite: Invite, by: str, via: str, change: str) -> AuditRow:
        return AuditRow(
            kind=AuditKind.JOIN,
            at=now_text(),
            by=by,
            via=via,
            node_id=f"{self._identity.node_id:016x}",
            result=APPLIED,
            subject=None if invite.subject is None else invite.subject.hex(),
            changes=(change,),
        )


def _refused(reason: Reason) -> Refused:
    return Refused(reason.why, reason.sentence)


def _check_tags(tags: tuple[str, ...]) -> None:
    """Refuse tags that no node can announce, or that do not fit a certificate."""
    capabilities = CapabilitySet()
    for tag in tags:
        try:
            capabilities = capabilities.add_tag(tag)
        except ConfigError as error:
            raise ConfigError("tags", error.problem) from None
    if len(tags) > MAX_TAGS or any(len(tag.encode()) > MAX_TAG_BYTES for tag in tags):
        raise ConfigError("tags", f"at most {MAX_TAGS} tags of up to {MAX_TAG_BYTES} bytes fit a certificate")


def _info(invite: Invite, now: float) -> InviteInfo:
    return InviteInfo(
        invite=invite.invite_id.hex(),
        name=invite.spec.name,
        tags=invite.spec.tags,
        subnet=str(invite.spec.subnet),
        state=invite.shown_state(now),
        approval=invite.spec.approval,
        expires=_date(invite.expires),
        public_key=None if invite.subject is None else invite.subject.hex(),
    )


def _described(invite: Invite) -> str:
    """Return an invite in words, for the audit log."""
    spec = invite.spec
    tags = f", tags {', '.join(spec.tags)}" if spec.tags else ""
    return f"{spec.name} (subnet {spec.subnet}{tags}, invite {invite.invite_id.hex()} until {_date(invite.expires)})"


def _newcomer(entity_id: bytes) -> str:
    return f"node {derive_node_id(entity_id):016x}"


def _date(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()
