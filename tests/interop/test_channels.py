"""Who may subscribe, in both roles: a real node judges us, and we judge a real node.

A published node publishes on a token channel only with a PUBLISH token for itself in its cache, for which the binding
has no call. It keeps any token that comes with an accepted subscribe, though, so the tests hand it over that way.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from meshbus.errors import AuthError, ChannelError, PeerError
from meshbus.keyfile import format_tokens
from meshbus.names.identity import Identity
from meshbus.node.node import Node
from meshbus.policy.assign import LevelRule
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import Visibility
from meshbus.policy.views import Gpu, GpuVendor, Hardware
from meshbus.testing.realpeer import RealPeer, RealPeerError
from meshbus.wire.messages.token import PermissionToken, Scope, decode_token, encode_token
from tests.interop.lab import Lab, channel, eventually, eventually_there, registry, take

THEIRS = [
    {"name": "theirs/open"},
    {"name": "theirs/gpu", "subscribe_caps": {"require_tags": ["gpu"]}},
    {"name": "theirs/token", "require_token": True},
    {"name": "theirs/both", "require_token": True, "subscribe_caps": {"require_tags": ["gpu"]}},
]
OURS = [
    channel("ours/open"),
    channel("ours/gpu", subscribe_caps=CapabilityFilter(require_tags=("gpu",))),
    channel(
        "ours/machine", subscribe_caps=CapabilityFilter(min_memory_gb=64, gpu_vendor=GpuVendor.NVIDIA, min_vram_gb=24)
    ),
    channel("ours/token", require_token=True),
    channel("ours/both", require_token=True, subscribe_caps=CapabilityFilter(require_tags=("gpu",))),
]


def token(node: Node, subject: bytes, scope: Scope, name: str, ttl_s: int = 60) -> PermissionToken:
    return PermissionToken.issue(node.identity, subject, scope, name, ttl_s=ttl_s, now=unix(), entropy=os.urandom)


def unix() -> float:
    return time.time_ns() / 1e9


async def announced(node: Node, peer: RealPeer, **capabilities: object) -> None:
    """Make the peer announce itself, and wait until our node knows."""
    await asyncio.to_thread(peer.announce_capabilities, capabilities)
    await eventually(lambda: peer.node_id in node.find_nodes(), "the announcement of the peer")


async def known(node: Node, peer: RealPeer) -> None:
    """Wait until the peer has heard our node's announcement, which pins who we are."""
    await eventually_there(peer.find_nodes, {}, gives=lambda found: node.node_id in found)


# ── we subscribe ────────────────────────────────────────────────────────────────────────────


