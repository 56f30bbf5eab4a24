"""Configured peers: dialed until they are there and again when they come back, visibly, and not against the user's will."""

import asyncio
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshbus.engine.base.notices import HandshakeFailed, SessionUp
from meshbus.errors import LocalProtocolError
from meshbus.names.identity import Identity
from meshbus.node.admin import peer_rows
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.node import Node
from meshbus.node.peers.redial import FIRST_PAUSE_S, MAX_PAUSE_S, DialState, PeerUnreachable, pauses
from tests.node.test_node import PSK, take, until
from tests.patience import PATIENCE_S

QUICK: dict[str, Any] = {"psk": PSK, "heartbeat_s": 0.1, "session_timeout_s": 1.0, "membership_ack_timeout_s": 1.0}


@pytest.fixture
def place() -> str:
    """Return a free address."""
    with UdpSocket.bind("127.0.0.1", 0) as chosen:
        return f"127.0.0.1:{chosen.address[1]}"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, Any]:
    """Return the settings of a node that keeps its identity."""
    return {**QUICK, "identity": tmp_path / "home.toml"}


def configured(address: str, identity: Identity) -> dict[str, Any]:
    """Return the settings of a node with one configured peer."""
    return {**QUICK, "ephemeral": True, "peers": [{"address": address, "public_key": identity.entity_id.hex()}]}


def identity_of(home: dict[str, Any]) -> Identity:
    return Node.open(**home).identity


async def agreed(*nodes: Node) -> None:
    """Wait until two nodes speak the profile; a goodbye is part of it."""
    await until(lambda: all(node.peers and node.peers[0].profile for node in nodes), PATIENCE_S)


async def subscribed(publisher: Node, channel: str, subscriber: Node) -> None:
    """Wait until a node has subscribed to a channel of another."""
    await until(lambda: publisher.roster.members(channel) == [subscriber.node_id], PATIENCE_S)


def state(node: Node) -> DialState:
    """Return what a node does about its configured peer."""
    return node.dialing[0].state


