"""A live fleet on loopback: publishers and readers in three subnets and a stranger, with a gateway between them.

Everything goes through the gateway, which records every packet; one reader logs what arrives, and records too. What is
published follows from a seed alone, so that two fleets can be told the same.
"""

import asyncio
import hashlib
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from meshbus.config.node import NodeConfig
from meshbus.names.identity import Identity
from meshbus.node.node import Node
from meshbus.policy.channels import Visibility
from tests.patience import PATIENCE_S

PSK = bytes(32).hex()
CHANNELS = [f"plant/{word}" for word in ("open", "home", "up", "out", "bosses", "late", "unlisted")]
GATEWAY = "gateway"
PLACES = {"boss": "1.1", "worker": "1.2", "reader": "2", "parent": "1", "stranger": "9"}
READERS = ("reader", "parent", "stranger")
BURST = 32
"""Publications between two looks at who is behind."""

Rules = Mapping[str, Mapping[str, Any]]
"""By channel, what a node's configuration says about it."""

FIRST: Rules = {
    "plant/open": {"visibility": Visibility.GLOBAL},
    "plant/home": {"visibility": Visibility.SUBNET_LOCAL},
    "plant/up": {"visibility": Visibility.PARENT_VISIBLE},
    "plant/out": {"visibility": Visibility.EXPORTED, "exports": ["2"]},
    "plant/bosses": {"visibility": Visibility.GLOBAL, "publish_caps": {"require_tags": ["role:boss"]}},
    "plant/late": {"visibility": Visibility.GLOBAL},
}
PROPOSED: Rules = {
    "plant/open": {"visibility": Visibility.PARENT_VISIBLE},
    "plant/home": {"visibility": Visibility.GLOBAL},
    "plant/up": {"visibility": Visibility.SUBNET_LOCAL},
    "plant/out": {"visibility": Visibility.EXPORTED, "exports": ["1"]},
    "plant/bosses": {"visibility": Visibility.GLOBAL},
    "plant/late": {"visibility": Visibility.GLOBAL, "publish_caps": {"require_tags": ["role:boss"]}},
}


class Fleet(NamedTuple):
    """What is left of one."""

    log_dir: Path
    gateway: int
    """Its node id."""
    origins: dict[str, int]
    published: dict[str, list[bytes]]
    """What the reader was sent on each channel, by all publishers."""


async def run_fleet(folder: Path, rules: Rules, *, name: str, publishes: int, seed: int, rounds: int = 1) -> Fleet:
    """Run a fleet under the rules of a gateway, with the identities of a folder and a log_dir of that name.

    In every round all nodes start anew, with the same identities.
    """
    keys = {who: Identity.from_seed(hashlib.sha256(who.encode()).digest()) for who in (GATEWAY, *PLACES)}
    fleet = Fleet(
        folder / name,
        keys[GATEWAY].node_id,
        {who: key.origin_hash for who, key in keys.items()},
        {channel: [] for channel in CHANNELS},
    )
    for number in range(rounds):
        async with AsyncExitStack() as stack:
            gateway, nodes = await _start(stack, keys, fleet.log_dir, rules)
            await _meet(gateway, nodes)
            await _publish(nodes, random.Random(seed + number), publishes, fleet.published)
            async with asyncio.timeout(PATIENCE_S):
                await _settle(gateway)
    return fleet


def gateway_settings(rules: Rules) -> dict[str, Any]:
    """What the configuration of the gateway says about forwarding."""
    return {
        "subnet": "1",
        "gateway": True,
        "peer_subnets": [place for place in PLACES.values() if place not in {"1", "9"}],
        "channels": [
            {"name": name, **{key: value for key, value in rule.items() if key != "exports"}}
            for name, rule in rules.items()
        ],
        "exports": [{"channel": name, "subnets": rule["exports"]} for name, rule in rules.items() if "exports" in rule],
    }


async def _start(
    stack: AsyncExitStack, keys: Mapping[str, Identity], log_dir: Path, rules: Rules
) -> tuple[Node, dict[str, Node]]:
    common: dict[str, Any] = {
        "psk": PSK,
        "heartbeat_s": 0.2,
        "session_timeout_s": 20.0,
        "subnet_rules": [{"match_tags": [f"at:{place}"], "target_subnet": place} for place in PLACES.values()],
    }
    logged: dict[str, Any] = {"log_dir": log_dir, "record_packets": True}
    settings = {GATEWAY: {**logged, **gateway_settings(rules)}}
    for name, place in PLACES.items():
        settings[name] = {"tags": [f"at:{place}", f"role:{name}"], "subnet": place}
    settings["reader"] |= {**logged, "channels": [{"prefix": "", "log": "received"}]}
    nodes = {name: Node(NodeConfig.load(env={}, **common, **own), keys[name]) for name, own in settings.items()}
    for node in nodes.values():
        await stack.enter_async_context(node)
    return nodes.pop(GATEWAY), nodes


async def _meet(gateway: Node, nodes: Mapping[str, Node]) -> None:
    """Connect everybody through the gateway, and subscribe the readers to every channel of both publishers."""
    async with asyncio.timeout(PATIENCE_S):
        for node in nodes.values():
            await node.connect(gateway.address, public_key=gateway.public_key)
        known = {node.node_id for node in nodes.values()}
        for name in ("boss", "worker"):
            others, mesh = known - {nodes[name].node_id}, nodes[name].mesh
            while not others <= {route.node_id for route in mesh.routes}:  # noqa: ASYNC110 - pingwaves tell
                await asyncio.sleep(0.01)
            for reader in READERS:
                await nodes[name].connect(public_key=nodes[reader].public_key)
                for channel in CHANNELS:
                    await nodes[reader].subscribe_channel(nodes[name].node_id, channel)


async def _publish(
    nodes: Mapping[str, Node], rng: random.Random, publishes: int, published: dict[str, list[bytes]]
) -> None:
    publishers = {
        (name, channel): nodes[name].publisher(channel, wait_s=30.0)
        for name in ("boss", "worker")
        for channel in CHANNELS
    }
    for number in range(publishes):
        name, channel = rng.choice(("boss", "worker")), rng.choice(CHANNELS)
        payload = b"%s %d" % (name.encode(), number)
        report = await publishers[name, channel].publish(payload)
        assert report.delivered == len(READERS), report
        published[channel].append(payload)
        if number % BURST == 0:
            await asyncio.sleep(0)


async def _settle(gateway: Node) -> None:
    """Wait until nothing is under way any more: heartbeats are never dropped."""
    quiet, before = 0, -1
    while quiet < 3:
        now = gateway.mesh.gateway.dropped
        quiet, before = quiet + 1 if now == before else 0, now
        await asyncio.sleep(0.2)
