"""Real 0.23.0 nodes and `meshbus up`: what the configuration file must say, and what works then."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from meshbus.config.edge import EdgeEntry
from meshbus.edge.bridge import Bridge
from meshbus.edge.refusals import Refusal
from meshbus.edge.sub import Sub
from meshbus.errors import ChannelError
from meshbus.keyfile import load_psk
from meshbus.testing.realpeer import RealPeer
from tests.cli.running import SCRIPT, Running, running
from tests.interop.lab import Lab, channel, eventually, registry, take

pytestmark = pytest.mark.slow


@pytest.fixture
def psk(tmp_path: Path) -> bytes:
    subprocess.run([SCRIPT, "key", "psk", tmp_path / "mesh.key"], check=True, capture_output=True)
    return load_psk(tmp_path / "mesh.key")


def _publish(node: Running, name: str, payload: str) -> dict[str, int]:
    done = subprocess.run(
        [SCRIPT, "pub", name, payload, "--admin", node.admin], capture_output=True, text=True, check=False
    )
    report: dict[str, int] = json.loads(done.stdout)
    return report


def test_a_plain_node_that_the_file_accepts_subscribes_and_again_after_a_restart(tmp_path: Path, psk: bytes) -> None:
    seed = bytes(range(32))
    with RealPeer(psk=psk, seed=seed) as peer:
        known = f"{peer.node_id:016x}"
    with running(tmp_path / "a", f'accept = ["{known}"]\n') as node:
        noise_key, node_id = bytes.fromhex(node.status["noise_public_key"]), int(node.status["node_id"], 16)
        for number in range(2):  # the second time as after a restart: the same id, another Noise key
            with RealPeer(psk=psk, seed=seed) as peer:
                peer.connect(node.address, noise_key, node_id)
                peer.start()
                peer.subscribe_channel(node_id, "sensors/up")
                assert _publish(node, "sensors/up", f'{{"n": {number}}}')["delivered"] == 1
                assert [event.raw for event in peer.collect(1)] == [f'{{"n": {number}}}']


def test_a_file_dials_a_plain_node_that_waits_in_accept(tmp_path: Path, psk: bytes) -> None:
    with RealPeer(psk=psk) as peer:
        identity = tmp_path / "a" / "id.toml"
        made = subprocess.run([SCRIPT, "key", "new", tmp_path / "id.toml"], check=True, capture_output=True, text=True)
        node_id = int(json.loads(made.stdout)["node_id"], 16)
        accepting = peer.begin("accept", node_id)
        settings = (
            f'[[peers]]\naddress = "{peer.address}"\npublic_key = "{peer.public_key.hex()}"\n'
            f'node_id = "{peer.node_id:016x}"\nrouted = false\n'
        )
        (tmp_path / "a").mkdir()
        (tmp_path / "id.toml").rename(identity)
        with running(tmp_path / "a", settings) as node:
            accepting.result(15)
            peer.start()
            peer.subscribe_channel(node_id, "sensors/up")
            assert _publish(node, "sensors/up", '{"n": 1}')["delivered"] == 1
            assert [event.raw for event in peer.collect(1)] == ['{"n": 1}']


async def test_a_prefix_towards_a_plain_publisher_is_told_and_single_channels_stand_beside_it(lab: Lab) -> None:
    peer, node = lab.peer(permissive_channels=True), await lab.node()
    await lab.join(node, peer)
    async with node.subscribe("theirs/") as alone:
        await eventually(lambda: bool(alone.refused), "the report about the prefix")
        assert [(one.node_id, one.channel, one.reason) for one in alone.refused] == [
            (peer.node_id, "theirs/", "no_prefixes")
        ]
        assert node.counters["refuse_subscribe"]["no_prefixes"] == 1
    told: list[Refusal] = []
    entry = EdgeEntry(subscribers="tcp://127.0.0.1:*", channels_out=("theirs/", "theirs/one"))
    async with Bridge(node, entry, told.append) as bridge, Sub() as application:
        application.subscribe("theirs/")
        assert bridge.subscribers is not None
        await application.connect(bridge.subscribers, timeout_s=5)
        await eventually(lambda: bridge.wishes == ["theirs/", "theirs/one"], "both subscriptions")
        published = {"delivered": 0}
        while not published["delivered"]:
            published = await asyncio.to_thread(peer.publish, "theirs/one", b'{"n": 1}')
        assert await application.receive() == (b"theirs/one", b'{"n": 1}')
        assert not told
    alone_entry = EdgeEntry(subscribers="tcp://127.0.0.1:*", channels_out=("theirs/",))
    async with Bridge(node, alone_entry, told.append) as bridge, Sub() as application:
        application.subscribe("theirs/")
        assert bridge.subscribers is not None
        await application.connect(bridge.subscribers, timeout_s=5)
        await eventually(lambda: bool(told), "the refusal of the prefix")
        assert (told[0].topic, told[0].reason) == ("theirs/", "no_prefixes")
        assert bridge.counters["refuse_subscribe"]["no_prefixes"] == 1


async def test_a_delegated_token_of_a_real_node_counts_if_that_node_is_trusted(lab: Lab) -> None:
    """The table of docs/guide/joining-a-net-mesh-network.md: the child carries no link to its root."""
    root, delegate, subscriber = lab.peer(), lab.peer(), await lab.node()
    parent = await asyncio.to_thread(
        root.call, "issue_token", delegate.entity_id, ["subscribe", "delegate"], "ours/token", 60, 1
    )
    child = await asyncio.to_thread(
        delegate.call, "delegate_token", parent, subscriber.identity.entity_id, ["subscribe"]
    )
    for trusted, accepted in ((root.entity_id, False), (delegate.entity_id, True)):
        publisher = await lab.node(trusted_issuers=[trusted.hex()])
        publisher.set_channel_configs(registry(channel("ours/token", require_token=True)))
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        await eventually(lambda: subscriber.node_id in publisher.find_nodes(), "who the subscriber is")  # noqa: B023
        subscription = subscriber.subscribe("ours/token", publisher=publisher.node_id, token=child)
        if accepted:
            async with subscription:
                pass
        else:
            with pytest.raises(ChannelError, match="unauthorized"):
                await subscription.__aenter__()


async def test_a_prefix_and_a_channel_below_it_stand_together_at_a_node(lab: Lab) -> None:
    """A plain publisher reaches a node by name, beside a prefix of the same node."""
    peer, node = lab.peer(permissive_channels=True), await lab.node()
    await lab.join(node, peer)
    async with node.subscribe("theirs/"), node.subscribe("theirs/one") as single:
        await asyncio.to_thread(peer.publish, "theirs/one", b'{"n": 1}')
        assert await take(single, 1) == [b'{"n": 1}']
