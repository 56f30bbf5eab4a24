"""`replicas = 3`: members are chosen, found the set by themselves, and are replaced when they are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbus import Node
from meshbus.errors import AuthError, ConfigError
from meshbus.names.identity import Identity
from meshbus.node.replicas import replicaplacement
from meshbus.node.replicas.replicaplacement import replica_tag
from meshbus.wire.messages.redex import channel_id
from meshbus.wire.messages.revocation import Revocation, Revoked
from tests.node.replicas.replicatrio import CHANNEL, NAMES, ReplicaTrio, replica_trio, until

PLACED = {"replicas": 3, "replica_replace_s": 1.0}


@pytest.fixture(autouse=True)
def settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicaplacement, "SETTLE_S", 0.5)


def members(node: Node) -> set[str]:
    return {one.name or "" for one in node.replicas()[0].members}


async def test_a_number_is_enough_to_replicate_and_a_lost_member_is_replaced(tmp_path: Path) -> None:
    async with replica_trio(tmp_path, **PLACED) as trio:
        leader = trio.nodes[await trio.led()]
        assert members(leader) == set(NAMES)
        assert replica_tag(channel_id(CHANNEL)) in leader.live.engine.announcer.capabilities.tags
        assert (await leader.publisher(CHANNEL).publish(b"first")).replicated == "majority"

        # A node without a log directory is not chosen, and publishes through the members.
        guest = await trio.start("guest")
        await until(lambda: len(guest.peers) == 3 and members(guest) == set(NAMES))
        assert guest.replicas()[0].role == "publisher"
        await guest.publisher(CHANNEL, wait_s=60).publish(b"second")

        # A fourth node that could have a replica is not needed, until one of the three is lost.
        spare = await trio.start("spare")
        await until(lambda: len(spare.peers) == 4 and members(spare) == set(NAMES))
        await until(lambda: spare.replicas()[0].role == "publisher")
        lost = trio.follower()
        await trio.stop(lost)
        await until(lambda: members(trio.nodes[trio.leader() or "guest"]) == {*NAMES, "spare"} - {lost})
        await guest.publisher(CHANNEL, wait_s=60).publish(b"third")
        await until(lambda: spare.replicas()[0].role in {"replica", "leader"})
        await until(lambda: trio.payloads("spare") == [b"first", b"second", b"third"])


async def test_a_revoked_leader_is_replaced_at_once_and_leads_nobody(tmp_path: Path) -> None:
    trio, issuer = ReplicaTrio(tmp_path, **PLACED | {"replica_replace_s": 3600.0}), Identity.from_seed(bytes(range(32)))
    policy = tmp_path / "policy.toml"
    policy.write_text("# nothing is restricted\n", "utf-8")
    try:
        trust = {"policy_file": policy, "policy_issuers": [issuer.entity_id]}
        for name in NAMES:
            await trio.start(name, **trust)
        old = await trio.led()
        await trio.start("spare", **trust)
        await until(lambda: len(trio.nodes["spare"].peers) == 3 and members(trio.nodes["spare"]) == set(NAMES))
        assert (await trio.nodes[old].publisher(CHANNEL).publish(b"before")).replicated == "majority"
        bad = trio.nodes[old]
        record = Revocation.sign(issuer, Revoked.NODE, bad.public_key, at=1, reason="stolen")
        trio.nodes["spare"].revoke(record)
        others = {*NAMES, "spare"} - {old}
        await until(lambda: all(bad.node_id not in {peer.node_id for peer in trio.nodes[one].peers} for one in others))
        trio.nodes.pop(old)
        await until(lambda: trio.leader() is not None and members(trio.nodes[trio.leader() or ""]) == others)
        await trio.nodes["spare"].publisher(CHANNEL, wait_s=60).publish(b"after")
        await until(lambda: trio.payloads("spare") == [b"before", b"after"])
        with pytest.raises(AuthError, match="was revoked"):
            await bad.publisher(CHANNEL).publish(b"never")
        await bad.close()
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)


async def test_only_nodes_with_the_required_tags_are_chosen(tmp_path: Path) -> None:
    trio = ReplicaTrio(tmp_path, **PLACED | {"replicas": 2, "replica_tags": ["disk.ssd"]})
    try:
        await trio.start("n0")
        await trio.start("n1", tags=["disk.ssd"])
        await until(lambda: len(trio.nodes["n1"].peers) == 1)
        await until(lambda: "1 of the known ones are" in (trio.nodes["n0"].replicas()[0].waiting or ""))
        await until(lambda: "lacks required capabilities" in (trio.nodes["n1"].replicas()[0].waiting or ""))
        await trio.start("n2", tags=["disk.ssd"])
        await until(lambda: trio.leader() is not None)
        assert members(trio.nodes[await trio.led()]) == {"n1", "n2"}
        assert trio.nodes["n0"].replicas()[0].role == "publisher"
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)


async def test_members_that_start_again_remember_the_set_and_one_that_lost_its_disk_returns(tmp_path: Path) -> None:
    async with replica_trio(tmp_path, **PLACED | {"replica_replace_s": 600}) as trio:
        await trio.nodes[await trio.led()].publisher(CHANNEL).publish(b"first")
        again = trio.follower()
        await trio.settled()
        await trio.stop(again)
        for path in sorted((tmp_path / again).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        await trio.start(again)
        await until(lambda: trio.nodes[again].replicas()[0].role == "replica")
        await until(lambda: trio.payloads(again) == [b"first"])
        await trio.counted(again)
        for name in NAMES:
            await trio.stop(name)
        for name in NAMES[:2]:
            await trio.start(name)
        leader = trio.nodes[await trio.led()]  # two of three know who they are
        await leader.publisher(CHANNEL, wait_s=60).publish(b"second")
        assert len(leader.replicas()[0].members) == 3


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"replicas": 17}, "choose 1 to 16"),
        ({"replicas": -1}, "choose 1 to 16"),
        ({"replicas": ["n0"], "replica_tags": ["disk.ssd"]}, "must be a number"),
        ({"replica_replace_s": 5.0}, "must be a number"),
    ],
)
def test_what_is_wrong_with_a_number_is_named(entry: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Node.open(ephemeral=True, psk="5a" * 32, channels=[{"name": CHANNEL, **entry}])
