"""Keeps the tokens of an open node: those that it presents, and their files. Renewed ones replace the old.

    TokenRenewed (engine/channels/renewal.py) ──► the list that requests take tokens from ──► subscriptions at publishers
                                              └─► the token file, if it came from one
    files that somebody replaced (`reload`)   ──► the same list and subscriptions, and a row of the audit log
    TokenIssued ──► a row of the audit log: this node has issued a token in place of an old one

The engine has answered already when the row is written: a renewal permits nothing that was not permitted before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from meshbus.config.node import NodeConfig
from meshbus.engine.base.notices import TokenIssued, TokenRenewed
from meshbus.errors import AuthError, AuthFault, ConfigError
from meshbus.keyfile import format_tokens, load_tokens, replace_file
from meshbus.node.audit import AuditLog, AuditRow, rotation_row
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.peers.noticelog import RotationRefused, SecretRotated
from meshbus.policy.tokens import Chain
from meshbus.wire.messages.token import encode_chain

NAME = "token"

_logger = logging.getLogger("meshbus.node")


class TokenKeeper:
    """The tokens of one node."""

    def __init__(
        self,
        live: Live,
        config: NodeConfig,
        tokens: list[Chain],
        notice: Callable[[SecretRotated | RotationRefused], None],
    ) -> None:
        """Begin with the chains that the node holds, those of its files first; the list changes when one is renewed."""
        self._live = live
        self._config = config
        self._notice = notice
        self._of_files: dict[Path, Chain] = dict(zip(config.tokens, tokens, strict=False))
        self.chains = tokens
        """What the node presents where a token is required."""
        self._storing = asyncio.Lock()
        self._tasks = TaskOwner("storing a token", _logger)

    def use_all(self) -> None:
        """Use every chain that the node holds; also after a change of the policy, which may trust an issuer from now on."""
        for chain in self.chains:
            self.use(chain)

    def use(self, chain: Chain) -> None:
        """Use a chain for our own publishing too, if we would trust it when presented by others, and renew it in time."""
        try:
            self._live.engine.tokens.insert_chain(chain)
        except AuthError as error:
            if error.fault is not AuthFault.NOT_AUTHORIZED:
                raise
        if len(chain) == 1:  # a delegated token ends with its parent
            self._live.act(lambda engine, now, _out: engine.hold_token(chain[0], now))

    def take(self, event: TokenRenewed | TokenIssued) -> None:
        """Handle what happened to a token."""
        match event:
            case TokenRenewed(old=old, new=new):
                self._replace((old,), (new,))
                self._tasks.start(self._store((old,), (new,)))
            case TokenIssued():
                self._tasks.start(self._record(event))

    async def close(self) -> None:
        """Wait until what happened is stored."""
        await self._tasks.close()

    async def reload(self, *, by: str, via: str) -> tuple[str, ...]:
        """Read the token files again, use those that were replaced, and return what changed, in words.

        Raises ConfigError, and changes nothing, if one of them cannot be read, its signature is wrong, or the row of the
        audit log cannot be written.
        """
        async with self._storing:
            try:
                read = {path: await asyncio.to_thread(load_tokens, path) for path in self._config.tokens}
                new = {path: chain for path, chain in read.items() if chain != self._of_files.get(path)}
                for path, chain in new.items():
                    _check_signatures(chain, path)
                changes = tuple(f"the token of {path} was replaced" for path in new)
                if changes:
                    await self._append(rotation_row(self._live.engine.node_id, by, via, changes=changes))
            except ConfigError as error:
                self._notice(RotationRefused(NAME, by, via, str(error)))
                raise
            for path, chain in new.items():
                self._replace(self._of_files[path], chain)
        if changes:
            self._notice(SecretRotated(NAME, by, via, changes))
        return changes

    def _replace(self, old: Chain, new: Chain) -> None:
        self.chains[:] = [new if chain == old else chain for chain in self.chains]
        self._of_files = {path: new if chain == old else chain for path, chain in self._of_files.items()}
        self._live.act(lambda engine, _now, _out: engine.drop_token(old[-1]))
        self.use(new)
        before, after = encode_chain(old), encode_chain(new)
        self._live.act(lambda engine, now, out: engine.token_renewed(before, after, now, out))

    async def _store(self, old: Chain, new: Chain) -> None:
        async with self._storing:
            for path in self._config.tokens:
                try:
                    if await asyncio.to_thread(load_tokens, path) == old:
                        await asyncio.to_thread(replace_file, path, format_tokens(new), "token")
                except ConfigError as error:
                    _logger.warning("a renewed token is not stored and will be asked for again: %s", error)

    async def _record(self, issued: TokenIssued) -> None:
        token = issued.token
        change = f"issued a token in place of an old one, valid for {token.not_after - token.not_before} s"
        here, by = self._live.engine.node_id, f"node {issued.node_id:016x}"
        row = rotation_row(here, by, "renewal", changes=(change,), subject=token.subject.hex())
        async with self._storing:
            try:
                await self._append(row)
            except ConfigError as error:
                _logger.warning("a renewed token is not in the audit log: %s", error)

    async def _append(self, row: AuditRow) -> None:
        await asyncio.to_thread(AuditLog(self._config.audit_path()).append, row)


def _check_signatures(chain: Chain, path: Path) -> None:
    if not all(token.has_good_signature() for token in chain):
        raise ConfigError("token", "is not signed by its issuer; copy it again, in full", source=str(path))
