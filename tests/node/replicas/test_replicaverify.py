"""Comparing replicas: ranges, verdicts by majority, and logs read from disks and from other members."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from meshbus.errors import ReplicationError
from meshbus.node.replicas import replicaverify
from meshbus.node.replicas.replicaverify import STEP, ReplicaRange, judge, ranges_of
from tests.node.replicas.replicatrio import CHANNEL, ReplicaTrio, replica_trio, until

RIGHT, OTHER = b"right", b"other"
ONE = (0, 10)


def test_ranges_begin_at_multiples_of_their_length_whatever_is_retained() -> None:
    assert ranges_of(0, 0) == ranges_of(7, 7) == []
    assert ranges_of(0, 5) == [(0, 5)]
    assert ranges_of(5, 2 * STEP + 1) == [(5, STEP), (STEP, 2 * STEP), (2 * STEP, 2 * STEP + 1)]
    assert ranges_of(STEP, 2 * STEP) == [(STEP, 2 * STEP)]


@pytest.mark.parametrize(
    ("found", "equal", "wrong", "unread"),
    [
        ({1: RIGHT, 2: RIGHT, 3: RIGHT}, (1, 2, 3), (), ()),
        ({1: RIGHT, 2: OTHER, 3: RIGHT}, (1, 3), (2,), ()),
        ({1: None, 2: RIGHT, 3: RIGHT}, (2, 3), (1,), ()),
        ({1: RIGHT, 2: RIGHT, 3: ...}, (1, 2), (), (3,)),
        ({1: RIGHT, 2: OTHER, 3: ...}, (), (), (3,)),
        ({1: None, 2: RIGHT, 3: ...}, (), (1,), (3,)),
        ({1: RIGHT, 2: ..., 3: ...}, (), (), (2, 3)),
    ],
)
def test_what_a_majority_of_all_members_has_is_right(
    found: dict[int, object], equal: tuple[int, ...], wrong: tuple[int, ...], unread: tuple[int, ...]
) -> None:
    checksums = {node: {} if one is ... else {ONE: one} for node, one in found.items()}
    [checked] = judge([ONE], checksums)  # type: ignore[arg-type]
    assert checked == ReplicaRange(first=0, end=10, equal=equal, wrong=wrong, unread=unread)


async def test_members_compare_what_is_on_their_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicaverify, "STEP", 4)
    async with replica_trio(tmp_path) as trio:
        leader = trio.nodes[await trio.led()]
        assert await leader.replica_verify(CHANNEL) == []
        await leader.publisher(CHANNEL).publish_batch([b"%d" % number for number in range(10)])
        await trio.settled()
        checked = await leader.replica_verify(CHANNEL)
        assert [(one.first, one.end) for one in checked] == [(0, 4), (4, 8), (8, 10)]
        everybody = {node.node_id for node in trio.nodes.values()}
        assert {frozenset(one.equal) for one in checked} == {frozenset(everybody)}
        gone = trio.follower()
        gone_id = trio.nodes[gone].node_id
        await trio.stop(gone)
        assert {one.unread for one in await leader.replica_verify(CHANNEL, timeout_s=5.0)} == {(gone_id,)}


async def test_a_damaged_log_is_copied_again(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = trio.nodes[await trio.led()]
        await leader.publisher(CHANNEL).publish_batch([b"first event", b"second event"])
        await trio.settled()
        broken = trio.follower()
        _damage(tmp_path / broken, b"first event")
        node = trio.nodes[broken]
        [found] = await node.replica_verify(CHANNEL, repair=True)
        assert (found.wrong, len(found.equal)) == ((node.node_id,), 2)
        await _whole_again(trio)


async def test_a_node_without_a_replica_has_nothing_to_verify(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        guest = await trio.start("guest")
        with pytest.raises(ReplicationError, match="stores nothing"):
            await guest.replica_verify(CHANNEL)
        await trio.stop("guest")


def _damage(folder: Path, payload: bytes) -> None:
    """Change a byte of an event on disk, under the node that has it open."""
    [hot] = (file for file in folder.rglob("*.hot") if payload in file.read_bytes())
    raw = bytearray(hot.read_bytes())
    raw[raw.index(payload)] ^= 1
    with hot.open("r+b") as file:
        file.write(raw)


async def _whole_again(trio: ReplicaTrio) -> None:
    async def equal() -> bool:
        leader = trio.nodes[await trio.led()]
        return [len(one.equal) for one in await leader.replica_verify(CHANNEL, timeout_s=5.0)] == [3]

    while not await equal():  # noqa: ASYNC110 - it happens in another node
        await asyncio.sleep(0.05)
    await until(lambda: len(trio.nodes) == 3)
