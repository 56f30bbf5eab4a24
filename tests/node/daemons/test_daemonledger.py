"""Checkpoints on a replicated channel: a daemon goes on elsewhere when its node dies, and never runs on two nodes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from meshbus import Node, NodeConfig
from meshbus.compute.ledger import split_checkpoint
from meshbus.errors import ConfigError
from meshbus.log.once import BATCH, PLACE
from meshbus.names.identity import Identity
from meshbus.node.daemons import daemonhosting
from meshbus.node.daemons.daemoninfo import DaemonState
from meshbus.node.daemons.daemonledger import DaemonLedger
from tests.compute.counter import Counter, run_alone
from tests.node.daemons.daemontrio import DAEMON, INPUT, OUTPUT, host_of, info, nodes, until
from tests.node.daemons.sharedlog import SharedLog

LEDGER = "checkpoints"
NAMES = ("n0", "n1", "n2")
ORIGIN = 5


class Trio:
    """Three nodes that replicate the input, the output and the ledger of a daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.psk = os.urandom(32).hex()
        self.ids = {name: Identity.generate(os.urandom) for name in NAMES}
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str) -> Node:
        entries = [
            {"name": channel, "replicas": NAMES, "replica_heartbeat_s": 0.1} for channel in (INPUT, OUTPUT, LEDGER)
        ]
        config = NodeConfig.load(
            env={},
            name=name,
            psk=self.psk,
            heartbeat_s=0.3,
            session_timeout_s=1.5,
            log_dir=self.folder / name / "log",
            daemons_dir=self.folder / name / "daemons",
            channels=entries,
            peers=[{"address": one.address, "public_key": one.public_key.hex()} for one in self.nodes.values()],
        )
        node = self.nodes[name] = Node(config, self.ids[name])
        await node.start()
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).close()

    async def publish(self, node: Node, start: int, stop: int) -> None:
        publisher = node.publisher(INPUT, wait_s=60.0)
        await publisher.publish_batch([b"%d" % number for number in range(start, stop)])

    def outputs(self, node: Node) -> list[bytes]:
        """Return what is committed in the log of outputs, in the order of the chain; nothing twice."""
        replica, _ = node.logs._replicated[OUTPUT]  # type: ignore[index]
        numbered: dict[int, bytes] = {}
        for event in replica.committed.read_range(0, replica.committed_tail):
            assert event.headers is not None
            number = int(event.headers[BATCH]) + int(event.headers[PLACE])
            assert number not in numbered, f"output {number} was published twice"
            numbered[number] = bytes(event.payload)
        return [numbered[number] for number in sorted(numbered)]


def declared(**more: Any) -> dict[str, Any]:
    return {"output": OUTPUT, "checkpoints": LEDGER, **more}


async def reached(node: Node, events: int) -> None:
    await until(
        lambda: (
            [one.next_seq for one in info(node).inputs] == [events]
            and host_of(node) is not None
            and not host_of(node).pending
        )
    )


@asynccontextmanager
async def shared(count: int = 2) -> AsyncIterator[tuple[SharedLog, list[DaemonLedger]]]:
    """Open the ledger on nodes 1, 2 and so on."""
    log = SharedLog()
    ledgers = [log.ledger(number) for number in range(1, count + 1)]
    yield log, ledgers
    for ledger in ledgers:
        await ledger.close()


async def test_a_late_copy_of_a_checkpoint_does_not_count_again() -> None:
    async with shared() as (log, (first, second)):
        term = await first.begin(ORIGIN, 0)
        assert term is not None
        log.unknown = 1  # written again, and then it is there twice
        assert await first.write(ORIGIN, term, b"one")
        assert await first.write(ORIGIN, term, b"two")
        log.arrive()
        assert await second.begin(ORIGIN, 0) is None  # has read everything
        assert first.of(ORIGIN).snapshot == second.of(ORIGIN).snapshot == b"two"
        assert await first.write(ORIGIN, term, b"three")


async def test_what_an_earlier_life_has_on_its_way_does_not_count() -> None:
    async with shared() as (log, (first, second)):
        term = await first.begin(ORIGIN, 0)
        assert term is not None
        assert await first.write(ORIGIN, term, b"one")
        late = list(
            split_checkpoint(ORIGIN, term, 1, 2, b"two")
        )  # the node is killed: its record has it, the log not yet
        again = await first.begin(ORIGIN, term)
        assert again is not None
        assert await first.write(ORIGIN, again, b"two and three")
        log.arrive(*late)
        assert await second.begin(ORIGIN, 0) is None
        assert second.of(ORIGIN).snapshot == b"two and three"


async def test_an_old_record_is_refused_also_by_the_owner() -> None:
    async with shared(3) as (_, (first, second, third)):
        term = await first.begin(ORIGIN, 0)
        assert term is not None
        assert await first.write(ORIGIN, term, b"one")
        # Moved to 2, which dies before it begins; 3 takes over from the ledger, which the record of 2 does not know.
        assert await third.take_over(ORIGIN)
        third_term = await third.begin(ORIGIN, term)
        assert third_term is not None
        assert await third.write(ORIGIN, third_term, b"went on")
        assert await second.begin(ORIGIN, term) is None
        assert third.has(ORIGIN, third_term)  # not disturbed
        # Even if node 2 owns the daemon again: what it has on disk is old.
        assert await second.take_over(ORIGIN)
        assert await second.begin(ORIGIN, term) is None
        assert await second.begin(ORIGIN, third_term) is not None


