"""How a publish finds the leader, and what it says when there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from meshbus.engine.channels.publish import PublishReport
from meshbus.errors import ReplicationError, ReplicationFault
from meshbus.node.replicas import replicapublish
from tests.node.replicas.replicatrio import CHANNEL, NAMES, ReplicaTrio, replica_trio, until


async def fault_of(publishing: asyncio.Future[PublishReport]) -> ReplicationFault:
    with pytest.raises(ReplicationError) as caught:
        await publishing
    return caught.value.fault


async def test_a_guest_finds_the_leader_and_follows_it_when_it_changes(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        guest = await trio.start("guest")
        await until(lambda: len(guest.peers) == 3)
        publisher = guest.publisher(CHANNEL)
        assert (await publisher.publish(b"a")).log_seq == 0
        first, heir = await trio.led(), trio.follower()
        await trio.nodes[first].replica_transfer(CHANNEL, heir)
        assert (await publisher.publish(b"b")).log_seq == 1
        await trio.stop(heir)
        assert (await guest.publisher(CHANNEL, wait_s=60).publish(b"c")).log_seq == 2


async def test_without_a_majority_or_a_leader_nothing_is_stored_and_the_reason_is_named(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = await trio.led()
        node = trio.nodes[leader]
        for name in [name for name in trio.nodes if name != leader]:
            await trio.stop(name)
        await until(lambda: node.replicas()[0].waiting is not None)
        publishing = asyncio.ensure_future(node.publisher(CHANNEL, wait_s=0.2).publish(b"x"))
        assert await fault_of(publishing) is ReplicationFault.NO_MAJORITY
        assert node.replicas()[0].tail == 0


async def test_a_member_that_waits_for_a_leader_does_not_hold_up_its_node(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        await trio.led()
        name = trio.follower()
        node = trio.nodes[name]
        await node.publisher(CHANNEL, wait_s=60).publish(b"a")  # it knows who led
        for other in [other for other in trio.nodes if other != name]:
            await trio.stop(other)
        await until(lambda: node.replicas()[0].leader is None)
        publishing = asyncio.ensure_future(node.publisher(CHANNEL, wait_s=0.5).publish(b"x"))
        turns = 0
        while not publishing.done():
            await asyncio.sleep(0)
            turns += 1
        assert await fault_of(publishing) is ReplicationFault.NO_LEADER
        assert turns > 10


async def test_too_much_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicapublish, "MAX_LINE_BYTES", 100)
    async with replica_trio(tmp_path) as trio:
        publisher = trio.nodes["n0"].publisher(CHANNEL)
        some = [asyncio.ensure_future(publisher.publish(bytes(60))) for _ in range(5)]
        outcomes = await asyncio.gather(*some, return_exceptions=True)
        faults = [one.fault for one in outcomes if isinstance(one, ReplicationError)]
        assert faults == [ReplicationFault.BACKPRESSURE] * 3
        assert (await publisher.publish(b"x")).log_seq == 2


async def test_a_leader_that_is_lost_leaves_a_publish_unresolved(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = await trio.led()
        other = trio.nodes[trio.follower()]
        for name in trio.nodes:
            trio.member(name).disk.on_durable = lambda _number: None  # disks that never finish
        publishing = asyncio.ensure_future(other.publisher(CHANNEL).publish(b"x"))
        await until(lambda: trio.nodes[leader].replicas()[0].tail == 1)
        await trio.stop(leader)
        assert await fault_of(publishing) is ReplicationFault.UNRESOLVED


async def test_an_append_at_a_leader_that_fell_silent_ends_when_another_one_leads(tmp_path: Path) -> None:
    trio = ReplicaTrio(tmp_path)
    try:
        for name in NAMES:
            await trio.start(name, session_timeout_s=600.0)
        leader = await trio.led()
        node = trio.nodes[trio.follower()]
        silent = trio.nodes[leader]
        await node.publisher(CHANNEL).publish(b"before")
        silent.live.driver.close()  # as if killed: it says nothing any more, and the session with it stays
        rows = pa.table({"payload": [b"after"]})
        assert await node.publisher(CHANNEL).publish_once(rows, writer="w", batch=1) == 1
        assert silent.node_id in {peer.node_id for peer in node.peers}
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)
