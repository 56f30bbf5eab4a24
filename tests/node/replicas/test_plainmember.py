"""A channel that is replicated as 0.23 nodes do: two nodes that know only the plain protocol of each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from meshbus import Node, NodeConfig
from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.names.identity import Identity
from meshbus.node.replicas import replicas as replicas_module
from meshbus.wire.messages.redex import Role
from tests.node.replicas.replicatrio import CHANNEL, until


class Pair:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.psk = os.urandom(32).hex()
        self.ids = [Identity.generate(os.urandom) for _ in range(2)]
        self.nodes: list[Node] = []

    async def start(self, **entry: Any) -> Node:
        number = len(self.nodes)
        replicas = [f"{one.node_id:016x}" for one in self.ids]
        other = self.ids[1 - number]
        address = self.nodes[0].address if self.nodes else "127.0.0.1:9"
        peer = {"address": address, "public_key": other.entity_id.hex(), "profile": "plain"}
        config = NodeConfig.load(
            env={},
            psk=self.psk,
            log_dir=self.folder / str(number),
            peers=[peer],
            channels=[{"name": CHANNEL, "replicas": replicas, "acks": "local", "replica_heartbeat_s": 0.1, **entry}],
        )
        node = Node(config, self.ids[number])
        await node.start()
        self.nodes.append(node)
        return node

    def payloads(self, number: int) -> list[bytes]:
        replicas = self.nodes[number]._opened.replicas
        assert replicas is not None
        log = replicas.member_of(CHANNEL).disk.log.committed
        return [event.payload for event in log.read_range(log.first_seq, log.next_seq)]

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()


async def test_events_are_acknowledged_locally_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "REOPEN_S", 0.1)
    pair = Pair(tmp_path)
    try:
        first = await pair.start()
        await until(lambda: first.replicas()[0].role == "leader")
        publisher = first.publisher(CHANNEL)
        events = [str(number).encode() * 50 for number in range(200)]
        report = await publisher.publish_batch(events)
        assert (report.log_seq, report.replicated) == (0, "local")
        await pair.start()
        await until(lambda: len(pair.nodes[1].replicas()) == 1 and pair.nodes[1].replicas()[0].tail == 200)
        await until(lambda: pair.payloads(1) == events)
        assert pair.payloads(0) == events
        assert pair.nodes[1].replicas()[0].waiting is None
        with pytest.raises(ConfigError, match="keeps no headers"):
            await publisher.publish_once(pa.table({"payload": [b"x"]}), writer="w", batch=1)

        replicas = first._opened.replicas
        assert replicas is not None
        member = replicas.member_of(CHANNEL)

        def refuse(*_: object, **__: object) -> None:
            raise LogError(LogFault.NO_SPACE, "no space left on device")

        monkeypatch.setattr(member.disk.log, "append", refuse)
        member._append([b"too much"], replicas[CHANNEL].acks)
        await until(lambda: member.core.role == Role.IDLE or replicas[CHANNEL].member is not member)
        await until(lambda: replicas[CHANNEL].member is not None and replicas[CHANNEL].problem is None)
    finally:
        await pair.close()


async def test_a_majority_cannot_be_promised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="acks: must be local for alarms"):
        await Pair(tmp_path).start(acks="majority")
