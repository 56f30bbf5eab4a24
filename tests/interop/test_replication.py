"""0x0E00 with a real node: what its replica answers, and what it gets from ours."""

import asyncio
from pathlib import Path

from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.redex import (
    NackCode,
    RedexMessage,
    Reserved,
    SyncNack,
    SyncRequest,
    channel_id,
    decode_redex,
    encode_redex,
)
from tests.interop.lab import Lab, eventually

CHANNEL = "alarms/fire"
ID = channel_id(CHANNEL)


async def replica(lab: Lab, node: Node, peer: RealPeer) -> None:
    """Make a real node a member of the channel together with ours; another real node opens its log."""
    opener = lab.peer(permissive_channels=True)
    await lab.join(node, peer, start=False)
    accepting = peer.begin("accept", opener.node_id)
    await asyncio.to_thread(opener.connect, peer.address, peer.public_key, peer.node_id)
    await asyncio.to_thread(accepting.result, 5)
    for one in (peer, opener):
        await asyncio.to_thread(one.start)
    await asyncio.wrap_future(peer.begin("offer_replica", CHANNEL, [peer.node_id, node.node_id]))
    assert await asyncio.wrap_future(opener.begin("open_replica", peer.node_id)) == 1


def hear(node: Node) -> list[RedexMessage | Reserved]:
    """Collect what comes on 0x0E00, beside what the node does with it."""
    heard: list[RedexMessage | Reserved] = []
    handlers = node.live.engine.reception.handlers
    handle = handlers[Subprotocol.REDEX]

    def listen(peer: object, event: memoryview, now: float, out: object) -> object:
        heard.append(decode_redex(event))
        return handle(peer, event, now, out)  # type: ignore[arg-type]

    handlers[Subprotocol.REDEX] = listen
    return heard


async def test_it_answers_our_request_with_not_leader(lab: Lab) -> None:
    node, peer = await lab.node(), lab.peer(permissive_channels=True)
    await replica(lab, node, peer)
    heard = hear(node)
    request = encode_redex(SyncRequest(channel_id=ID, since_seq=3, chunk_max=0, request_id=77))
    node.live.act(
        lambda engine, _now, out: engine.peers.require(peer.node_id).send_message(Subprotocol.REDEX, request, out)
    )
    await eventually(lambda: any(isinstance(one, SyncNack) for one in heard), "its answer")
    (nack,) = [one for one in heard if isinstance(one, SyncNack)]
    assert (nack.code, nack.since_seq, nack.request_id) == (NackCode.NOT_LEADER, 3, 77)


async def test_a_set_with_it_takes_local_appends(lab: Lab, tmp_path: Path) -> None:
    peer = lab.peer(permissive_channels=True)
    its_id = f"{peer.node_id:016x}"
    channel = {"name": CHANNEL, "replicas": ["ours", its_id], "acks": "local", "replica_heartbeat_s": 0.1}
    # The entry tells that a member is a 0.23 node; the session is made by `replica`.
    entry = {"address": "127.0.0.1:9", "node_id": its_id, "public_key": peer.public_key.hex(), "profile": "plain"}
    node = await lab.node(name="ours", log_dir=tmp_path, channels=[channel], peers=[entry])
    await replica(lab, node, peer)
    await eventually(lambda: node.replicas()[0].role == "leader", "our node to lead")
    report = await node.publisher(CHANNEL).publish_batch([b"smoke", b"fire"])
    assert (report.log_seq, report.replicated) == (0, "local")
    (status,) = node.replicas()
    assert (status.tail, status.committed, status.waiting) == (2, 2, None)
    assert {one.node_id for one in status.members} == {node.node_id, peer.node_id}
    assert peer.node_id in {one.node_id for one in node.peers}, "it goes on with heartbeats of a leader"
