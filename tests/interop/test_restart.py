"""A node that was restarted is the same node again: same identity, same port, new session, on either side."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshbus.engine.base.notices import SessionUp
from meshbus.engine.base.packets import Train
from meshbus.engine.session.candidate import AMPLIFICATION, PROOF_AFTER_S
from meshbus.errors import HandshakeError
from meshbus.node.driving.udp import BUFFER_BYTES, UdpSocket
from meshbus.node.node import Node
from meshbus.policy.capability import CapabilityFilter
from meshbus.testing.realpeer import RealPeer
from tests.interop.lab import Lab, eventually, eventually_there, notice, take

QUICK = {"heartbeat_interval_ms": 100, "session_timeout_ms": 500}


async def restarted(lab: Lab, node: Node, **settings: Any) -> Node:
    """End a node and start it anew, where it was."""
    address = node.address
    await node.close()
    return await lab.node(identity=node.config.identity, bind=address, **settings)


async def assert_events_flow(node: Node, peer: RealPeer, channel: str) -> None:
    async with node.subscribe(channel) as subscription:
        await asyncio.to_thread(peer.publish, channel, b"from there")
        assert await take(subscription, 1) == [b"from there"]
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, channel)
    assert (await node.publisher(channel).publish("from here")).delivered == 1
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["from here"]


async def test_a_real_node_takes_our_restarted_node_back(lab: Lab, tmp_path: Path) -> None:
    peer, first = lab.peer(permissive_channels=True), await lab.node(identity=tmp_path / "id.toml", tags=["first"])
    tap = await lab.join(first, peer)
    await assert_events_flow(first, peer, "life/one")
    second = await restarted(lab, first, tags=["second"])
    assert second.node_id == first.node_id
    await second.connect(tap.peer_address, node_id=peer.node_id, public_key=peer.public_key)
    assert peer.peer_count() == 1
    await assert_events_flow(second, peer, "life/two")
    # The announcement of the second life is not taken for an old one of the first.
    await eventually_there(peer.find_nodes, {"require_tags": ["second"]}, gives=lambda found: found == [second.node_id])


async def test_a_real_node_that_had_connected_takes_our_restarted_node_back(lab: Lab, tmp_path: Path) -> None:
    """It knows our key then, and answers only when the old session was silent for its timeout (mesh §3)."""
    patient = {"handshake_timeout_s": 0.25, "handshake_attempts": 20}
    peer = lab.peer(permissive_channels=True, **QUICK)
    first = await lab.node(identity=tmp_path / "id.toml")
    tap = lab.tap(first, peer.address)
    first.accept(peer.node_id)
    await asyncio.to_thread(peer.connect, tap.node_address, first.noise_public_key, first.node_id)
    peer.start()
    await assert_events_flow(first, peer, "life/one")
    key = first.noise_public_key
    second = await restarted(lab, first, **patient)
    assert second.noise_public_key == key
    await second.connect(tap.peer_address, node_id=peer.node_id, public_key=peer.public_key)
    await assert_events_flow(second, peer, "life/two")


async def test_a_real_node_may_connect_again_to_our_restarted_node(lab: Lab, tmp_path: Path) -> None:
    peer, first = lab.peer(permissive_channels=True), await lab.node(identity=tmp_path / "id.toml")
    tap = await lab.join(first, peer)
    second = await restarted(lab, first)
    second.accept(peer.node_id)
    await asyncio.to_thread(peer.connect, tap.node_address, second.noise_public_key, second.node_id)
    await assert_events_flow(second, peer, "life/two")


async def test_from_another_port_a_restarted_node_gets_no_answer(lab: Lab, tmp_path: Path) -> None:
    """A 0.23 node answers where it saw a node last, which is why ours binds its old port again."""
    peer, first = lab.peer(), await lab.node(identity=tmp_path / "id.toml")
    await lab.join(first, peer)
    await first.close()
    moved = await lab.node(identity=tmp_path / "id.toml", handshake_timeout_s=0.3, handshake_attempts=1)
    with pytest.raises(HandshakeError, match="no answer"):
        await moved.connect(peer.address, node_id=peer.node_id, public_key=peer.public_key)


@pytest.mark.parametrize("who", ["we", "it"])
async def test_our_node_takes_a_restarted_real_node_back(lab: Lab, who: str) -> None:
    """It has a new Noise key after every start, so it must be asked for it, or connect by itself."""
    first, node = lab.peer(permissive_channels=True, seed=b"r" * 32), await lab.node()
    first.announce_capabilities({"tags": ["first"]})
    tap = await lab.join(node, first)
    await eventually(lambda: finds(node, "first") == [first.node_id], "its first announcement")
    async with node.subscribe("life/theirs") as subscription:
        await asyncio.to_thread(first.publish, "life/theirs", b"first life")
        assert await take(subscription, 1) == [b"first life"]
        await notice(node, SessionUp)
        first.kill()
        # It proves the session that it began with its first heartbeat, which is 5 s away unless configured.
        second = lab.peer(permissive_channels=True, seed=first.seed, bind=first.address, **QUICK)
        assert (second.node_id, second.address) == (first.node_id, first.address)
        assert second.public_key != first.public_key
        if who == "we":
            second.start()
            await node.connect(tap.peer_address, node_id=second.node_id, public_key=second.public_key)
        else:
            node.accept(second.node_id)
            await asyncio.to_thread(second.connect, tap.node_address, node.noise_public_key, node.node_id)
            second.start()
        # The new process knows nothing of our subscription: our node asks for it again.
        await eventually_there(
            lambda: second.publish("life/theirs", b"second life"), gives=lambda report: report["attempted"] == 1
        )
        assert (await take(subscription, 1))[0] == b"second life"
    assert [known.node_id for known in node.peers] == [second.node_id]


async def test_a_meshbus_node_takes_a_restarted_meshbus_node_back(lab: Lab, tmp_path: Path) -> None:
    other, first = await lab.node(), await lab.node(identity=tmp_path / "id.toml")
    await first.connect(other.address, public_key=other.public_key)
    await eventually(lambda: bool(other.peers) and other.peers[0].profile, "the profile")
    async with other.subscribe("life/first") as subscription:
        await first.publisher("life/first", reliable=True).publish("first life")
        assert await take(subscription, 1) == [b"first life"]
        second = await restarted(lab, first)
        await second.connect(other.address, public_key=other.public_key)
        await eventually(lambda: second.roster.members("life/first") == [other.node_id], "our subscription")
        await eventually(lambda: second.peers[0].profile, "the profile")
        await second.publisher("life/first", reliable=True).publish("second life")
        assert await take(subscription, 1) == [b"second life"]
    assert len(other.peers) == len(second.peers) == 1


def finds(node: Node, tag: str) -> list[int]:
    return node.find_nodes(CapabilityFilter(require_tags=(tag,)))


async def test_a_recorded_handshake_brings_no_absent_node_back(lab: Lab, tmp_path: Path) -> None:
    """An outsider without the mesh key sends it again, to the restarted node, from an address that is not its own."""
    first, absent = await lab.node(identity=tmp_path / "id.toml"), await lab.node(profile=False)
    tap = lab.tap(absent, first.address)
    await absent.connect(tap.peer_address, public_key=first.public_key)
    recorded = next(datagram for outgoing, datagram in tap.routed if outgoing)
    await absent.close()
    second = await restarted(lab, first)
    heard: list[int] = []
    victim = UdpSocket.bind("127.0.0.1", 0, receive_buffer=BUFFER_BYTES)
    try:
        host, _, port = second.address.rpartition(":")
        victim.send([Train(victim.resolve(host, int(port)), recorded, len(recorded))])

        def listen() -> bool:
            while (batch := victim.drain()) is not None:
                heard.extend(batch.lengths.tolist())
            return len(heard) == 1 + len(PROOF_AFTER_S)

        await eventually(listen, "its answer, and that it asks for a proof")
    finally:
        victim.close()
    assert sum(heard) <= AMPLIFICATION * len(recorded)
    assert second.peers == []
    assert absent.node_id not in {route.node_id for route in second.mesh.routes}
