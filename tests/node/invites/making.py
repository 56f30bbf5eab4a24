"""What tests of invites share: an inviting node without its sockets, and newcomers that speak to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from meshbus.config.node import NodeConfig
from meshbus.config.spelling import Endpoint
from meshbus.engine.base.counters import Counters
from meshbus.names.identity import Identity
from meshbus.node.audit import AuditRow, read_audit
from meshbus.node.invites.grants import Grants, NodeState
from meshbus.node.invites.inviting import Exchange, Inviting
from meshbus.policy.invites import InviteSpec
from meshbus.policy.reason import Reason
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import JoinAnswer, Newcomer

INVITER, ISSUER = Identity.from_seed(b"n" * 32), Identity.from_seed(b"i" * 32)
ROBOT, EVE = Identity.from_seed(b"r" * 32), Identity.from_seed(b"e" * 32)
MESH_KEY = bytes(range(32))


class Inviter:
    """One inviting node, as far as invites go."""

    def __init__(self, folder: Path, issuer: Identity = ISSUER, **settings: Any) -> None:
        self.config = NodeConfig(identity=folder / "id.toml", **settings)
        self.counters = Counters()
        self.notices: list[Any] = []
        address = Endpoint("127.0.0.1", 9000)
        self.revoked: set[int] = set()
        state = NodeState(lambda: MESH_KEY, lambda: (), lambda: address, self.revoked.__contains__)
        grants = Grants(self.config, issuer, state)
        self.inviting = Inviting(self.config, INVITER, grants, self.counters, self.notices.append)

    async def invite(self, **spec: Any) -> InviteToken:
        return await self.inviting.invite(InviteSpec(**{"name": "rover-7", **spec}), "ada")

    async def hear(self, token: InviteToken, identity: Identity = ROBOT) -> tuple[Newcomer, Exchange]:
        """Let a newcomer with the token ask once."""
        newcomer = Newcomer(token, identity, os.urandom(32))
        exchange = await self.inviting.receive(newcomer.hello)
        assert isinstance(exchange, Exchange), exchange
        return newcomer, exchange

    async def ask(self, token: InviteToken, identity: Identity = ROBOT) -> JoinAnswer:
        newcomer, exchange = await self.hear(token, identity)
        return newcomer.take(exchange.sealed)

    async def join(self, token: InviteToken, identity: Identity = ROBOT) -> JoinAnswer:
        """Let a newcomer ask and confirm."""
        newcomer, exchange = await self.hear(token, identity)
        answer = newcomer.take(exchange.sealed)
        await self.inviting.confirm(exchange, newcomer.done())
        return answer

    def rows(self) -> list[AuditRow]:
        found = read_audit(self.config.audit_path())
        assert found.problems == []
        return found.rows

    def counted(self, reason: Reason) -> int:
        return self.counters.get(*reason.counter)
