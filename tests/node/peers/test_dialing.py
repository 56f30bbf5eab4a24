"""Connecting as a user does, on loopback: at an address, and past NATs that the nodes only believe in."""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251 - a port that never answers
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from meshbus.engine.base.notices import Path, Reached, SessionUp
from meshbus.engine.base.packets import Output
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.errors import HandshakeError, LocalProtocolError, PeerError
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.udp import UdpAddress, UdpSocket
from meshbus.node.node import Node
from meshbus.node.peers.info import PeerInfo
from meshbus.wire.messages.address import parse_address
from tests.node.test_node import until
from tests.patience import PATIENCE_S

PSK = "5a" * 32


@pytest.fixture
async def town() -> AsyncIterator[list[Node]]:
    """Return two hubs, and two nodes that are connected to both and have found out that they are open."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node.open(psk=PSK, ephemeral=True)) for _ in range(4)]
        for node in nodes[2:]:
            for hub in nodes[:2]:
                await node.connect(hub.address, public_key=hub.public_key)
        yield nodes


async def eventually(node: Node, other: Node, kind: Nat) -> None:
    """Wait until a node has heard what kind of NAT another is behind."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = node.live.engine.traversal.addresses.get(other.node_id, Driver.now())
            if found is not None and found.nat is kind and node.mesh.nat.nat is not Nat.UNKNOWN:
                return
            await asyncio.sleep(0.01)


def pretend(node: Node, kind: Nat) -> None:
    """Make a node believe that it is behind a NAT, and announce that at once."""
    status, out = NatStatus(kind, parse_address(node.address)), Output()
    node.live.engine.traversal.nat.status = status
    node.live.engine.announcer.set_nat(status, Driver.now(), out)
    node.live.engine.announcer._broadcast(Driver.now(), out)
    node.live.driver.apply(out)


async def test_open_nodes_reach_each_other_directly(town: list[Node]) -> None:
    *_, here, there = town
    await eventually(here, there, Nat.OPEN)
    assert str(here.mesh.nat.reflex) == here.address
    reached = await here.connect_direct(there.node_id)
    assert (reached.node_id, reached.relayed) == (there.node_id, False)
    assert here.counters["traversal"] == {"direct": 1}
    assert await here.connect_direct(there.node_id) is not None, "and again"


@pytest.mark.parametrize("key", ["public_key", "noise_public_key"])
async def test_key_and_coordinator_are_enough_before_anything_was_announced(town: list[Node], key: str) -> None:
    hub, _, here, there = town
    here.live.engine.traversal.addresses._nodes.pop(there.node_id)
    given = getattr(there, key).hex()
    reached = await here.connect_direct(there.node_id, public_key=given, coordinator=hub.node_id)
    assert not reached.relayed


async def test_nodes_behind_nats_are_introduced(town: list[Node]) -> None:
    hub, _, here, there = town
    await eventually(here, there, Nat.OPEN)
    for node in (here, there):
        pretend(node, Nat.CONE)
    await eventually(here, there, Nat.CONE)
    reached = await here.connect_direct(there.node_id, coordinator=hub.node_id)
    assert not reached.relayed
    assert here.counters["traversal"] == {"punch_attempted": 1, "punch_succeeded": 1}
    assert hub.counters["introduction"]["made"] == 1
    async with there.subscribe("town/news", publisher=here.node_id) as news:
        await here.publisher("town/news").publish(b"hello")
        assert (await anext(aiter(news))).payload == b"hello"


async def test_a_neighbor_relays_where_hole_punching_fails(town: list[Node]) -> None:
    *_, here, there = town
    await eventually(here, there, Nat.OPEN)
    for node in (here, there):
        pretend(node, Nat.SYMMETRIC)
    await eventually(here, there, Nat.SYMMETRIC)
    reached = await here.connect_direct(there.node_id)
    assert reached.relayed
    async with there.subscribe("town/news", publisher=here.node_id) as news:
        await here.publisher("town/news").publish(b"hello")
        assert (await anext(aiter(news))).payload == b"hello"
    notices = here.notices()
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(notice := await anext(notices), Reached):
            pass
    assert notice == Reached(there.node_id, Path.RELAYED)


async def test_a_connect_that_cannot_work_fails_at_once(town: list[Node]) -> None:
    here = town[2]
    with pytest.raises(PeerError, match="no announcement of it has arrived"):
        await here.connect_direct(12345)
    with pytest.raises(LocalProtocolError, match="public key"):
        await here.connect_direct(12345, public_key="abc")
    with pytest.raises(LocalProtocolError, match="public key"):
        await here.connect("127.0.0.1:9", public_key="abc")


