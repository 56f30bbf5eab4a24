"""Secure sessions between real nodes: on by default, pinned over restarts, refused if they are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meshbus.engine.base.notices import PeerInsecure
from meshbus.engine.settings import SecureConfig
from meshbus.errors import ConfigError
from meshbus.keyfile import create_psk
from meshbus.node.driving import setup
from meshbus.node.node import Node
from meshbus.node.peers.pinfile import load_pins
from tests.patience import PATIENCE_S

CHANNEL = "sensors/lidar"


def node_at(folder: Path, **settings: Any) -> Node:
    key = folder.parent / "mesh.key"
    if not key.exists():
        create_psk(key)
    return Node.open(identity=folder / "id.toml", psk_file=key, heartbeat_s=0.5, session_timeout_s=2, **settings)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - two nodes agree
            await asyncio.sleep(0.01)


def is_secure(node: Node, other: Node) -> bool:
    return any(peer.node_id == other.node_id and peer.secure for peer in node.peers)


async def test_two_nodes_are_secure_by_default_and_remember_it(tmp_path: Path) -> None:
    async with node_at(tmp_path / "left") as left, node_at(tmp_path / "right") as right:
        await left.connect(right.address, public_key=right.public_key)
        await until(lambda: is_secure(left, right) and is_secure(right, left))
        async with right.subscribe(CHANNEL) as subscription:
            publisher = left.publisher(CHANNEL, reliable=True)
            await publisher.publish(b"scan")
            async with asyncio.timeout(PATIENCE_S):
                assert [event.payload async for event in first(subscription)] == [b"scan"]
        assert left.pins == {right.node_id: right.identity.entity_id}
    pins = {folder: load_pins(tmp_path / folder / "id.pins.toml") for folder in ("left", "right")}
    assert pins == {
        "left": {right.node_id: right.identity.entity_id},
        "right": {left.node_id: left.identity.entity_id},
    }


async def first(subscription: Any) -> Any:
    async for event in subscription:
        yield event
        return


async def test_a_node_that_is_not_secure_any_more_is_refused_after_a_restart_until_its_pin_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "SecureConfig", partial(SecureConfig, patience_s=0.5))
    async with node_at(tmp_path / "left") as left, node_at(tmp_path / "right") as right:
        await left.connect(right.address, public_key=right.public_key)
        await until(lambda: is_secure(left, right) and is_secure(right, left))
    async with node_at(tmp_path / "left") as left, node_at(tmp_path / "right", secure="off") as right:
        reported: list[PeerInsecure] = []
        left.watch(lambda notice: reported.append(notice) if isinstance(notice, PeerInsecure) else None)
        await left.connect(right.address, public_key=right.public_key)
        await until(lambda: reported)
        assert reported[0].node_id == right.node_id
        assert left.counters["refuse"]["downgrade"] == 1
        assert left.reset_pins(right.node_id) == 1
        with pytest.raises(ConfigError, match="not pinned"):
            left.reset_pins(right.node_id)
        async with left.subscribe(CHANNEL) as subscription:
            await right.publisher(CHANNEL).publish(b"scan")
            async with asyncio.timeout(PATIENCE_S):
                assert [event.payload async for event in first(subscription)] == [b"scan"]


async def test_a_damaged_file_of_pins_keeps_a_node_from_starting(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    async with node_at(folder):
        pass
    (folder / "id.pins.toml").write_text("nonsense")
    (folder / "id.pins.toml").chmod(0o600)
    with pytest.raises(ConfigError, match="damaged"):
        async with node_at(folder):
            pass


def test_a_node_cannot_require_what_it_does_not_offer() -> None:
    with pytest.raises(ConfigError, match="'require' needs the meshbus profile"):
        Node.open(psk=bytes(32), ephemeral=True, profile=False, secure="require")
