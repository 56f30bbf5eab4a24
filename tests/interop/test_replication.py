"""0x0E00 with a real node: what its replica answers, and what it gets from ours."""

import asyncio

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.records import Acknowledged, Acks
from meshbus.node.node import Node
from meshbus.testing.realpeer import RealPeer
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.redex import (
    NackCode,
    RedexMessage,
    Reserved,
    Role,
    SyncNack,
    SyncRequest,
    channel_id,
    decode_redex,
    encode_redex,
)
from tests.engine.replicas.memorydisk import MemoryDisk
from tests.interop.lab import Lab, eventually

CHANNEL = "alarms/fire"
ID = channel_id(CHANNEL)


async def replica(lab: Lab, node: Node) -> RealPeer:
    """Make a real node that is a member of the channel together with ours; another real node opens its log."""
    peer, opener = lab.peer(permissive_channels=True), lab.peer(permissive_channels=True)
    await lab.join(node, peer, start=False)
    accepting = peer.begin("accept", opener.node_id)
    await asyncio.to_thread(opener.connect, peer.address, peer.public_key, peer.node_id)
    await asyncio.to_thread(accepting.result, 5)
    for one in (peer, opener):
        await asyncio.to_thread(one.start)
    await asyncio.wrap_future(peer.begin("offer_replica", CHANNEL, [peer.node_id, node.node_id]))
    assert await asyncio.wrap_future(opener.begin("open_replica", peer.node_id)) == 1
    return peer


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
    node = await lab.node()
    peer = await replica(lab, node)
    heard = hear(node)
    request = encode_redex(SyncRequest(channel_id=ID, since_seq=3, chunk_max=0, request_id=77))
    node.live.act(
        lambda engine, _now, out: engine.peers.require(peer.node_id).send_message(Subprotocol.REDEX, request, out)
    )
    await eventually(lambda: any(isinstance(one, SyncNack) for one in heard), "its answer")
    (nack,) = [one for one in heard if isinstance(one, SyncNack)]
    assert (nack.code, nack.since_seq, nack.request_id) == (NackCode.NOT_LEADER, 3, 77)


async def test_a_set_with_it_takes_local_appends(lab: Lab) -> None:
    node = await lab.node()
    peer = await replica(lab, node)
    disk = MemoryDisk()
    settings = ReplicaSettings(nodes=(node.node_id, peer.node_id), heartbeat_s=0.1)
    work: list[ReplicaWork] = []
    node.watch(lambda notice: work.append(notice) if isinstance(notice, ReplicaWork) else None)
    engine = node.live.engine
    node.live.act(lambda engine, now, out: engine.replication.open(ID, settings, Recovered(), disk, now, out))
    await eventually(lambda: engine.replication[ID].role == Role.LEADER, "our node to lead")
    node.live.act(lambda engine, now, out: engine.replication.append(ID, 1, [b"fire"], Acks.LOCAL, now, out))
    await eventually(lambda: any(one.writes for one in work), "the write")
    (write,) = [write for one in work for write in one.writes]
    disk.write(write)  # type: ignore[arg-type]
    node.live.act(lambda engine, now, out: engine.replication.durable(ID, 1, now, out))
    acknowledged = Acknowledged(1, 0, 1, Acks.LOCAL, confirmed=True)
    await eventually(lambda: any(acknowledged in one.notices for one in work), "the acknowledgement")
    assert peer.node_id in {one.node_id for one in node.peers}
