"""Nodes that replicate a channel by configuration alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from meshbus import Node, NodeConfig
from meshbus.engine.base.notices import AppendAnswered
from meshbus.engine.base.packets import Output
from meshbus.engine.replicas.records import Acks
from meshbus.errors import ConfigError, LogError, LogFault, ReplicationError, ReplicationFault
from meshbus.log.replicated import ReplicatedLog
from meshbus.node.driving.driver import Driver
from meshbus.node.replicas import replicas as replicas_module
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.append import AppendFlags, Outcome
from meshbus.wire.messages.redex import channel_id
from meshbus.wire.record import Record, pack_record
from tests.node.replicas.replicatrio import CHANNEL, NAMES, ReplicaTrio, replica_trio, stored, until
from tests.patience import PATIENCE_S


async def test_members_found_the_set_when_all_are_up_and_say_what_they_wait_for(tmp_path: Path) -> None:
    trio = ReplicaTrio(tmp_path)
    try:
        first = await trio.start("n0")
        await until(lambda: "n1, n2 has announced itself" in (first.replicas()[0].waiting or ""))
        assert first.replicas()[0].role == "idle"
        await trio.start("n1")
        with pytest.raises(ReplicationError, match="nothing was stored") as caught:
            await first.publisher(CHANNEL, wait_s=0.1).publish(b"early")
        assert caught.value.fault is ReplicationFault.NO_LEADER
        await trio.start("n2")
        await trio.led()
        report = await trio.nodes["n0"].publisher(CHANNEL).publish(b"fire")
        assert (report.log_seq, report.replicated, report.attempted) == (0, "majority", 0)
        await trio.settled()
        lags = [0, 0, 0]
        await until(lambda: lags in [[one.lag for one in node.replicas()[0].members] for node in trio.nodes.values()])
        status = first.replicas()[0]
        assert (status.channel, status.tail, status.acks) == (CHANNEL, 1, Acks.MAJORITY)
        assert status.epoch > 0
        assert sorted(one.name or "" for one in status.members) == ["n0", "n1", "n2"]
        assert [trio.payloads(name) for name in trio.nodes] == [[b"fire"]] * 3
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)


async def test_a_member_that_starts_again_goes_on_and_one_that_lost_its_folder_is_taken_in_again(
    tmp_path: Path,
) -> None:
    async with replica_trio(tmp_path) as trio:
        publisher = trio.nodes[await trio.led()].publisher(CHANNEL)
        await publisher.publish_batch([b"a", b"b"])
        again = trio.follower()
        await trio.stop(again)
        await publisher.publish(b"c")
        await trio.start(again)
        await trio.settled()
        await until(lambda: trio.payloads(again) == [b"a", b"b", b"c"])
        before = trio.member(again).core.seat.member
        await trio.stop(again)
        for path in sorted((tmp_path / again).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        await trio.start(again)
        await until(lambda: trio.nodes[again].replicas()[0].role == "replica")
        await until(lambda: trio.member(again).core.config is not None)
        await until(lambda: trio.member(again).core.seat.member in trio.member(again).core.seat.config.members)
        assert trio.member(again).core.seat.member != before
        await until(lambda: trio.payloads(again) == [b"a", b"b", b"c"])


async def test_a_full_disk_makes_a_member_read_only_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever leads, and however often that changes on a busy machine: every append of the full member is refused.
    monkeypatch.setattr(replicas_module, "REOPEN_S", 0.2)
    full: set[Path] = set()
    append = ReplicatedLog.append

    def append_if_there_is_room(log: ReplicatedLog, *given: Any, **columns: Any) -> None:
        if any(log._writer.folder.is_relative_to(place) for place in full):
            raise LogError(LogFault.NO_SPACE, "no space left on device")
        append(log, *given, **columns)

    monkeypatch.setattr(ReplicatedLog, "append", append_if_there_is_room)
    async with replica_trio(tmp_path) as trio:
        name = await trio.led()
        node = trio.nodes[name]
        await stored(node.publisher(CHANNEL), b"before")
        await trio.settled()
        full.add(tmp_path / name)

        def is_full() -> bool:
            return "no space left" in (node.replicas()[0].waiting or "")

        faults: set[ReplicationFault] = set()
        async with asyncio.timeout(PATIENCE_S):
            while not is_full():
                try:
                    # Stored if another member leads by now.
                    await node.publisher(CHANNEL).publish(b"too much")
                except ReplicationError as error:
                    faults.add(error.fault)
        assert faults <= {ReplicationFault.UNRESOLVED, ReplicationFault.NO_LEADER}
        await until(lambda: is_full() and readable(trio, name)[:1] == [b"before"])
        await trio.led(other_than=name)
        await stored(node.publisher(CHANNEL), b"after")
        full.clear()
        await until(lambda: node.replicas()[0].waiting is None)
        await until(lambda: readable(trio, name)[-1:] == [b"after"])


def readable(trio: ReplicaTrio, name: str) -> list[bytes]:
    """The events that a member shows; none at the moment in which it is opened again."""
    with suppress(ReplicationError, LogError):
        return trio.payloads(name)
    return []


async def test_other_nodes_publish_through_the_members(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        guest = await trio.start("guest")
        assert guest.replicas()[0].role == "publisher"
        await until(lambda: len(guest.peers) == 3)
        report = await guest.publisher(CHANNEL).publish(b"from outside")
        assert report.replicated == "majority"
        await trio.settled()
        assert trio.payloads("n0") == [b"from outside"]
        assert all(trio.nodes[name].find_chain_holders(CHANNEL)[0] == trio.nodes[name].node_id for name in NAMES)
        with pytest.raises(ReplicationError, match="stores nothing of the channel"):
            await guest.replica_remove(CHANNEL, "n0")


async def test_a_member_that_publishes_while_its_leader_is_gone_hears_the_next_one(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = await trio.led()
        follower = trio.nodes[next(name for name in NAMES if name != leader)]
        publisher = follower.publisher(CHANNEL, wait_s=PATIENCE_S)
        await stored(publisher, b"before")  # it knows the leader now
        await trio.stop(leader)
        # A publisher that kept the event loop busy until its time is over would fail here.
        report = await stored(publisher, b"after")
        assert report.replicated == "majority"


async def test_records_that_are_none_or_name_another_origin_are_denied(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        guest = await trio.start("guest")
        await until(lambda: len(guest.peers) == 3)
        leader = trio.nodes[await trio.led()]
        await until(lambda: guest.live.engine.peers.require(leader.node_id).uses(Subprotocol.APPEND))
        own = pack_record(Record(b"mine", 1, guest.identity.origin_hash))
        answers: list[AppendAnswered] = []
        guest.watch(lambda notice: answers.append(notice) if isinstance(notice, AppendAnswered) else None)
        for number, record in enumerate((b"short", pack_record(Record(b"forged", 1, 7))), 1):
            out = Output()
            peer = guest.live.engine.peers.require(leader.node_id)
            guest.live.engine.appending.ask(
                peer, channel_id(CHANNEL), [own, record], AppendFlags.NONE, Driver.now(), out
            )
            guest.live.driver.apply(out)
            async with asyncio.timeout(PATIENCE_S):
                while len(answers) < number:  # noqa: ASYNC110 - it happens in another node
                    await asyncio.sleep(0.01)
            assert answers[-1].answer.outcome is Outcome.DENIED
        assert leader.replicas()[0].tail == 0
        assert leader.counters["drop"]["replication_malformed"] == 2


async def test_subscribers_get_events_when_they_are_committed(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        guest = await trio.start("guest")
        await until(lambda: len(guest.peers) == 3)
        async with guest.subscribe(CHANNEL) as subscription:
            for name in trio.nodes:
                await trio.nodes[name].publisher(CHANNEL).publish(name.encode())
            got: dict[int | None, bytes] = {}
            async with asyncio.timeout(PATIENCE_S):
                # By number: on a busy machine another member may take the lead, and then sends the last events again.
                async for event in subscription:
                    assert got.setdefault(event.pub_seq, bytes(event.payload)) == event.payload
                    if len(got) == len(trio.nodes):
                        break
        assert got == {number: name.encode() for number, name in enumerate(trio.nodes)}


async def test_what_is_missing_in_the_configuration_is_named(tmp_path: Path) -> None:
    config = NodeConfig.load(
        env={}, name="n0", psk="00" * 32, ephemeral=True, channels=[{"name": CHANNEL, "replicas": ["n0"]}]
    )
    with pytest.raises(ConfigError, match="log_dir: required because alarms is replicated here"):
        await Node(config).start()
    config = NodeConfig.load(env={}, psk="00" * 32, ephemeral=True, log_dir=tmp_path)
    async with Node(config) as node:
        assert node.replicas() == []
        with pytest.raises(ConfigError, match="is not replicated"):
            await node.replica_add(CHANNEL, 1)


async def test_a_set_of_one_acknowledges_alone(tmp_path: Path) -> None:
    entry = {"name": CHANNEL, "replicas": ["alone"], "acks": "local", "replica_heartbeat_s": 0.1}
    config = NodeConfig.load(env={}, name="alone", psk="00" * 32, ephemeral=True, log_dir=tmp_path, channels=[entry])
    async with Node(config) as node:
        await until(lambda: node.replicas()[0].role == "leader")
        assert (await node.publisher(CHANNEL).publish(b"x")).replicated == "local"
