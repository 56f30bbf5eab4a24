"""Moves on live nodes: over relays, against peers that interfere, and with a disk that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbus import Node
from meshbus.errors import MigrationError, MigrationFault
from meshbus.log.files import Files
from meshbus.node.daemons import daemonhosting
from meshbus.node.daemons.daemoninfo import DaemonState
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import (
    ActivateTarget,
    BufferedEvent,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    FailureCode,
    MigrationFailed,
    MigrationMessage,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
    encode_migration,
)
from tests.compute.counter import Counter
from tests.node.daemons.daemontrio import (
    DAEMON,
    INPUT,
    OUTPUT,
    check,
    host_of,
    info,
    nodes,
    offer,
    prepared,
    processed,
    publish,
    until,
)

ID = Subprotocol.MIGRATION


def inject(attacker: Node, victim: Node, *messages: MigrationMessage | bytes) -> None:
    raw = [one if isinstance(one, bytes) else encode_migration(one) for one in messages]
    attacker.live.act(lambda engine, now, out: engine.carrier(ID).send(victim.node_id, raw, now, out))


def counted(node: Node, reason: Reason) -> int:
    kind, why = reason.counter
    return node.counters.get(kind, {}).get(why, 0)


async def test_a_relayed_target_gets_the_daemon_and_the_relay_does_not(tmp_path: Path) -> None:
    # compute.md §5: with 0.23 nodes the relay restored the daemon, and the target had nothing.
    async with prepared(tmp_path, 0) as source, prepared(tmp_path, 1) as relay, prepared(tmp_path, 2) as target:
        await source.connect(relay.address, public_key=relay.public_key)
        await target.connect(relay.address, public_key=relay.public_key)
        await source.daemons.run(DAEMON, Counter, inputs=[INPUT], output=OUTPUT)
        await offer(relay, target)
        await publish(source, 0, 100)
        await processed(source, 100)
        await source.connect(public_key=target.public_key)
        assert next(peer for peer in source.peers if peer.node_id == target.node_id).relayed
        await source.daemons.move(DAEMON, target.node_id)
        await until(lambda: info(target).state is DaemonState.RUNNING)
        assert info(relay).state is DaemonState.OFFERED
        assert info(source).state is DaemonState.MOVED
        assert info(source).node == target.node_id
        await publish(source, 100, 150)
        await processed(target, 150)
        check(target, [source, relay, target], 150)


async def test_peers_that_are_not_part_of_a_move_cannot_interfere(tmp_path: Path) -> None:
    class Stubborn(Counter):
        deterministic = False

        def snapshot(self) -> bytes:
            return super().snapshot() + bytes(2_000_000)

    async with nodes(tmp_path, 4) as (source, target, orchestrator, mallory):
        await source.daemons.run(DAEMON, Stubborn, inputs=[INPUT], output=OUTPUT)
        await offer(target, create=Stubborn)
        await publish(source, 0, 50)
        await processed(source, 50)
        origin = source.daemons.origin_of(DAEMON)
        moving = asyncio.ensure_future(orchestrator.daemons.move(DAEMON, target.node_id, source=source.node_id))
        await until(lambda: info(source).state is DaemonState.MOVING or moving.done())
        event = BufferedEvent(CausalLink(1, 0, 1, 0), b"injected", 1)
        lies = (
            RestoreComplete(origin=origin, restored_seq=1),
            ReplayComplete(origin=origin, replayed_seq=1, target_head=CausalLink(origin)),
            CutoverNotify(origin=origin, target_node=mallory.node_id),
            CleanupComplete(origin=origin),
            BufferedEvents(origin=origin, events=(event,)),
            ActivateTarget(origin=origin),
            MigrationFailed(origin=origin, code=FailureCode.STATE_FAILED, text="lies"),
            SnapshotReady(origin=origin, seq_through=1, chunk_index=0, total_chunks=2, chunk=b"x"),
        )
        while not moving.done():
            for victim in (source, target, orchestrator):
                inject(mallory, victim, *lies, b"\xff nonsense")
            await asyncio.sleep(0.01)
        await moving
        await publish(source, 50, 80)
        await processed(target, 80)
        check(target, [source, target], 80)
        everywhere = (source, target, orchestrator)
        for reason in (Reason.MIGRATION_MALFORMED, Reason.MIGRATION_STALE, Reason.MIGRATION_UNEXPECTED):
            assert sum(counted(node, reason) for node in everywhere) > 0, reason


async def test_only_the_nodes_that_are_named_may_move_a_daemon(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as (source, target, mallory):
        allowed = [source.node_id]
        await source.daemons.run(DAEMON, Counter, output=OUTPUT, orchestrators=allowed)
        await target.daemons.offer(DAEMON, Counter, output=OUTPUT, orchestrators=allowed)
        origin = source.daemons.origin_of(DAEMON)
        inject(mallory, source, TakeSnapshot(origin=origin, target_node=target.node_id, attempt=7))
        inject(
            mallory,
            target,
            SnapshotReady(origin=origin, seq_through=0, chunk_index=0, total_chunks=1, chunk=b"forged", attempt=7),
        )
        for victim in (source, target):
            await until(lambda victim=victim: counted(victim, Reason.REFUSE_MIGRATION_SENDER) > 0)  # type: ignore[misc]
        assert info(source).state is DaemonState.RUNNING
        assert info(target).state is DaemonState.OFFERED
        await source.daemons.move(DAEMON, target.node_id)
        await until(lambda: info(target).state is DaemonState.RUNNING)


async def test_messages_for_a_node_without_a_session_are_counted_and_a_session_is_opened(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (source, target):
        await source.daemons.run(DAEMON, Counter, output=OUTPUT)
        await offer(target)
        origin = source.daemons.origin_of(DAEMON)
        await until(lambda: all(peer.profile for peer in source.peers) and bool(source.peers))
        source.disconnect(target.node_id)
        hosting = source._parts.daemons[0]  # type: ignore[union-attr, index]
        own = source.node_id
        await hosting.act(lambda handler, now: (None, handler.start(origin, own, target.node_id, now, numbered=True)))
        assert counted(source, Reason.MIGRATION_UNREACHABLE) > 0
        # The route is still known, so the node connects by itself, and what was not sent is repeated.
        await source.connect(target.address, public_key=target.public_key)
        await until(lambda: info(target).state is DaemonState.RUNNING)


async def test_a_target_that_refuses_says_why(tmp_path: Path) -> None:
    async with nodes(tmp_path, 3) as (source, target, plain):
        await source.daemons.run(DAEMON, Counter, output=OUTPUT)
        with pytest.raises(MigrationError) as caught:
            await source.daemons.move(DAEMON, target.node_id)
        assert caught.value.fault is MigrationFault.FACTORY_NOT_FOUND
        assert info(source).state is DaemonState.RUNNING
        del plain


async def test_a_disk_that_refuses_makes_daemons_begin_again_from_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemonhosting, "REOPEN_S", 0.05)
    async with nodes(tmp_path, 1) as (node,):
        await node.daemons.run(DAEMON, Counter, inputs=[INPUT], output=OUTPUT)
        await publish(node, 0, 20)
        await processed(node, 20)
        failures = list[int]()

        def refusing(original: Callable[..., Any], name: str) -> Callable[..., Any]:
            def refuse(self: Files, path: Path, *arguments: Any) -> Any:
                if path.name == name and len(failures) < 3:
                    failures.append(1)
                    raise OSError(28, "No space left on device")
                return original(self, path, *arguments)

            return refuse

        monkeypatch.setattr(Files, "write_aside", refusing(Files.write_aside, "checkpoint"))
        monkeypatch.setattr(Files, "reopen", refusing(Files.reopen, "journal"))
        await publish(node, 20, 60)
        await until(lambda: len(failures) == 3)
        await until(lambda: host_of(node) is not None and info(node).state is DaemonState.RUNNING)
        await processed(node, 60)
        check(node, [node], 60)
        assert node.counters["fail"]["daemons_halted"] >= 3
        assert any("free some space" in line.text for line in node.daemons.logs(DAEMON))
