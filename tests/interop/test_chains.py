"""Chains: a real node finds what we hold by the tag of the chain, and we find what it holds."""

import asyncio

from meshbus.policy.tag import chain_range_tag, chain_tag
from meshbus.wire.messages.redex import chain_of, channel_id
from tests.interop.lab import Lab, eventually, eventually_there


async def test_it_finds_the_chain_of_a_channel_that_we_hold_until_we_withdraw_it(lab: Lab) -> None:
    peer, node = lab.peer(), await lab.node(tags=["lidar"])
    node.announce_chain("alarms/fire", tip=41)
    await lab.join(node, peer)
    ours = {"require_tags": [chain_tag(chain_of(channel_id("alarms/fire")), tip=41)]}
    await eventually_there(peer.find_nodes, ours, gives=lambda found: found == [node.node_id])
    assert node.find_chain_holders("alarms/fire") == [node.node_id]
    node.withdraw_chain("alarms/fire")
    await eventually_there(peer.find_nodes, ours, gives=lambda found: found == [])
    assert await asyncio.to_thread(peer.find_nodes, {"require_tags": ["lidar"]}) == [node.node_id]
    assert node.find_chain_holders("alarms/fire") == []


async def test_we_find_the_chains_that_it_announces_in_all_forms(lab: Lab) -> None:
    peer, node = await lab.pair()
    other = await lab.node()
    await other.connect(node.address, public_key=node.public_key)
    tags = [chain_tag(1), chain_tag(2, tip=7), chain_range_tag(3, 2, 9)]
    await asyncio.to_thread(peer.announce_capabilities, {"tags": tags})
    await eventually(lambda: node.find_chain_holders(1) == [peer.node_id], "its announcement")
    assert [node.find_chain_holders(chain) for chain in (2, 3, 4)] == [[peer.node_id], [peer.node_id], []]
    # What a real node announced is passed on by us.
    await eventually(lambda: other.find_chain_holders(1) == [peer.node_id], "its announcement over one hop")
