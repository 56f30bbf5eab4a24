"""Histories and groups of daemons on real nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbus.compute.causal import ChainHead
from meshbus.compute.groups import GroupKind, GroupSpec
from meshbus.compute.reconciling import Diverged
from meshbus.errors import ConfigError, DaemonError, PeerError
from meshbus.names.channel import ChannelName
from meshbus.node.daemons import coordinating
from meshbus.node.daemons.coordinating import MAX_REPORTS
from meshbus.node.node import Node
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.continuity import Verdict
from meshbus.wire.messages.groups import GroupState, encode_group
from tests.compute.counter import OneEach
from tests.patience import PATIENCE_S

PSK = bytes(32)
CHANNELS = [{"name": "counts", "log": "published"}]


def opened(folder: Path, name: str, **settings: Any) -> Node:
    folder = folder / name
    return Node.open(
        psk=PSK,
        ephemeral=True,
        bind="127.0.0.1:0",
        daemons_dir=folder / "daemons",
        log_dir=folder / "logs",
        channels=CHANNELS,
        **settings,
    )


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def last(node: Node) -> list[int]:
    return [chain.last for chain in node.coordination.chains()]


def logged(node: Node) -> int:
    log = node.logs.of_published(ChannelName("counts"), create=False)
    return 0 if log is None else log.file.next_seq


async def test_a_history_is_kept_on_other_nodes_and_proven_there(tmp_path: Path) -> None:
    async with opened(tmp_path, "left") as left, opened(tmp_path, "right") as right:
        await left.connect(right.address, public_key=right.public_key)
        left.coordination.hold("counter", [right.node_id])
        right.coordination.hold("counter", [left.node_id])
        await left.daemons.run("counter", OneEach, output="counts")
        for _ in range(5):
            await left.daemons.deliver("counter", b"x")
        await until(lambda: last(right) == [5])
        assert last(left) == [5]
        assert await left.coordination.prove("counter") == {right.node_id: Verdict.HOLDS}
        assert right.coordination.chains()[0].members == (left.node_id,)
        assert right.coordination.branches("counter") == []
        with pytest.raises(DaemonError, match="call hold first"):
            right.coordination.branches("other")
        right.coordination.release("counter")
        assert right.coordination.chains() == []


async def test_a_daemon_that_ran_on_two_nodes_goes_on_where_its_history_won(tmp_path: Path) -> None:
    async with opened(tmp_path, "left") as left, opened(tmp_path, "right") as right:
        for node, other, events in ((left, right, 2), (right, left, 4)):
            node.coordination.hold("counter", [other.node_id])
            await node.daemons.run("counter", OneEach, output="counts")
            for number in range(events):
                await node.daemons.deliver("counter", b"%d" % number)
        await left.connect(right.address, public_key=right.public_key)
        await until(lambda: last(left) == last(right) == [4])
        await until(lambda: left.daemons.get("counter").state == "stopped")
        assert right.daemons.get("counter").state == "running"
        for node in (left, right):
            await until(lambda node=node: len(node.coordination.branches("counter")) == 1)  # type: ignore[misc]
            (branch,) = node.coordination.branches("counter")
            assert len(branch.events) == 2
            assert any(isinstance(report, Diverged) for report in node.coordination.reports)
        assert any("won" in line.text for line in left.daemons.logs("counter"))
        lost = left.coordination.branches("counter")
    async with opened(tmp_path, "left") as left:
        left.coordination.hold("counter", [])
        await until(lambda: left.coordination.branches("counter") == lost)


async def test_a_group_goes_on_when_the_node_of_its_daemon_leaves(tmp_path: Path) -> None:
    async with opened(tmp_path, "right") as right:
        async with opened(tmp_path, "left") as left:
            await left.connect(right.address, public_key=right.public_key)
            spec = GroupSpec(seed=bytes(range(32)), kind=GroupKind.STANDBY, size=2, nodes=(left.node_id, right.node_id))
            for node in (left, right):
                assert node.coordination.join(spec, OneEach, output="counts") == spec.group_id
            with pytest.raises(DaemonError, match="no member"):
                left.coordination.send(spec.group_id, b"early")
            await until(lambda: right.coordination.runners(spec.group_id) == {0: left.node_id})
            for number in range(1, 4):
                right.coordination.send(spec.group_id, b"x", sequence=number)
            await until(lambda: logged(left) == 3)
        await until(lambda: right.coordination.runners(spec.group_id) == {0: right.node_id})
        right.coordination.send(spec.group_id, b"x")
        await until(lambda: last(right) == [4])
        await until(lambda: logged(right) > 0)


async def test_a_message_goes_to_the_nearest_node_that_handles_it(tmp_path: Path) -> None:
    async with opened(tmp_path, "left") as left, opened(tmp_path, "right") as right:
        message = encode_group(GroupState(group=1, slots=()))
        with pytest.raises(PeerError, match="no other node"):
            await left.coordination.route(Subprotocol.GROUPS, message)
        await left.connect(right.address, public_key=right.public_key)
        await left.live.agreed(right.node_id, Subprotocol.GROUPS, PATIENCE_S)
        assert await left.coordination.route(Subprotocol.GROUPS, message) == right.node_id
        await until(lambda: right.counters.get("drop", {}).get("chain_unknown", 0) == 1)


async def test_a_history_that_is_held_later_has_what_was_emitted_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinating, "MAX_EARLY", 3)
    async with opened(tmp_path, "left") as left:
        await left.daemons.run("counter", OneEach, output="counts")
        for _ in range(5):
            await left.daemons.deliver("counter", b"x")
        left.coordination.hold("counter", [])
        await left.daemons.deliver("counter", b"x")
        await until(lambda: last(left) == [6])
        (chain,) = left.coordination.chains()
        assert (chain.first, chain.waiting) == (3, 0)


async def test_reports_are_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path, "left") as left:
        left.coordination.hold("counter", [])
        await left.daemons.run("counter", OneEach, output="counts")
        await left.daemons.deliver("counter", b"x")
        origin = left.daemons.origin_of("counter")
        # Other events than those of the history are lost branches, each with a report.
        for number in range(MAX_REPORTS + 5):
            head = ChainHead(CausalLink(origin))
            left.coordination.emitted([head.emit(b"%d" % number, 0)])
        assert len(left.coordination.reports) == MAX_REPORTS


async def test_a_node_without_daemons_has_none_of_this() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as node:
        with pytest.raises(ConfigError, match="daemons_dir"):
            _ = node.coordination