async def test_a_record_that_has_everything_is_taken_although_another_has_claimed_the_daemon() -> None:
    async with shared() as (_, (first, second)):
        term = await first.begin(ORIGIN, 0)
        assert term is not None
        assert await first.write(ORIGIN, term, b"one")
        assert await second.take_over(ORIGIN)  # and dies before it has written anything
        again = await first.begin(ORIGIN, term)
        assert again is not None
        assert await first.write(ORIGIN, again, b"two")
        assert not await second.write(ORIGIN, again - 1, b"not counted")


async def test_a_hand_over_that_is_said_late_leaves_the_daemon_where_it_is() -> None:
    async with shared() as (log, (first, second)):
        term = await first.begin(ORIGIN, 0)
        assert term is not None
        assert await first.write(ORIGIN, term, b"one")
        moved = await second.begin(ORIGIN, term)  # the target of the move claims it by itself
        assert moved is not None
        assert await second.write(ORIGIN, moved, b"two")
        back = await first.begin(ORIGIN, moved)  # it moved back
        assert back is not None
        await first.pass_on(ORIGIN, term, 2)  # what node 1 has to say about its first move
        log.arrive()
        assert await first.write(ORIGIN, back, b"three")
        assert not await second.write(ORIGIN, moved, b"four")


async def test_the_hand_over_of_a_daemon_that_nobody_has_claimed_names_its_new_node() -> None:
    async with shared() as (_, (first, second)):
        term = await first.begin(ORIGIN, 0)
        assert term is not None
        await first.pass_on(ORIGIN, term, 2)
        assert first.of(ORIGIN).node == 2
        assert not await first.write(ORIGIN, term, b"too late")
        assert await second.begin(ORIGIN, term) is not None


@pytest.mark.slow
async def test_another_node_goes_on_when_the_node_of_a_daemon_dies_and_moves_go_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemonhosting, "TAKEOVER_S", 1.0)
    trio = Trio(tmp_path)
    try:
        for name in NAMES:
            await trio.start(name)
        n0, n1, n2 = (trio.nodes[name] for name in NAMES)
        await n0.daemons.run(DAEMON, Counter, inputs=[INPUT], **declared())
        for node in (n1, n2):
            await node.daemons.offer(DAEMON, Counter, **declared())
        await trio.publish(n1, 0, 100)
        await reached(n0, 100)
        await trio.stop("n0")  # its record says that the daemon runs there
        await trio.publish(n1, 100, 200)
        await until(lambda: any(info(node).state is DaemonState.RUNNING for node in (n1, n2)))
        (owner,) = [node for node in (n1, n2) if info(node).state is DaemonState.RUNNING]
        await reached(owner, 200)
        # The first one comes back, and finds that it is not its daemon any more.
        back = await trio.start("n0")
        await back.daemons.run(DAEMON, Counter, **declared())
        await until(lambda: info(back).state is DaemonState.MOVED)
        assert info(back).node == owner.node_id
        # A move passes the ledger on, too.
        await until(lambda: len(owner.peers) == 2 and all(peer.profile for peer in owner.peers))
        await owner.daemons.move(DAEMON, back.node_id)
        await trio.publish(n1, 200, 300)
        await reached(back, 300)
        state, outputs = run_alone([b"%d" % number for number in range(300)])
        assert host_of(back).daemon.snapshot() == state
        await until(lambda: len(trio.outputs(back)) >= len(outputs))
        assert trio.outputs(back) == outputs
        running = [node for node in trio.nodes.values() if host_of(node) is not None]
        assert running == [back]
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)


@pytest.mark.slow
async def test_a_node_that_comes_back_when_its_successor_is_gone_goes_on_from_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemonhosting, "TAKEOVER_S", 1.0)
    trio = Trio(tmp_path)
    try:
        n0, n1, n2 = [await trio.start(name) for name in NAMES]
        await n0.daemons.run(DAEMON, Counter, inputs=[INPUT], **declared())
        await n1.daemons.offer(DAEMON, Counter, **declared())
        await trio.publish(n2, 0, 100)
        await reached(n0, 100)
        await trio.stop("n0")
        for start in range(100, 200, 7):  # in batches whose borders the old record does not know
            await trio.publish(n2, start, min(start + 7, 200))
        await until(lambda: info(n1).state is DaemonState.RUNNING)
        await reached(n1, 200)
        await trio.stop("n1")
        back = await trio.start("n0")  # its record is of the first 100 events
        await trio.publish(n2, 200, 300)
        await back.daemons.run(DAEMON, Counter, **declared())
        await reached(back, 300)
        assert info(back).processed == 100  # and not what its successor has processed
        state, outputs = run_alone([b"%d" % number for number in range(300)])
        assert host_of(back).daemon.snapshot() == state
        await until(lambda: len(trio.outputs(back)) >= len(outputs))
        assert trio.outputs(back) == outputs
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)


async def test_a_ledger_and_the_output_must_be_replicated(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (node,):
        with pytest.raises(ConfigError, match="holds checkpoints, so it must be replicated"):
            await node.daemons.run(DAEMON, Counter, output=OUTPUT, checkpoints=INPUT)
