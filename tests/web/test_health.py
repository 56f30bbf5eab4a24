"""A node is ready if it has a session with a peer that it needs, and its replicated channels take appends."""

from typing import Any

from meshbus.config import NodeConfig
from meshbus.node.node import Node
from meshbus.web.health import why_not_ready

AWAY = {"address": "127.0.0.1:9", "public_key": "11" * 32, "node_id": "01"}


def node(**settings: Any) -> Node:
    return Node.open(NodeConfig.load(None, {}, psk="5a" * 32, ephemeral=True, **settings))


async def test_a_node_without_needs_is_ready() -> None:
    async with node() as opened:
        assert why_not_ready(opened) == []


async def test_one_of_the_configured_peers_is_enough() -> None:
    async with node() as hub:
        reached = {"address": hub.address, "public_key": hub.public_key.hex()}
        async with node(peers=[AWAY, reached]) as opened:
            assert why_not_ready(opened) == ["no session with any of 2 configured peers"]
            await opened.connect(hub.address, public_key=hub.public_key)
            assert why_not_ready(opened) == []


async def test_a_replicated_channel_without_a_majority_is_told(tmp_path: Any) -> None:
    channels = [{"name": "alarms", "replicas": ["here", "there"]}]
    async with node(name="here", log_dir=tmp_path, channels=channels) as opened:
        (problem,) = why_not_ready(opened)
        assert problem.startswith("alarms: ")
