"""Changes of a replica set that an operator asks for."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from meshbus.engine.replicas.records import Refusal
from meshbus.errors import LocalProtocolError, ReplicationError
from meshbus.node.replicas import replicastaff
from meshbus.node.replicas.replicamember import ReplicaMember
from tests.node.replicas.replicatrio import CHANNEL, replica_trio, until
from tests.patience import PATIENCE_S


async def test_members_leave_return_and_hand_over(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = await trio.led()
        node, gone = trio.nodes[leader], trio.follower()
        await node.publisher(CHANNEL).publish(b"a")
        await node.replica_remove(CHANNEL, gone, timeout_s=PATIENCE_S)
        assert len(node.replicas()[0].members) == 2
        with pytest.raises(ReplicationError, match="is not a member"):
            await node.replica_remove(CHANNEL, gone)
        with pytest.raises(ReplicationError, match="is not a member"):
            await node.replica_transfer(CHANNEL, gone)
        await node.replica_add(CHANNEL, trio.nodes[gone].node_id, timeout_s=PATIENCE_S)
        assert len(node.replicas()[0].members) == 3
        with pytest.raises(ReplicationError, match="is a member already"):
            await node.replica_add(CHANNEL, gone)
        with pytest.raises(LocalProtocolError, match="announced the name 'nobody'"):
            await node.replica_add(CHANNEL, "nobody")
        with pytest.raises(ReplicationError, match="does not take part"):
            await node.replica_add(CHANNEL, 99, timeout_s=0.3)

        heir = trio.follower()
        with pytest.raises(ReplicationError, match="does not lead the channel"):
            await trio.nodes[heir].replica_transfer(CHANNEL, leader)
        await node.replica_transfer(CHANNEL, heir, timeout_s=PATIENCE_S)
        assert await trio.led() == heir
        await node.publisher(CHANNEL).publish(b"b")
        await until(lambda: trio.payloads(gone) == [b"a", b"b"])
        await trio.settled()


async def test_a_node_that_the_leader_took_back_by_itself_meanwhile_is_added() -> None:
    member = mock.create_autospec(ReplicaMember, instance=True, channel="alarms", dismissed={9})
    member.nodes.return_value = (1, 2)
    member.change.side_effect = [Refusal.NO_CHANGE, Refusal.CHANGING, Refusal.NO_CHANGE]
    member.has_settled.side_effect = [False, False, True]  # its own change is not stored by a majority at first
    await replicastaff.add(member, 9, PATIENCE_S)
    assert member.has_settled.call_args == mock.call(9, is_member=True)
    assert member.dismissed == set()


async def test_the_last_member_stays_and_a_member_that_is_down_cannot_lead(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader = await trio.led()
        node, down = trio.nodes[leader], trio.follower()
        down_id = trio.nodes[down].node_id
        await trio.stop(down)
        with pytest.raises(ReplicationError, match="does not lead after"):
            await node.replica_transfer(CHANNEL, down_id, timeout_s=0.5)
        up = next(other for other in trio.member(leader).nodes() if other not in {node.node_id, down_id})
        with pytest.raises(ReplicationError, match="no majority of the members is up"):
            await node.replica_remove(CHANNEL, up)
        for other in (down_id, up):
            await node.replica_remove(CHANNEL, other)
        with pytest.raises(ReplicationError, match="last member cannot be removed"):
            await node.replica_remove(CHANNEL, node.node_id, timeout_s=0.3)
