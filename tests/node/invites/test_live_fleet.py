"""A node joins a fleet of five that is under load: nothing is lost, nothing is sent in plain, and the policy follows."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from meshbus.config.policyfile import signed_content
from meshbus.keyfile import load_identity
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.channels.subscription import Subscription
from meshbus.node.invites.newcomer import join
from meshbus.node.node import Node
from meshbus.policy.invites import InviteSpec
from meshbus.wire.messages.fleetpolicy import PolicyStatement
from tests.node.invites.test_invites import CHANNEL, SPEC, hub_at, until
from tests.patience import PATIENCE_S

BATCH = 20
"""Events at a time."""
SEEN = 400
"""Events that the newcomer has to see."""


def is_secure(node: Node) -> bool:
    return all(peer.secure for peer in node.peers)


async def publish(publisher: ChannelPublisher, enough: asyncio.Event) -> int:
    """Publish numbers until it is enough; return how many."""
    number = 0
    while not enough.is_set():
        await publisher.publish_batch([str(number + place).encode() for place in range(BATCH)])
        number += BATCH
        await asyncio.sleep(0.005)
    return number


async def collect(subscription: Subscription, into: list[int]) -> None:
    async for event in subscription:
        into.append(int(event.payload))  # noqa: PERF401 - others look at it meanwhile


async def test_a_newcomer_under_load_costs_nobody_an_event(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        hub = await stack.enter_async_context(hub_at(tmp_path))
        got: list[list[int]] = [[] for _ in range(5)]
        readers = asyncio.TaskGroup()
        await stack.enter_async_context(readers)
        fleet = []
        for number in range(4):
            folder = tmp_path / f"member{number}"
            member = Node.open(identity=folder / "id.toml", psk_file=tmp_path / "mesh.key", secure="require")
            fleet.append(await stack.enter_async_context(member))
            await member.connect(hub.address, public_key=hub.public_key)
            await until(partial(is_secure, member))
            subscription = await stack.enter_async_context(member.subscribe(CHANNEL))
            readers.create_task(collect(subscription, got[number]))
        enough = asyncio.Event()
        publisher = hub.publisher(CHANNEL, reliable=True)
        publishing = readers.create_task(publish(publisher, enough))
        await until(lambda: all(len(one) > BATCH for one in got[:4]))

        made = await hub.invite(SPEC)
        joined = await join(made.token, made.address, tmp_path / "rover" / "node.toml")
        rover = await stack.enter_async_context(Node.open(joined.config))
        # It knows the key of the hub before the first packet, so nothing less than a secure session is ever taken.
        assert rover.pins == {hub.node_id: hub.public_key}
        subscription = await stack.enter_async_context(rover.subscribe(CHANNEL))
        readers.create_task(collect(subscription, got[4]))
        await until(lambda: len(got[4]) >= SEEN)
        enough.set()
        count = await publishing
        await until(lambda: all(one and one[-1] == count - 1 for one in got))

        assert got[:4] == [list(range(count))] * 4
        assert got[4] == list(range(got[4][0], count))
        assert len(hub.peers) == 5
        assert is_secure(hub)
        for node in (hub, rover, *fleet):
            assert "insecure" not in node.counters.get("drop", {})


async def test_the_signed_policy_of_the_fleet_follows(tmp_path: Path) -> None:
    async with hub_at(tmp_path):
        pass  # makes the keys
    issuer = load_identity(tmp_path / "issuer.toml")
    body = f'[[channels]]\nname = "{CHANNEL}"\npriority = 7\n'.encode()
    policy = tmp_path / "policy.toml"
    policy.write_bytes(signed_content(PolicyStatement.sign(issuer, 3, body), body))
    settings = {"policy_file": policy, "policy_issuers": [issuer.entity_id]}
    async with hub_at(tmp_path, **settings) as hub:
        made = await hub.invite(InviteSpec(name="rover-7"))
        joined = await join(made.token, made.address, tmp_path / "rover" / "node.toml")
        async with Node.open(joined.config) as rover:
            assert rover.policy_version is None  # of its own it refuses every channel
            await until(lambda: rover.policy_version == 3)
            assert rover.policy == hub.policy


@pytest.mark.parametrize("secure", ["require", "off"])
async def test_a_newcomer_is_as_secure_as_the_fleet(tmp_path: Path, secure: str) -> None:
    async with hub_at(tmp_path, secure=secure) as hub:
        made = await hub.invite(SPEC)
        joined = await join(made.token, made.address, tmp_path / "rover" / "node.toml")
        async with Node.open(joined.config) as rover:
            assert str(rover.config.secure) == secure
            await until(lambda: [peer.secure for peer in hub.peers] == [secure == "require"])
