"""A running node stores its renewed tokens, and an issuer's node writes a row for each."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from meshbus.config.node import NodeConfig
from meshbus.engine.base.notices import TokenIssued, TokenRenewed
from meshbus.errors import AuthError, ConfigError
from meshbus.keyfile import create_identity, create_psk, format_tokens, load_identity, load_tokens
from meshbus.names.identity import Identity
from meshbus.node.audit import read_audit
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice, RotationRefused, SecretRotated
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.patience import PATIENCE_S

CHANNEL = "sensors/lidar"


def token_of(issuer: Identity, subject: Identity, *, age_s: int = 80, **fields: Any) -> PermissionToken:
    """Issue a token of 100 s that is so old."""
    now = time.time_ns() // 10**9 - age_s
    scope = Scope.SUBSCRIBE | Scope.RENEWABLE
    given = {"ttl_s": 100, "now": now, "entropy": os.urandom, **fields}
    return PermissionToken.issue(issuer, subject.entity_id, scope, CHANNEL, **given)


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - another node decides it
            await asyncio.sleep(0.01)


async def test_a_renewed_token_is_stored_and_recorded(tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    issuer, holder = create_identity(tmp_path / "issuer.toml"), create_identity(tmp_path / "holder.toml")
    old = token_of(issuer, holder)
    (tmp_path / "token").write_text(format_tokens((old,)), "utf-8")
    common: dict[str, Any] = {"psk_file": tmp_path / "mesh.key", "bind": "127.0.0.1:0"}
    signing = Node.open(identity=tmp_path / "issuer.toml", renew_tokens_s=100, **common)
    holding = Node.open(identity=tmp_path / "holder.toml", tokens=[tmp_path / "token"], **common)
    async with signing, holding:
        await holding.connect(signing.address, public_key=signing.public_key)
        await until(lambda: load_tokens(tmp_path / "token") != (old,))
        (new,) = load_tokens(tmp_path / "token")
        assert new.follows(old)
        assert holding._tokens == [(new,)]
        await until(lambda: read_audit(tmp_path / "issuer.audit").rows)
    (row,) = read_audit(tmp_path / "issuer.audit").rows
    assert (row.kind, row.via, row.result, row.subject) == ("rotation", "renewal", "applied", holder.entity_id.hex())
    assert row.changes == ("issued a token in place of an old one, valid for 100 s",)


async def test_replaced_files_are_used_after_a_reload(tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    issuer, holder = create_identity(tmp_path / "issuer.toml"), create_identity(tmp_path / "holder.toml")
    next_issuer = create_identity(tmp_path / "next.toml")
    old, new = token_of(issuer, holder), token_of(next_issuer, holder, age_s=0)
    file = tmp_path / "token"
    file.write_text(format_tokens((old,)), "utf-8")
    given: dict[str, Any] = {"identity": tmp_path / "holder.toml", "psk_file": tmp_path / "mesh.key", "tokens": [file]}
    notices: list[Notice] = []
    async with Node.open(**given) as node:
        node.watch(notices.append)
        assert await node.rotate_tokens() == ()
        file.write_text(format_tokens((new,)), "utf-8")
        assert await node.rotate_tokens(by="ada") == (f"the token of {file} was replaced",)
        assert node._tokens == [(new,)]
        assert await node.rotate_tokens() == ()
        wrong = PermissionToken(**{**{name: getattr(new, name) for name in new.__struct_fields__}, "nonce": 0})
        file.write_text(format_tokens((wrong,)), "utf-8")
        with pytest.raises(ConfigError, match="is not signed by its issuer"):
            await node.rotate_tokens()
        assert node._tokens == [(new,)]
    (row,) = read_audit(tmp_path / "holder.audit").rows
    assert (row.kind, row.by, row.via, row.changes) == (
        "rotation", "ada", "apply", (f"the token of {file} was replaced",),
    )  # fmt: skip
    assert [type(notice) for notice in notices if isinstance(notice, SecretRotated | RotationRefused)] == [
        SecretRotated,
        RotationRefused,
    ]


async def test_what_cannot_be_stored_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_psk(tmp_path / "mesh.key")
    issuer, holder = create_identity(tmp_path / "issuer.toml"), create_identity(tmp_path / "holder.toml")
    old, new = token_of(issuer, holder), token_of(issuer, holder, age_s=0)
    file = tmp_path / "token"
    file.write_text(format_tokens((old,)), "utf-8")
    node = Node.open(identity=tmp_path / "holder.toml", psk_file=tmp_path / "mesh.key", tokens=[file])
    async with node:
        keeper = node._opened.tokens
        file.unlink()
        keeper.take(TokenRenewed(1, old, new))
        keeper._config = NodeConfig(ephemeral=True)
        keeper.take(TokenIssued(1, new))
        with caplog.at_level(logging.WARNING):
            await until(lambda: "is not in the audit log" in caplog.text)
        assert node._tokens == [(new,)]


async def test_a_token_with_a_wrong_signature_is_our_error(tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    issuer = create_identity(tmp_path / "issuer.toml")
    async with Node.open(identity=tmp_path / "issuer.toml", psk_file=tmp_path / "mesh.key") as node:
        good = token_of(issuer, load_identity(tmp_path / "issuer.toml"))
        wrong = PermissionToken(**{**{name: getattr(good, name) for name in good.__struct_fields__}, "nonce": 0})
        with pytest.raises(AuthError):
            node.add_token(wrong)
        node.add_token(good)
        assert node._tokens == [(good,)]


async def test_a_policy_that_trusts_an_issuer_makes_the_tokens_of_this_node_count_for_its_own_publishing(
    tmp_path: Path,
) -> None:
    create_psk(tmp_path / "mesh.key")
    issuer, holder = create_identity(tmp_path / "issuer.toml"), create_identity(tmp_path / "holder.toml")
    now = time.time_ns() // 10**9
    token = PermissionToken.issue(
        issuer, holder.entity_id, Scope.PUBLISH, CHANNEL, ttl_s=100, now=now, entropy=os.urandom
    )
    (tmp_path / "token").write_text(format_tokens((token,)), "utf-8")
    channel = f'[[channels]]\nname = "{CHANNEL}"\nrequire_token = true\n'
    policy = tmp_path / "policy.toml"
    policy.write_text(channel, "utf-8")
    given: dict[str, Any] = {"policy_file": policy, "tokens": [tmp_path / "token"], "psk_file": tmp_path / "mesh.key"}
    async with Node.open(identity=tmp_path / "holder.toml", **given) as node:
        with pytest.raises(AuthError):
            await node.publisher(CHANNEL).publish(b"scan")
        policy.write_text(f'trusted_issuers = ["{issuer.entity_id.hex()}"]\n{channel}', "utf-8")
        await node.apply_policy(by="ada")
        await node.publisher(CHANNEL).publish(b"scan")
        policy.write_text(channel, "utf-8")
        await node.apply_policy(by="ada")
        with pytest.raises(AuthError):
            await node.publisher(CHANNEL).publish(b"scan")
