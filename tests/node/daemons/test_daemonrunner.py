"""Turns of a daemon: many events for one checkpoint, failures, outputs that cannot be published, gaps, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshbus import Node
from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.store import Stored
from meshbus.errors import DaemonError, LogError, LogFault
from meshbus.names.channel import ChannelName
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.daemons import daemonrunner
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.node.daemons.daemoninfo import DaemonState
from tests.compute.counter import Counter, run_alone
from tests.node.daemons.daemontrio import (
    DAEMON,
    INPUT,
    OUTPUT,
    check,
    host_of,
    info,
    nodes,
    offer,
    outputs_of,
    prepared,
    processed,
    publish,
    until,
)


async def run(node: Node, create: Any = Counter, **options: Any) -> None:
    await node.daemons.run(DAEMON, create, inputs=[INPUT], output=OUTPUT, **options)


async def test_many_events_share_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = list[int]()
    save = DaemonFiles.save

    def counting(self: DaemonFiles, origin: int, stored: Stored) -> None:
        saves.append(origin)
        save(self, origin, stored)

    monkeypatch.setattr(DaemonFiles, "save", counting)
    async with nodes(tmp_path, 1) as (node,):
        await publish(node, 0, 20_000)
        await run(node)
        await processed(node, 20_000)
        assert len(saves) < 200
        check(node, [node], 20_000)


async def test_it_goes_on_from_its_checkpoint_in_the_next_life_of_its_node(tmp_path: Path) -> None:
    for life in range(3):
        async with prepared(tmp_path, 0, ephemeral=False, identity=tmp_path / "id.toml") as node:
            await run(node)
            await publish(node, life * 100, life * 100 + 100)
            await processed(node, life * 100 + 100)
            check(node, [node], life * 100 + 100)


class Poisoned(Counter):
    """Fails at one event, until it is cured."""

    cured = False

    def process(self, event: DaemonEvent) -> list[bytes]:
        if event.payload == b"70" and not Poisoned.cured:
            self.count = -1  # its state is nonsense now
            raise ValueError("70 is too much")
        return super().process(event)


async def test_a_daemon_that_fails_is_restored_and_the_good_events_before_are_processed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemonrunner, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(daemonrunner, "LAST_PAUSE_S", 0.1)
    monkeypatch.setattr(Poisoned, "cured", False)
    async with nodes(tmp_path, 1) as (node,):
        await publish(node, 0, 100)
        await run(node, Poisoned)
        await until(lambda: [one.next_seq for one in info(node).inputs] == [70] and info(node).errors > 3)
        await until(lambda: info(node).state is DaemonState.FAILED)
        assert "70 is too much" in (info(node).error or "")
        assert any(line.level == "error" and "70 is too much" in line.text for line in node.daemons.logs(DAEMON))
        assert outputs_of(node) == run_alone([b"%d" % number for number in range(70)])[1]
        Poisoned.cured = True
        await processed(node, 100)
        await until(lambda: info(node).state is DaemonState.RUNNING)
        check(node, [node], 100)


async def test_outputs_that_cannot_be_published_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemonrunner, "FIRST_PAUSE_S", 0.01)
    original, tries = ChannelPublisher.publish_once, list[int]()

    async def unreliable(self: ChannelPublisher, rows: Any, *, writer: str, batch: int) -> int:
        tries.append(batch)
        done = await original(self, rows, writer=writer, batch=batch) if len(tries) % 3 else 0
        if len(tries) % 3 != 1:
            raise LogError(LogFault.NO_SPACE, "no space left on device")
        return done

    monkeypatch.setattr(ChannelPublisher, "publish_once", unreliable)
    async with nodes(tmp_path, 1) as (node,):
        await run(node)
        for start in range(0, 100, 10):
            await publish(node, start, start + 10)
            await processed(node, start + 10)
        check(node, [node], 100)
        assert len(tries) > 10


async def test_an_output_that_is_too_long_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Verbose(Counter):
        def process(self, _event: DaemonEvent) -> list[bytes]:
            return [bytes(9_000)]

    monkeypatch.setattr(daemonrunner, "FIRST_PAUSE_S", 0.01)
    async with nodes(tmp_path, 1) as (node,):
        await publish(node, 0, 1)
        await run(node, Verbose)
        await until(lambda: "at most 8104 can be published" in (info(node).error or ""))
        assert info(node).inputs[0].next_seq in (0, 1)


@pytest.mark.parametrize("skips", [True, False])
async def test_events_that_are_gone_stop_it_or_are_skipped(tmp_path: Path, skips: bool) -> None:
    channels = [
        {"name": INPUT, "log": "published", "log_retain_events": 10, "log_seal_bytes": 4096},
        {"name": OUTPUT, "log": "published"},
    ]
    async with nodes(tmp_path, 1, channels=channels) as (node,):
        log = node.logs.of_published(ChannelName(INPUT))
        assert log is not None
        for start in range(0, 2_000, 500):
            await publish(node, start, start + 500)
            log.file.seal()
        log.file.expire()
        first = log.file.first_seq
        await run(node, skip_gaps=skips)
        if skips:
            await processed(node, 2_000)
            assert host_of(node).daemon.count == 2_000 - first
        else:
            await until(lambda: info(node).state is DaemonState.WAITING)
            assert f"events 0 to {first - 1} of {INPUT} are no longer in the log" in (info(node).error or "")
            assert info(node).processed == 0


async def test_events_can_be_given_directly_and_are_kept_during_a_move(tmp_path: Path) -> None:
    class Stubborn(Counter):
        deterministic = False

    async with nodes(tmp_path, 2) as (one, two):
        await one.daemons.run(DAEMON, Stubborn, output=OUTPUT)
        await offer(two, create=Stubborn)
        outputs = list[bytes]()
        for number in range(20):
            outputs += await one.daemons.deliver(DAEMON, b"%d" % number)
        moving = asyncio.ensure_future(one.daemons.move(DAEMON, two.node_id))
        number = 20
        while not moving.done():
            try:
                outputs += await one.daemons.deliver(DAEMON, b"%d" % number)
            except DaemonError:
                break  # it has left
            number += 1
        await moving
        await until(lambda: host_of(two) is not None and not host_of(two).pending)
        check(two, [one, two], number)


async def test_too_many_events_given_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemonrunner, "MAX_DIRECT", 3)
    async with nodes(tmp_path, 1) as (node,):
        await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        results = await asyncio.gather(*(node.daemons.deliver(DAEMON, b"x") for _ in range(9)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, DaemonError)]
        assert len(refused) == 6
        assert "3 events wait for it already" in str(refused[0])


async def test_a_daemon_without_state_keeps_its_place(tmp_path: Path) -> None:
    class Echo:
        def process(self, event: DaemonEvent) -> list[bytes]:
            return [event.payload]

    for life in range(2):
        async with prepared(tmp_path, 0, ephemeral=False, identity=tmp_path / "id.toml") as node:
            await run(node, Echo)
            await publish(node, life * 10, life * 10 + 10)
            await processed(node, life * 10 + 10)
            assert info(node).outputs == life * 10 + 10


async def test_a_checkpoint_without_outputs_follows_when_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemonrunner, "SETTLE_S", 0.05)
    async with nodes(tmp_path, 1) as (node,):
        await run(node)
        await publish(node, 0, 10)
        await processed(node, 10)
        files = node._parts.daemons[0]._files  # type: ignore[union-attr, index]
        assert files is not None
        from meshbus.wire.messages.checkpoint import decode_checkpoint
        from meshbus.wire.messages.snapshot import decode_snapshot

        def pending() -> int:
            stored = files.load(node.daemons.origin_of(DAEMON))
            assert stored is not None
            return len(decode_checkpoint(decode_snapshot(stored.snapshot).state).pending)

        await until(lambda: pending() == 0)
