"""Announcements: a real node finds us by what we announce, and we find it."""

import asyncio

from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.registry import SubprotocolRegistry
from meshbus.policy.views import GpuVendor
from meshbus.wire.constants import Subprotocol
from tests.interop.lab import Lab, eventually, eventually_there


async def test_it_finds_us_by_the_tag_of_a_subprotocol_that_we_handle(lab: Lab) -> None:
    peer, node = await lab.pair()
    wanted = SubprotocolRegistry.capability_filter_for(Subprotocol.MEMBERSHIP)
    assert wanted.require_tags == ("subprotocol:0x0a00",)
    found = await eventually_there(
        peer.find_nodes, {"require_tags": list(wanted.require_tags)}, gives=lambda found: found != []
    )
    assert found == [node.node_id]
    not_ours = SubprotocolRegistry.capability_filter_for(Subprotocol.SNAPSHOT)
    assert await asyncio.to_thread(peer.find_nodes, {"require_tags": list(not_ours.require_tags)}) == []


async def test_it_finds_us_in_whichever_way_we_joined(lab: Lab) -> None:
    peer, node = lab.peer(), await lab.node(tags=["lidar"], metadata={"site": "hall 3"})
    peer.start()
    await lab.join_running(node, peer)
    await eventually_there(peer.find_nodes, {"require_tags": ["lidar"]}, gives=lambda found: found == [node.node_id])


async def test_it_hears_when_what_we_can_do_changes(lab: Lab) -> None:
    peer, node = await lab.pair(node_settings={"tags": ["lidar"]})
    await eventually_there(peer.find_nodes, {"require_tags": ["lidar"]}, gives=lambda found: found == [node.node_id])
    node.announce(CapabilitySet({"radar"}))
    await eventually_there(peer.find_nodes, {"require_tags": ["radar"]}, gives=lambda found: found == [node.node_id])
    assert await asyncio.to_thread(peer.find_nodes, {"require_tags": ["lidar"]}) == []


async def test_it_takes_the_names_of_our_channels_for_ordinary_tags(lab: Lab) -> None:
    peer, node = await lab.pair(node_settings={"tags": ["lidar"]})
    async with node.publisher("site/hall-3/lidar_0.front"):
        wanted = {"require_tags": ["lidar", "publishes:site/hall-3/lidar_0.front"]}
        await eventually_there(peer.find_nodes, wanted, gives=lambda found: found == [node.node_id])


async def test_we_find_it_by_what_it_announces(lab: Lab) -> None:
    """The binding announces to nobody who joined by a routed handshake (mesh §3), so this is about direct ones."""
    peer, node = await lab.pair()
    capabilities = {
        "tags": ["lidar"],
        "hardware": {"memory_gb": 64, "gpu": {"vendor": "nvidia", "model": "h100", "vram_gb": 80}},
        "models": [{"model_id": "llama", "context_length": 8192, "modalities": ["text"]}],
        "tools": [{"tool_id": "search", "name": "search"}],
    }
    assert peer.node_id not in node.find_nodes()
    await asyncio.to_thread(peer.announce_capabilities, capabilities)
    await eventually(lambda: peer.node_id in node.find_nodes(), "its announcement")
    for wanted in (
        CapabilityFilter(require_tags=("lidar",)),
        CapabilityFilter(min_memory_gb=64),
        CapabilityFilter(gpu_vendor=GpuVendor.NVIDIA, min_vram_gb=80),
        CapabilityFilter(require_models=("llama",), min_context_length=8192),
        CapabilityFilter(require_tools=("search",)),
    ):
        assert node.find_nodes(wanted) == [peer.node_id], wanted
    for unwanted in (
        CapabilityFilter(require_tags=("radar",)),
        CapabilityFilter(min_memory_gb=65),
        CapabilityFilter(gpu_vendor=GpuVendor.AMD),
        CapabilityFilter(require_models=("other",)),
    ):
        assert node.find_nodes(unwanted) == [], unwanted
    [known] = node.peers
    assert {"lidar", "nat:unknown", "hardware.memory_gb=64"} <= set(known.tags)
    assert not known.profile


async def test_a_node_that_joins_later_is_told_at_once_by_both_sides(lab: Lab) -> None:
    peer, node = lab.peer(), await lab.node(tags=["ours"])
    peer.announce_capabilities({"tags": ["theirs"]})
    await lab.join(node, peer)
    theirs = CapabilityFilter(require_tags=("theirs",))
    await eventually(lambda: node.find_nodes(theirs) == [peer.node_id], "its earlier announcement")
    await eventually_there(peer.find_nodes, {"require_tags": ["ours"]}, gives=lambda found: found == [node.node_id])


async def test_announcements_travel_through_us_and_through_it(lab: Lab) -> None:
    """Two real nodes that know only us hear of each other, and we of a node that only a real one knows."""
    node = await lab.node()
    first, second, beyond = lab.peer(), lab.peer(), lab.peer()
    accepting = second.begin("accept", beyond.node_id)
    await asyncio.to_thread(beyond.connect, second.address, second.public_key, second.node_id)
    accepting.result(5)
    await lab.join(node, first)
    await lab.join(node, second)
    beyond.start()
    await asyncio.to_thread(beyond.announce_capabilities, {"tags": ["far"]})
    far = CapabilityFilter(require_tags=("far",))
    await eventually(lambda: node.find_nodes(far) == [beyond.node_id], "the announcement over one hop")
    found = await eventually_there(first.find_nodes, {"require_tags": ["far"]}, gives=lambda found: found != [])
    assert found == [beyond.node_id]
    assert {one.node_id for one in node.peers} == {first.node_id, second.node_id}
