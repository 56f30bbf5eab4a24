"""A command without a running node does the same as one with it: its own node is the mesh."""

import asyncio

import pytest

from meshbus.cli.temporary import NodeMesh, temporary_node
from meshbus.config import NodeConfig
from meshbus.errors import ConfigError
from meshbus.node.node import Node
from tests.patience import PATIENCE_S

PSK = "5a" * 32


def config(hub: Node) -> NodeConfig:
    peer = {"address": hub.address, "public_key": hub.public_key.hex()}
    return NodeConfig.load(None, {}, psk=PSK, ephemeral=True, peers=[peer])


async def test_everything_that_can_be_asked() -> None:
    async with Node.open(psk=PSK, ephemeral=True, name="hub") as hub, hub.respond("plan", _upper):
        hub.publisher("sensors/a")
        async with temporary_node(config(hub)) as node:
            mesh = NodeMesh(node)
            assert (await mesh.status())["peers"] == 1
            assert (await mesh.ping("hub", PATIENCE_S))["name"] == "hub"
            assert (await mesh.request("plan", b"a", node=None, timeout_s=PATIENCE_S))["payload"] == "A"
            assert [row["channel"] for row in await mesh.channels()] == ["sensors/a"]
            assert await mesh.counters()
            assert await mesh.measure("bench/a", timeout_s=0.01) is None


async def test_requests_are_answered_until_it_is_enough() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as hub, temporary_node(config(hub)) as node:
        until, ready = asyncio.Event(), asyncio.Event()
        serving = asyncio.ensure_future(NodeMesh(node).respond("plan", _upper, ready=ready.set, until=until))
        await ready.wait()
        assert await hub.request(node.node_id, "plan", b"x", timeout_s=PATIENCE_S) == b"X"
        until.set()
        await serving


async def test_a_node_without_peers_is_no_mesh() -> None:
    with pytest.raises(ConfigError, match="no peer is configured; give --connect and --public-key"):
        async with temporary_node(NodeConfig.load(None, {}, psk=PSK, ephemeral=True)):
            pass


async def _upper(payload: bytes) -> bytes:
    return payload.upper()