async def test_its_history_cannot_be_read_which_is_an_error(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": THEIRS})
    await announced(node, peer)
    with pytest.raises(PeerError, match="cannot serve history"):
        await node.subscribe("theirs/open", publisher=peer.node_id, since=0).__aenter__()
    async with node.subscribe("theirs/open", publisher=peer.node_id):  # and it is none the worse for it
        assert len(node.peers) == 1


async def test_we_subscribe_to_its_channel_get_events_and_leave(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": THEIRS})
    async with node.subscribe("theirs/open", publisher=peer.node_id) as subscription:
        report = await asyncio.to_thread(peer.publish, "theirs/open", b"\x00\xff")
        assert report == {"attempted": 1, "delivered": 1, "errors": []}
        [event] = [event for batch in [await subscription.next_batch()] if batch is not None for event in batch]
        assert event.payload == b"\x00\xff"
        assert (event.channel, event.publisher, event.pub_seq) == ("theirs/open", peer.node_id, None)
    await eventually_there(
        peer.publish, "theirs/open", b"nobody is there", gives=lambda report: report["attempted"] == 0
    )


async def test_we_subscribe_with_the_capability_that_it_asks_for(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": THEIRS})
    await known(node, peer)
    with pytest.raises(ChannelError, match="unauthorized"):
        await node.subscribe_channel(peer.node_id, "theirs/gpu")
    node.announce(CapabilitySet({"gpu"}))
    await eventually_there(peer.find_nodes, {"require_tags": ["gpu"]}, gives=lambda found: found == [node.node_id])
    async with node.subscribe("theirs/gpu") as subscription:
        await asyncio.to_thread(peer.publish, "theirs/gpu", b"for gpus")
        assert await take(subscription, 1) == [b"for gpus"]


async def test_we_subscribe_with_a_token_that_it_issued(lab: Lab) -> None:
    peer, node = await lab.pair({"channels": THEIRS}, {"tags": ["gpu"]})
    await known(node, peer)
    with pytest.raises(ChannelError, match="unauthorized"):
        await node.subscribe_channel(peer.node_id, "theirs/token")
    for_other = peer.issue_token(bytes(32), ["subscribe"], "theirs/token", 60)
    with pytest.raises(ChannelError, match="unauthorized"):
        await node.subscribe_channel(peer.node_id, "theirs/token", token=for_other)
    permission = peer.issue_token(node.identity.entity_id, ["subscribe"], "theirs/token", 60)
    async with node.subscribe("theirs/token", token=permission) as subscription:
        its_own = peer.issue_token(peer.entity_id, ["publish"], "theirs/token", 60)
        await node.subscribe_channel(peer.node_id, "theirs/token", token=its_own)
        await asyncio.to_thread(peer.publish, "theirs/token", b"for holders")
        assert await take(subscription, 1) == [b"for holders"]
    for name in ("theirs/token", "theirs/both"):  # kept tokens are presented by themselves
        node.add_token(decode_token(peer.issue_token(node.identity.entity_id, ["subscribe"], name, 60)))
    async with node.subscribe("theirs/both"), node.subscribe("theirs/token"):
        pass
    with pytest.raises(AuthError):
        node.add_token(decode_token(permission[:-1] + bytes([permission[-1] ^ 1])))


async def test_we_subscribe_with_a_token_from_a_file(lab: Lab, tmp_path: Path) -> None:
    peer = lab.peer(channels=THEIRS)
    first = await lab.node(identity=tmp_path / "identity.toml")
    permission = decode_token(peer.issue_token(first.identity.entity_id, ["subscribe"], "theirs/token", 60))
    await first.close()
    (tmp_path / "permission.token").write_text(format_tokens([permission]), "utf-8")
    node = await lab.node(identity=tmp_path / "identity.toml", tokens=[tmp_path / "permission.token"])
    await lab.join(node, peer)
    await known(node, peer)
    async with node.subscribe("theirs/token"):
        pass


async def test_we_subscribe_with_a_token_that_was_handed_on_to_us(lab: Lab) -> None:
    """A 0.23 node believes whoever signed last, and reads no chains: what it gets is the last token."""
    peer, node = await lab.pair({"channels": THEIRS})
    await known(node, peer)
    fleet = Identity.generate(os.urandom)
    to_fleet = decode_token(peer.issue_token(fleet.entity_id, ["subscribe", "delegate"], "theirs/token", 60, 1))
    to_us = to_fleet.delegate(fleet, node.identity.entity_id, Scope.SUBSCRIBE, now=unix(), entropy=os.urandom)
    node.add_token([to_fleet, to_us])
    async with node.subscribe("theirs/token"):
        pass


async def test_a_channel_of_its_subnet_is_for_its_subnet(lab: Lab) -> None:
    """A node that never announced counts as global there, and global is no subnet of its."""
    rules = {"rules": [{"tag_prefix": "region:", "level": 0, "values": {"eu": 3}}]}
    channels = [{"name": "theirs/near", "visibility": "subnet-local"}]
    peer, node = await lab.pair({"channels": channels, "subnet": [3], "subnet_policy": rules})
    await known(node, peer)
    with pytest.raises(ChannelError, match="unauthorized"):
        await node.subscribe_channel(peer.node_id, "theirs/near")
    node.announce(CapabilitySet({"region:eu"}))
    await eventually_there(peer.find_nodes, {"require_tags": ["region:eu"]}, gives=lambda found: found != [])
    async with node.subscribe("theirs/near") as subscription:
        await asyncio.to_thread(peer.publish, "theirs/near", b"near")
        assert await take(subscription, 1) == [b"near"]


# ── it subscribes ───────────────────────────────────────────────────────────────────────────


async def test_it_subscribes_to_our_channel_gets_events_and_leaves(lab: Lab) -> None:
    peer, node = await lab.pair()
    node.set_channel_configs(registry(*OURS))
    publisher = node.publisher("ours/open")
    assert (await publisher.publish("too early")).is_empty
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/open")
    assert node.roster.members("ours/open") == [peer.node_id]
    report = await publisher.publish("grüße")
    assert (report.attempted, report.delivered, report.errors, report.filtered) == (1, 1, (), ())
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["grüße"]
    await asyncio.to_thread(peer.unsubscribe_channel, node.node_id, "ours/open")
    assert node.roster.members("ours/open") == []
    assert (await publisher.publish("too late")).is_empty
    assert await asyncio.to_thread(peer.poll) == []


async def test_it_subscribes_with_the_capabilities_that_we_ask_for(lab: Lab) -> None:
    peer, node = await lab.pair()
    node.set_channel_configs(registry(*OURS))
    for name in ("ours/gpu", "ours/machine"):
        with pytest.raises(RealPeerError, match="unauthorized"):
            await asyncio.to_thread(peer.subscribe_channel, node.node_id, name)
    hardware = {"memory_gb": 128, "gpu": {"vendor": "nvidia", "model": "h100", "vram_gb": 80}}
    await announced(node, peer, tags=["gpu"], hardware=hardware)
    for name in ("ours/gpu", "ours/machine"):
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, name)
        assert (await node.publisher(name).publish(name)).delivered == 1
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 2)] == ["ours/gpu", "ours/machine"]
    assert node.counters["refuse"] == {"capability": 2}