async def test_a_failed_connect_gives_the_reason() -> None:
    async with Node.open(psk=PSK, ephemeral=True, handshake_timeout_s=0.05, handshake_attempts=1) as node:
        with pytest.raises(HandshakeError, match=r"no answer|no program listens"):
            await node.connect("127.0.0.1:9", public_key=node.public_key[::-1], node_id=7)


@pytest.fixture
async def patient() -> AsyncIterator[Node]:
    """Return a node that would wait minutes for an answer."""
    async with Node.open(psk=PSK, ephemeral=True, handshake_timeout_s=60.0) as node:
        yield node


async def begun(node: Node, target: int) -> None:
    """Wait until a handshake is in progress."""
    await until(lambda: target in node.live.engine.handshakes.connecting)


async def test_a_connect_that_is_cancelled_ends_its_attempt_and_the_next_one_starts_at_once(patient: Node) -> None:
    async with Node.open(psk=PSK, ephemeral=True) as there:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await patient.connect("127.0.0.1:9", public_key=there.public_key)
        assert not patient.live.engine.handshakes.connecting
        reached = await patient.connect(there.address, public_key=there.public_key)
        assert reached.node_id == there.node_id


async def test_canceling_one_connect_does_not_cancel_others_to_the_same_node(patient: Node) -> None:
    async with Node.open(psk=PSK, ephemeral=True) as there:
        target = there.node_id
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{silent.getsockname()[1]}"

            def dial() -> asyncio.Task[PeerInfo]:
                return asyncio.ensure_future(patient.connect(address, public_key=there.public_key))

            calls = [dial() for _ in range(3)]
            await begun(patient, target)
            with pytest.raises(HandshakeError, match="another handshake with node"):
                await patient.connect(there.address, public_key=there.public_key)
            calls[0].cancel()
            await asyncio.wait(calls[:1])
            assert patient.live.engine.handshakes.connecting == {target}, "two still wait for it"
            patient.live.waiting.tell(SessionUp(target, 1, True))
            outcomes = await asyncio.gather(*calls[1:], return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [PeerError] * 2, "both heard of the session"
            last = dial()
            await asyncio.sleep(0)
            last.cancel()
            await asyncio.wait([last])
            assert not patient.live.engine.handshakes.connecting, "nobody waits any more"
        assert (await patient.connect(there.address, public_key=there.public_key)).node_id == target


async def test_a_connect_direct_that_is_cancelled_ends_its_attempt(town: list[Node]) -> None:
    *_, here, there = town
    await eventually(here, there, Nat.OPEN)
    await there.close()
    engine = here.live.engine
    direct = asyncio.ensure_future(here.connect_direct(there.node_id))
    await begun(here, there.node_id)
    assert engine.traversal.reaching == {there.node_id}
    direct.cancel()
    with pytest.raises(asyncio.CancelledError):
        await direct
    assert not engine.traversal.reaching
    assert not engine.handshakes.connecting


async def test_the_name_of_the_own_address_is_looked_up_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    turned, real = threading.Event(), UdpSocket.bind

    def slow(host: str, port: int, **given: Any) -> UdpSocket:
        assert host == "localhost"
        assert turned.wait(PATIENCE_S), "the loop stood still while the name was looked up"
        return real("127.0.0.1", port, **given)

    monkeypatch.setattr(UdpSocket, "bind", slow)
    node = Node.open(psk=PSK, ephemeral=True, bind="localhost:0")
    starting = asyncio.ensure_future(node.start())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, turned.set)
    await starting
    await node.close()


async def test_a_name_that_takes_long_to_look_up_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Node.open(psk=PSK, ephemeral=True) as hub, Node.open(psk=PSK, ephemeral=True) as node:
        turned, real = threading.Event(), UdpSocket.resolve

        def slow(sock: UdpSocket, host: str, port: int) -> UdpAddress:
            assert turned.wait(PATIENCE_S), "the loop stood still while the name was looked up"
            return real(sock, "127.0.0.1", port)

        monkeypatch.setattr(UdpSocket, "resolve", slow)
        port = hub.address.rpartition(":")[2]
        connecting = asyncio.ensure_future(node.connect(f"localhost:{port}", public_key=hub.public_key))
        await asyncio.sleep(0)
        turned.set()
        assert (await connecting).node_id == hub.node_id
