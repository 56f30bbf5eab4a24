"""Daemons that move while several nodes hold their history: it goes on as one chain, wherever they run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshbus import Node
from meshbus.errors import DaemonError, LogError, LogFault, MigrationError
from meshbus.node.daemons.daemoninfo import DaemonState
from meshbus.wire.messages.continuity import Verdict
from tests.compute.counter import Counter, OneEach, Stubborn, run_alone
from tests.node.daemons.daemontrio import DAEMON, OUTPUT, check, host_of, info, nodes, offer, prepared, until
from tests.patience import PATIENCE_S


def hold(*members: Node) -> None:
    for node in members:
        node.coordination.hold(DAEMON, [other.node_id for other in members if other is not node])


def held(node: Node) -> list[bytes]:
    """Return the outputs in the history, as one node has it."""
    chain = node.coordination._coordination.keeper.chain(node.daemons.origin_of(DAEMON))
    assert chain is not None
    return [event.payload for event in chain.log.events]


async def check_history(members: list[Node], events: int) -> None:
    """Compare all copies with a daemon that ran alone, and let each node prove its own to the others."""
    _, outputs = run_alone([b"%d" % number for number in range(events)])
    for node in members:
        await until(lambda node=node: len(held(node)) >= len(outputs))  # type: ignore[misc]
        assert held(node) == outputs
        assert node.coordination.branches(DAEMON) == []
        proven = await node.coordination.prove(DAEMON)
        assert proven == {other.node_id: Verdict.HOLDS for other in members if other is not node}


class Feeder:
    """Gives the daemon events directly, one after the other, wherever it runs."""

    def __init__(self, members: list[Node]) -> None:
        self.members = members
        self.given = 0

    async def give(self, count: int) -> None:
        for _ in range(count):
            async with asyncio.timeout(PATIENCE_S):
                while not await self._try():  # noqa: ASYNC110 - a daemon on its way has no event
                    await asyncio.sleep(0.001)
            self.given += 1

    async def _try(self) -> bool:
        for node in self.members:
            try:
                await node.daemons.deliver(DAEMON, b"%d" % self.given)
            except DaemonError:
                continue  # it runs elsewhere, and has not got the event
            return True
        return False


async def move(source: Node, target: Node, feeder: Feeder) -> None:
    """Move the daemon, while events come all the time."""
    moving = asyncio.ensure_future(source.daemons.move(DAEMON, target.node_id))
    while not moving.done():
        await feeder.give(1)
    await moving
    await until(lambda: info(target).state is DaemonState.RUNNING)


@pytest.mark.parametrize("create", [Counter, Stubborn])
async def test_a_history_goes_on_while_its_daemon_moves(tmp_path: Path, create: type[Counter]) -> None:
    async with nodes(tmp_path, 3) as members:
        hold(*members)
        await members[0].daemons.run(DAEMON, create, output=OUTPUT)
        await offer(*members[1:], create=create)
        feeder = Feeder(members)
        for number in range(6):
            await feeder.give(5)
            await move(members[number % 3], members[(number + 1) % 3], feeder)
        await feeder.give(5)
        await until(lambda: host_of(members[0]) is not None and not host_of(members[0]).pending)
        check(members[0], members, feeder.given)
        await check_history(members, feeder.given)


class OneStubborn(OneEach):
    """One output for each event; it is stopped while its state, which is large, is copied."""

    deterministic = False

    def snapshot(self) -> bytes:
        return super().snapshot() + bytes(2_000_000)


async def test_a_history_goes_on_after_moves_that_are_taken_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as members:
        source, target = members
        hold(*members)
        await source.daemons.run(DAEMON, OneStubborn, output=OUTPUT)
        await offer(target, create=OneStubborn)
        given = kept = 0
        for _ in range(3):
            moving = asyncio.ensure_future(source.daemons.move(DAEMON, target.node_id))
            await until(lambda: info(source).state is DaemonState.MOVING)
            for _ in range(3):
                kept += not await source.daemons.deliver(DAEMON, b"x")
                given += 1
            await source.daemons.cancel(DAEMON)
            with pytest.raises(MigrationError):
                await moving
            await until(lambda: info(source).state is DaemonState.RUNNING)
        assert kept
        expected = [number.to_bytes(4, "little") for number in range(1, given + 1)]
        for node in members:
            await until(lambda node=node: len(held(node)) == given)  # type: ignore[misc]
            assert held(node) == expected
            assert node.coordination.branches(DAEMON) == []
        assert info(source).state is DaemonState.RUNNING


@pytest.mark.parametrize("told", [False, True])
async def test_a_node_that_is_restarted_goes_on_with_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    fixed = {"ephemeral": False, "identity": tmp_path / "id.toml"}
    async with prepared(tmp_path, 1) as other:
        async with prepared(tmp_path, 0, **fixed) as node:
            await node.connect(other.address, public_key=other.public_key)
            hold(node, other)
            await node.daemons.run(DAEMON, Counter, output=OUTPUT)
            feeder = Feeder([node])
            await feeder.give(5)
            lose_publisher(node, monkeypatch, told=told)
            last = [asyncio.ensure_future(node.daemons.deliver(DAEMON, b"%d" % number)) for number in range(5, 12)]
            await until(lambda: info(node).error is not None)
        await asyncio.gather(*last, return_exceptions=True)
        # Its last outputs are in a checkpoint, not published, and in the history of the other only if it was told.
        feeder.given = 12
        async with prepared(tmp_path, 0, **fixed) as node:
            feeder.members = [node]
            await node.daemons.run(DAEMON, Counter, output=OUTPUT)
            await feeder.give(5)
            hold(node, other)
            await node.connect(other.address, public_key=other.public_key)
            await feeder.give(5)
            check(node, [node], feeder.given)
            await check_history([node, other], feeder.given)


def lose_publisher(node: Node, monkeypatch: pytest.MonkeyPatch, *, told: bool) -> None:
    """Let a daemon publish nothing more, as if its node died before; with `told`, after its history went out."""

    async def refuse(*_: object, **__: object) -> None:
        raise LogError(LogFault.CLOSED, "the disk is gone")

    runner = node._parts.daemons[0].runner(node.daemons.origin_of(DAEMON))  # type: ignore[union-attr, index]
    monkeypatch.setattr(runner._publisher, "publish_once", refuse)
    if not told:
        runner._shop = runner._shop._replace(emitted=lambda _events: None)