def test_pauses_double_up_to_a_bound_with_repeatable_jitter() -> None:
    longest = [next_ for next_, _ in zip(pauses(lambda: 1.0), range(60), strict=False)]
    assert longest[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert longest[-1] == MAX_PAUSE_S
    one, again = ([pause for pause, _ in zip(pauses(Random(7).random), range(20), strict=False)] for _ in range(2))
    assert one == again
    assert all(most / 2 <= pause <= most for pause, most in zip(one, longest, strict=False))


async def test_a_configured_peer_that_starts_later_is_reached(home: dict[str, Any], place: str) -> None:
    identity = identity_of(home)
    async with Node.open(**configured(place, identity)) as node:
        heard: list[object] = []
        node.watch(heard.append)
        async with node.subscribe("sensors/lidar") as subscription:
            await until(lambda: any(isinstance(notice, PeerUnreachable) for notice in heard), PATIENCE_S)
            async with Node.open(**home, bind=place) as late:
                await until(lambda: late.roster.members("sensors/lidar"), PATIENCE_S)
                await late.publisher("sensors/lidar").publish(b"here I am")
                assert await take(subscription, 1) == [b"here I am"]
        assert not any(isinstance(notice, HandshakeFailed) for notice in heard), "told as PeerUnreachable"


@pytest.mark.parametrize("goodbye", [True, False])
async def test_subscriptions_and_reliable_streams_resume_when_a_configured_peer_restarts(
    home: dict[str, Any], place: str, goodbye: bool
) -> None:
    async with Node.open(**configured(place, identity_of(home))) as node, node.subscribe("sensors/lidar") as theirs:
        ours = node.publisher("orders", reliable=True)
        for life in range(3):
            server = Node.open(**home, bind=place)
            await server.start()
            async with server.subscribe("orders") as orders:
                await subscribed(server, "sensors/lidar", node)
                await subscribed(node, "orders", server)
                await agreed(node, server)
                expected = [b"%d.%d" % (life, number) for number in range(200)]
                sending = server.publisher("sensors/lidar", reliable=True)
                for payload in expected:
                    assert (await sending.publish(payload)).delivered == 1
                    assert (await ours.publish(payload)).delivered == 1
                assert await take(theirs, 200) == expected
                got: list[bytes] = []
                while not got or got[-1] != expected[-1]:
                    got += await take(orders, 1)
                # What the life before had not acknowledged when it crashed is sent again, to the next life.
                again = [b"%d.%d" % (life - 1, number) for number in range(200 - len(got) + 200, 200)]
                assert got == (expected if goodbye else again + expected)
                if not goodbye:
                    server.live.driver.close()  # nothing is sent any more, as after a crash
            await server.close()
            await until(lambda: state(node) is not DialState.CONNECTED, PATIENCE_S)


async def test_a_restarted_node_with_configured_peers_subscribes_again(home: dict[str, Any], place: str) -> None:
    async with Node.open(**QUICK, ephemeral=True, bind=place) as base:
        dialing = {**home, "peers": [{"address": place, "public_key": base.public_key.hex()}]}
        for number in range(3):
            async with Node.open(**dialing) as node, node.subscribe("orders") as orders:
                await subscribed(base, "orders", node)
                await base.publisher("orders").publish(b"%d" % number)
                assert await take(orders, 1) == [b"%d" % number]
            await until(lambda: not base.peers, PATIENCE_S)


async def test_disconnect_stops_the_dialing_until_connect_is_called(home: dict[str, Any], place: str) -> None:
    async with Node.open(**home, bind=place) as server, Node.open(**configured(place, server.identity)) as node:
        await agreed(node, server)
        node.disconnect(server.node_id)
        assert state(node) is DialState.STOPPED
        await until(lambda: not server.peers, PATIENCE_S)
        await asyncio.sleep(3 * FIRST_PAUSE_S)
        assert node.peers == server.peers == []
        await node.connect(place, public_key=server.public_key)
        await agreed(node, server)
        assert state(node) is DialState.CONNECTED
        server.disconnect(node.node_id)
        await until(lambda: node.peers == [], PATIENCE_S)
        await until(lambda: state(node) is DialState.CONNECTED, PATIENCE_S)


async def test_what_is_done_about_an_absent_peer_can_be_seen(home: dict[str, Any], place: str) -> None:
    identity = identity_of(home)
    async with Node.open(**configured(place, identity)) as node:
        assert node.dialing[0].last_error is None
        await until(lambda: node.dialing[0].next_try_s is not None, PATIENCE_S)
        (dial,) = node.dialing
        assert (dial.node_id, dial.address, dial.state) == (identity.node_id, place, DialState.WAITING)
        assert dial.tries >= 1
        assert re.search("no answer|no program listens", str(dial.last_error))
        await until(lambda: peer_rows(node)[0]["next_try_s"] is not None, PATIENCE_S)
        (row,) = peer_rows(node)
        assert row["health"] == "waiting"
        assert row["node_id"] == f"{identity.node_id:016x}"
        assert re.search("no answer|no program listens", row["last_error"])
        async with Node.open(**home, bind=place):
            await until(lambda: state(node) is DialState.CONNECTED, PATIENCE_S)
            (row,) = peer_rows(node)
            assert row["health"] == "alive"
            assert (node.dialing[0].tries, node.dialing[0].last_error) == (0, None)


async def test_the_application_may_connect_elsewhere_while_a_wrong_address_is_dialed(
    home: dict[str, Any], place: str
) -> None:
    with UdpSocket.bind("127.0.0.1", 0) as silent:
        wrong = f"127.0.0.1:{silent.address[1]}"
        async with (
            Node.open(**home, bind=place) as server,
            Node.open(**{**configured(wrong, server.identity), "handshake_timeout_s": 60.0}) as node,
        ):
            await until(lambda: server.node_id in node.live.engine.handshakes.connecting, PATIENCE_S)
            assert (await node.connect(place, public_key=server.public_key)).node_id == server.node_id
            assert node.dialing[0].address == place, "what worked is dialed from now on"


async def test_closing_while_a_peer_is_dialed_leaves_nothing_behind(home: dict[str, Any], place: str) -> None:
    node = Node.open(**configured(place, identity_of(home)))
    await node.start()
    await until(lambda: node.live.engine.handshakes.connecting, PATIENCE_S)
    await node.close()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_session_that_the_peer_began_counts(home: dict[str, Any], place: str) -> None:
    identity = identity_of(home)
    async with Node.open(**configured(place, identity)) as node:
        events: list[object] = []
        node.watch(events.append)
        # From another port than the configured one, so that only its own attempt can succeed.
        async with Node.open(**home) as server:
            await server.connect(node.address, public_key=node.public_key)
            await until(lambda: state(node) is DialState.CONNECTED, PATIENCE_S)
            assert [type(event) for event in events if isinstance(event, SessionUp)] == [SessionUp]


async def test_a_fleet_may_share_one_list_of_peers(home: dict[str, Any], place: str) -> None:
    entry = {"address": place, "public_key": identity_of(home).entity_id.hex()}
    async with Node.open(**home, bind=place, peers=[entry]) as node:
        assert node.dialing == [], "it does not dial itself"


async def test_a_configured_net_mesh_node_may_always_begin_a_session_itself(home: dict[str, Any], place: str) -> None:
    """Its Noise key is a new one after every start, so the configured one does not reach it any more."""
    other = identity_of(home)
    entry = {"address": place, "public_key": "07" * 32, "node_id": f"{other.node_id:016x}"}
    async with Node.open(**QUICK, ephemeral=True, peers=[entry]) as node:
        for _ in range(3):
            async with Node.open(**home, bind=place) as again:
                await again.connect(node.address, public_key=node.public_key, routed=False)
                await until(lambda: state(node) is DialState.CONNECTED, PATIENCE_S)
                await agreed(node, again)


async def test_a_connect_that_ends_with_the_node_does_not_dial_on(home: dict[str, Any], place: str) -> None:
    node = Node.open(**{**configured(place, identity_of(home)), "handshake_timeout_s": 60.0})
    await node.start()
    calling = asyncio.ensure_future(node.connect(place, public_key=identity_of(home).entity_id))
    await until(lambda: node.live.engine.handshakes.connecting, PATIENCE_S)
    await node.close()
    with pytest.raises(LocalProtocolError, match="the node was closed"):
        await calling
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_disconnect_during_a_connect_stops_the_dialing(home: dict[str, Any], place: str) -> None:
    with UdpSocket.bind("127.0.0.1", 0) as silent:
        wrong = f"127.0.0.1:{silent.address[1]}"
        async with Node.open(**{**configured(wrong, identity_of(home)), "handshake_timeout_s": 60.0}) as node:
            calling = asyncio.ensure_future(node.connect(wrong, public_key=identity_of(home).entity_id))
            await until(lambda: state(node) is DialState.CONNECTING, PATIENCE_S)
            node.disconnect(identity_of(home).node_id)
            calling.cancel()
            await asyncio.wait([calling])
            assert state(node) is DialState.STOPPED