async def test_it_subscribes_with_a_token_that_we_issued(lab: Lab) -> None:
    peer, node = await lab.pair()
    node.set_channel_configs(registry(*OURS))
    await announced(node, peer, tags=["gpu"])
    for name in ("ours/token", "ours/both"):
        with pytest.raises(RealPeerError, match="unauthorized"):
            await asyncio.to_thread(peer.subscribe_channel, node.node_id, name)
        permission = token(node, peer.entity_id, Scope.SUBSCRIBE, name)
        assert peer.call("verify_token", encode_token(permission))
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, name, encode_token(permission))
        with pytest.raises(AuthError, match="PUBLISH"):
            await node.publisher(name).publish("we need a token ourselves")
        node.add_token(token(node, node.identity.entity_id, Scope.PUBLISH, name))
        assert (await node.publisher(name).publish(name)).delivered == 1
        assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == [name]


async def test_tokens_of_others_for_others_and_for_other_channels_are_refused(lab: Lab) -> None:
    peer, node = await lab.pair()
    node.set_channel_configs(registry(*OURS))
    await announced(node, peer, tags=[])
    good = encode_token(token(node, peer.entity_id, Scope.SUBSCRIBE, "ours/token"))
    tokens = {
        "untrusted": peer.issue_token(peer.entity_id, ["subscribe"], "ours/token", 60),
        "wrong_subject": encode_token(token(node, bytes(32), Scope.SUBSCRIBE, "ours/token")),
        "wrong_scope": encode_token(token(node, peer.entity_id, Scope.SUBSCRIBE, "ours/both")),
        "bad_signature": good[:-1] + bytes([good[-1] ^ 1]),
    }
    for presented in tokens.values():
        with pytest.raises(RealPeerError, match="unauthorized"):
            await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/token", presented)
    assert node.counters["token"] == dict.fromkeys(tokens, 1)
    assert node.counters["refuse"] == {"token": 4}
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/token", good)


async def test_a_token_of_any_issuer_counts_where_that_is_configured(lab: Lab) -> None:
    peer, node = await lab.pair(node_settings={"compat_any_issuer": True})
    node.set_channel_configs(registry(*OURS))
    await announced(node, peer, tags=[])
    self_issued = peer.issue_token(peer.entity_id, ["subscribe"], "ours/token", 60)
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/token", self_issued)


async def test_an_expired_token_ends_its_subscription_without_a_word(lab: Lab) -> None:
    peer, node = await lab.pair()
    node.set_channel_configs(registry(*OURS))
    node.add_token(token(node, node.identity.entity_id, Scope.PUBLISH, "ours/token"))
    await announced(node, peer, tags=[])
    brief = token(node, peer.entity_id, Scope.SUBSCRIBE, "ours/token", ttl_s=2)
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/token", encode_token(brief))
    publisher = node.publisher("ours/token")
    assert (await publisher.publish("in time")).delivered == 1
    await asyncio.sleep(brief.not_after - unix())
    report = await publisher.publish("too late")
    assert (report.attempted, report.filtered) == (0, ((peer.node_id, "token"),))
    await eventually(lambda: not node.roster.members("ours/token"), "the sweep")
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 2, 0.2)] == ["in time"]
    with pytest.raises(RealPeerError, match="unauthorized"):
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/token", encode_token(brief))


async def test_a_channel_of_our_subnet_is_for_our_subnet(lab: Lab) -> None:
    rule = LevelRule(tag_prefix="region:", level=0, values={"eu": 3})
    peer, node = await lab.pair(node_settings={"subnet": "3", "level_rules": [rule]})
    node.set_channel_configs(registry(channel("ours/near", visibility=Visibility.SUBNET_LOCAL)))
    with pytest.raises(RealPeerError, match="unauthorized"):
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/near")
    await announced(node, peer, tags=["region:eu"])
    assert [str(one.subnet) for one in node.peers] == ["3"]
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "ours/near")
    assert (await node.publisher("ours/near").publish("near")).delivered == 1
    assert [event.raw for event in await asyncio.to_thread(peer.collect, 1)] == ["near"]


async def test_what_our_node_says_about_its_machine_passes_its_filters(lab: Lab) -> None:
    wanted = {"min_memory_gb": 64, "gpu_vendor": "nvidia", "min_vram_gb": 24}
    peer, node = await lab.pair({"channels": [{"name": "theirs/machine", "subscribe_caps": wanted}]})
    await known(node, peer)
    with pytest.raises(ChannelError, match="unauthorized"):
        await node.subscribe_channel(peer.node_id, "theirs/machine")
    machine = CapabilitySet().with_view(Hardware(memory_gb=128)).with_view(Gpu(vendor=GpuVendor.NVIDIA, vram_gb=80))
    node.announce(machine)
    await eventually_there(peer.find_nodes, wanted, gives=lambda found: found == [node.node_id])
    await node.subscribe_channel(peer.node_id, "theirs/machine")
