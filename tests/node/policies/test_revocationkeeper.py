"""Revocations of a running node: in effect at once, on disk soon, in the audit log, and there after a restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from meshbus.engine.base.notices import DownReason, PeerGone, RevocationTaken
from meshbus.errors import AuthError, ConfigError, LocalProtocolError
from meshbus.names.identity import Identity
from meshbus.node.audit import read_audit
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice
from meshbus.node.policies import revocationkeeper as subject
from meshbus.node.policies.revocationfile import load_revocations
from meshbus.policy.reason import Reason
from meshbus.wire.messages.revocation import Revocation, Revoked
from tests.node.test_node import QUICK, until

ISSUER, STRANGER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))


def sign(what: Revoked, key: bytes, issuer: Identity = ISSUER) -> Revocation:
    return Revocation.sign(issuer, what, key, at=1_700_000_000, reason="stolen")


def settings(folder: Path, **others: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    policy = folder / "policy.toml"
    policy.write_text("# nothing is restricted\n", "utf-8")
    return {
        **QUICK,
        "policy_file": policy,
        "policy_issuers": [ISSUER.entity_id],
        "revocations": folder / "id.revocations.toml",
        **others,
    }


async def test_a_revocation_reaches_a_neighbor_its_file_and_its_audit_log_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    notices: list[Notice] = []
    async with (
        Node.open(**settings(tmp_path / "boss")) as boss,
        Node.open(**settings(tmp_path / "hub")) as hub,
        Node.open(**QUICK) as rover,
    ):
        hub.watch(notices.append)
        await boss.connect(hub.address, public_key=hub.public_key)
        await rover.connect(hub.address, public_key=hub.public_key)
        await until(lambda: hub.key_of(rover.node_id) == rover.public_key)
        assert hub.key_of(hub.node_id) == hub.public_key
        assert hub.key_of(5) is None
        record = sign(Revoked.NODE, rover.public_key)
        assert boss.revoke(record, by="ada")
        assert not boss.revoke(record)
        await until(lambda: PeerGone(rover.node_id, DownReason.REVOKED) in notices)
        assert RevocationTaken(record, boss.node_id) in notices
        assert [peer.node_id for peer in hub.peers] == [boss.node_id]
        await until(lambda: hub.revocations_saved and boss.revocations_saved)
        assert hub.revocations == [record]
    for name, by, via in (("boss", "ada", "revoke"), ("hub", f"issuer {ISSUER.entity_id.hex()}", "fleet")):
        rows = read_audit(tmp_path / name / "policy.toml.history").rows
        (row,) = [row for row in rows if row.kind == "revocation"]
        assert (row.by, row.via, row.subject, row.result) == (by, via, rover.public_key.hex(), "applied")
        assert row.changes == (f"revoke node of {rover.public_key.hex()}: stolen",)
        assert load_revocations(tmp_path / name / "id.revocations.toml") == (record,)
    async with Node.open(**settings(tmp_path / "hub")) as hub:
        assert hub.revocations == [record]
        assert rover.node_id in hub.live.engine.revocations.nodes
        assert hub.revocations_saved


async def test_a_damaged_file_keeps_a_node_from_starting(tmp_path: Path) -> None:
    wish = settings(tmp_path)
    wish["revocations"].write_text("damaged", "utf-8")
    wish["revocations"].chmod(0o600)
    with pytest.raises(ConfigError, match="revocations"):
        await Node.open(**wish).start()


async def test_who_may_revoke(tmp_path: Path) -> None:
    async with Node.open(**settings(tmp_path)) as node, Node.open(**QUICK) as plain:
        with pytest.raises(AuthError, match="policy_issuers"):
            node.revoke(sign(Revoked.NODE, bytes(range(1, 33)), STRANGER))
        with pytest.raises(ConfigError, match="policy_issuers"):
            plain.revoke(sign(Revoked.NODE, bytes(range(1, 33))))
        assert plain.revocations_saved is None
        assert plain.revocations == []


async def test_a_disk_that_refuses_does_not_hinder_a_revocation_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subject, "RETRY_S", 0.05)
    wish = settings(tmp_path)
    blocked = tmp_path / "blocked"
    blocked.write_text("", "utf-8")  # a file where a folder is needed
    record = sign(Revoked.PUBLISH, STRANGER.entity_id)
    async with Node.open(**{**wish, "revocations": blocked / "id.revocations.toml"}) as node:
        node.revoke(record)
        assert STRANGER.node_id in node.live.engine.revocations.publishers
        what, why = Reason.REFUSE_REVOCATION.counter
        await until(lambda: node.counters.get(what, {}).get(why, 0) > 1)
        assert node.revocations_saved is False
        assert "a restart would forget it" in caplog.text
        blocked.unlink()
        await until(lambda: node.revocations_saved)
    assert load_revocations(blocked / "id.revocations.toml") == (record,)


async def test_closing_tries_once_more_and_does_not_wait(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("", "utf-8")
    async with asyncio.timeout(subject.RETRY_S):
        async with Node.open(**settings(tmp_path, revocations=blocked / "file")) as node:
            node.revoke(sign(Revoked.PUBLISH, STRANGER.entity_id))
    assert node.config.revocations == blocked / "file"


async def test_a_node_that_was_revoked_itself_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = tmp_path / "missing" / "audit"
    (tmp_path / "missing").write_text("", "utf-8")
    with caplog.at_level(logging.WARNING):
        async with Node.open(**settings(tmp_path / "node", audit_log=audit, revocations=None)) as node:
            node.revoke(sign(Revoked.NODE, node.public_key))
            assert node.revocations_saved is None
    assert "revoked this node itself" in caplog.text
    assert "not in the audit log" in caplog.text


async def test_a_name_means_the_node_that_came_again_with_another_key(tmp_path: Path) -> None:
    """Two nodes of one name are told apart by id only, unless one of them was revoked."""
    async with (
        Node.open(**settings(tmp_path / "hub")) as hub,
        Node.open(**QUICK, name="rover") as stolen,
        Node.open(**QUICK, name="rover") as rover,
    ):
        for one in (stolen, rover):
            await one.connect(hub.address, public_key=hub.public_key)
        await until(lambda: all(hub.name_of(one.node_id) == "rover" for one in (stolen, rover)))
        with pytest.raises(LocalProtocolError, match="more than one"):
            hub.find_node("rover")
        hub.revoke(sign(Revoked.NODE, stolen.public_key))
        assert hub.find_node("rover") == rover.node_id
        assert hub.name_of(stolen.node_id) == "rover"
