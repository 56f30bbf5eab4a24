"""The daemons of a node: offered, run, stopped, found again after a restart, and refused if their record is damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from meshbus import Node
from meshbus.errors import DaemonError, DaemonFault
from meshbus.node.daemons.daemoninfo import DaemonState
from tests.compute.counter import Counter
from tests.node.daemons.daemontrio import (
    DAEMON,
    INPUT,
    OUTPUT,
    check,
    info,
    nodes,
    offer,
    prepared,
    processed,
    publish,
    until,
)


def again(folder: Path, number: int) -> Node:
    return prepared(folder, number, ephemeral=False, identity=folder / f"id{number}.toml")


async def test_a_daemon_that_moved_stays_where_it_is_when_all_nodes_start_again(tmp_path: Path) -> None:
    for life in range(3):
        async with again(tmp_path, 0) as first, again(tmp_path, 1) as second:
            await second.connect(first.address, public_key=first.public_key)
            await first.daemons.run(DAEMON, Counter, inputs=[INPUT], output=OUTPUT)
            await offer(second)
            await publish(first, life * 50, life * 50 + 50)
            owner = second if life else first
            await processed(owner, life * 50 + 50)
            if life == 0:
                await first.daemons.move(DAEMON, second.node_id)
                await until(lambda: info(second).state is DaemonState.RUNNING)
            assert info(first).state is DaemonState.MOVED
            assert (info(first).node, info(first).moves) == (second.node_id, 0)
            assert (info(second).state, info(second).moves) == (DaemonState.RUNNING, 1)
            check(second, [first, second], life * 50 + 50)


async def test_stop_and_run_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (node,):
        await node.daemons.run(DAEMON, Counter, inputs=[INPUT], output=OUTPUT)
        with pytest.raises(DaemonError, match="offered on this node already"):
            await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        await publish(node, 0, 10)
        await processed(node, 10)
        await node.daemons.stop(DAEMON)
        assert info(node).state is DaemonState.STOPPED
        await publish(node, 10, 20)
        await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        await processed(node, 20)
        check(node, [node], 20)
        await node.daemons.withdraw(DAEMON)
        assert [(one.name, one.state) for one in node.daemons.list()] == [(None, DaemonState.STOPPED)]


async def test_a_damaged_record_refuses_its_daemon_and_not_the_node(tmp_path: Path) -> None:
    async with again(tmp_path, 0) as node:
        await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        origin = node.daemons.origin_of(DAEMON)
    path = tmp_path / "n0" / "daemons" / f"{origin:016x}" / "checkpoint"
    path.write_bytes(path.read_bytes()[:-3])
    async with again(tmp_path, 0) as node:
        with pytest.raises(DaemonError, match="remove it to begin anew") as caught:
            await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        assert caught.value.fault is DaemonFault.RESTORE
        assert info(node).state is DaemonState.DAMAGED
        assert "checksum" in (info(node).error or "")
        await node.daemons.run("other", Counter, output=OUTPUT)
        assert node.daemons.get("other").state is DaemonState.RUNNING


async def test_a_factory_that_fails_is_refused(tmp_path: Path) -> None:
    def broken() -> Counter:
        raise RuntimeError("no camera")

    async with nodes(tmp_path, 2) as (node, other):
        with pytest.raises(DaemonError, match="no camera"):
            await node.daemons.run(DAEMON, broken, output=OUTPUT)
        assert info(node).state is DaemonState.FAILED
        await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        assert info(node).state is DaemonState.RUNNING
        del other


async def test_what_a_daemon_logs_is_kept_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.node.daemons.daemonhosting.MAX_LINES", 5)
    async with nodes(tmp_path, 1) as (node,):
        await node.daemons.run(DAEMON, Counter, output=OUTPUT)
        for number in range(20):
            logging.getLogger(f"meshbus.daemon.{DAEMON}").warning("line %d", number)
        lines = node.daemons.logs(DAEMON)
        assert [(line.level, line.text) for line in lines] == [("warning", f"line {n}") for n in range(15, 20)]
        assert node.daemons.logs("unknown") == []
