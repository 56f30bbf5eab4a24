"""Invites of an open node: made, used by a second node that then gets events, kept over a restart."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshbus
from meshbus.errors import ConfigError, JoinError
from meshbus.keyfile import create_identity, create_psk
from meshbus.names.subnet import SubnetId
from meshbus.node.invites.newcomer import join
from meshbus.node.node import Node
from meshbus.policy.invites import InviteSpec
from tests.patience import PATIENCE_S

CHANNEL = "sensors/lidar"
SPEC = InviteSpec(name="rover-7", tags=("lidar",), subnet=SubnetId.parse("3.7"))


def hub_at(folder: Path, **settings: Any) -> Node:
    if not (folder / "mesh.key").exists():
        create_psk(folder / "mesh.key")
        create_identity(folder / "issuer.toml")
    return Node.open(
        name="hub",
        identity=folder / "hub.toml",
        psk_file=folder / "mesh.key",
        issuer_key=folder / "issuer.toml",
        join_bind="127.0.0.1:0",
        **settings,
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another task changes it
            await asyncio.sleep(0.01)


async def test_a_node_that_joined_gets_events_over_a_secure_session(tmp_path: Path) -> None:
    async with hub_at(tmp_path) as hub:
        assert [hub.join_address] == [None]
        made = await hub.invite(SPEC, by="ada")
        assert made.token not in repr(made)
        assert made.address == hub.join_address
        joined = await join(made.token, made.address, tmp_path / "rover" / "node.toml")
        await until(lambda: hub.join_address is None)  # nobody else is invited
        async with Node.open(joined.config) as rover, rover.subscribe(CHANNEL) as subscription:
            assert rover.certificate == joined.certificate
            await until(lambda: [peer.secure for peer in hub.peers] == [True])
            (peer,) = hub.peers
            assert (peer.node_id, peer.name, str(rover.config.subnet)) == (joined.node_id, "rover-7", "3.7")
            assert "lidar" in peer.tags
            publisher = hub.publisher(CHANNEL, reliable=True)
            await until(lambda: CHANNEL in hub.roster)
            await publisher.publish(b"scan")
            async with asyncio.timeout(PATIENCE_S):
                async for event in subscription:
                    assert event.payload == b"scan"
                    break


async def test_invites_survive_a_restart_of_the_inviting_node(tmp_path: Path) -> None:
    async with hub_at(tmp_path) as hub:
        made = await hub.invite(SPEC)
        other = await hub.invite(SPEC)
        await hub.withdraw_invite(other.invite.invite)
    async with hub_at(tmp_path) as hub:
        assert [info.state for info in hub.invites()] == ["open", "withdrawn"]
        assert hub.join_address is not None
        with pytest.raises(JoinError, match="An operator withdrew the invite"):
            await join(other.token, hub.join_address, tmp_path / "b" / "node.toml")
        await join(made.token, hub.join_address, tmp_path / "a" / "node.toml")
        await until(lambda: hub.join_address is None)
        assert hub.counters["refuse"]["join_withdrawn"] == 1


async def test_approving_and_what_is_wrong(tmp_path: Path) -> None:
    async with hub_at(tmp_path) as hub:
        made = await hub.invite(InviteSpec(name="rover-7", approval=True))
        with pytest.raises(ConfigError, match="is open; only a newcomer that waits is approved"):
            await hub.approve_invite(made.invite.invite)
        for wrong in ("xy", "00"):
            with pytest.raises(ConfigError, match="must be an id of 16 hex digits"):
                await hub.approve_invite(wrong)
        with pytest.raises(ConfigError, match="unknown invite"):
            await hub.withdraw_invite("00" * 8)
        asked = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(
                join(made.token, made.address, tmp_path / "r" / "node.toml", on_waiting=lambda _: asked.set())
            )
            await asked.wait()
            info = await hub.approve_invite(made.invite.invite)
            assert info.state == "approved"
        assert joining.result().public_key.hex() == info.public_key


async def test_a_node_without_an_issuer_cannot_invite(tmp_path: Path) -> None:
    async with meshbus.Node.open(psk="5a" * 32, ephemeral=True) as node:
        assert (node.join_address, node.certificate) == (None, None)
        with pytest.raises(ConfigError, match="issuer_key: is not set, so this node cannot invite others"):
            await node.invite(SPEC)
    (tmp_path / "policy.toml").touch()
    with pytest.raises(ConfigError, match="must be the key of one of the policy_issuers"):
        hub_at(tmp_path, policy_issuers=["ab" * 32], policy_file=tmp_path / "policy.toml")


async def test_an_address_that_is_taken_refuses_the_invite_and_a_start_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_at(tmp_path) as hub:
        made = await hub.invite(SPEC)
        settings: dict[str, Any] = {"psk": "5a" * 32, "issuer_key": tmp_path / "issuer.toml", "join_bind": made.address}
        async with Node.open(identity=tmp_path / "second.toml", **settings) as second:
            with pytest.raises(ConfigError, match="join_bind: cannot listen for newcomers"):
                await second.invite(SPEC)
            assert second.invites() == []
    async with hub_at(tmp_path) as hub:
        assert hub.join_address is not None
        blocked = {**settings, "join_bind": hub.join_address, "psk": "5b" * 32}
        (tmp_path / "third.invites.toml").write_bytes((tmp_path / "hub.invites.toml").read_bytes())
        (tmp_path / "third.invites.toml").chmod(0o600)
        async with Node.open(identity=tmp_path / "third.toml", **blocked) as third:
            assert third.join_address is None
    assert "open invites cannot be used" in caplog.text
