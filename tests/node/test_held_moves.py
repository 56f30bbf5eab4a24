"""Daemons that move while several nodes hold their history: it goes on as one chain, wherever they run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshbus import Node
from meshbus.errors import DaemonError
from meshbus.node.daemoninfo import DaemonState
from meshbus.wire.messages.continuity import Verdict
from tests.compute.counter import Counter, Stubborn, run_alone
from tests.node.daemontrio import DAEMON, OUTPUT, check, host_of, info, nodes, offer, until
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
                while not await self._try():
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
