"""The state of replicated channels, as programs see it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from meshbus.node.replicas.replicastatus import progress_of, role_of
from tests.node.replicas.replicatrio import replica_trio, until


async def test_only_the_leader_knows_how_far_the_others_are(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        leader, follower = await trio.led(), trio.follower()
        others = {node.node_id for name, node in trio.nodes.items() if name != leader}
        await until(lambda: set(progress_of(trio.member(leader).core)) == others)
        assert progress_of(trio.member(follower).core) == {}
        assert (role_of(trio.member(leader).core), role_of(trio.member(follower).core)) == ("leader", "replica")
        # Who was heard, and when: from the first heartbeats on, everybody knows it.
        await until(lambda: None not in [trio.nodes[name].replicas()[0].lag_s for name in (leader, follower)])
        assert trio.nodes[leader].counters["replica"]["led"] == 1
        assert trio.nodes[leader].counters["replica"]["elections"] >= 1
        assert msgspec.json.encode(trio.nodes[leader].replicas())
