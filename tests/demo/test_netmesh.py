"""The net-mesh node of the demo takes a handshake, publishes, and receives from a meshbus node."""

import asyncio
from pathlib import Path

import msgspec

from meshbus.demo.netmesh import ANSWER, Await, Command, Follow, Hello, Meet, Tell, Told
from meshbus.demo.process import Process
from meshbus.demo.roles import ORDERS, STATE
from meshbus.keyfile import create_psk
from meshbus.node.node import Node
from tests.patience import PATIENCE_S


async def test_a_net_mesh_node_and_a_meshbus_node_exchange_events(tmp_path: Path) -> None:
    key = tmp_path / "mesh-key.toml"
    create_psk(key)
    command = ("-m", "meshbus.demo.netmesh", str(key))
    async with (
        asyncio.timeout(PATIENCE_S),
        Node.open(psk_file=key, ephemeral=True) as node,
        Process("net-mesh", *command, says=ANSWER.decode, errors=tmp_path / "err") as other,
    ):

        def tell(line: Command) -> None:
            other.tell(msgspec.json.encode(line) + b"\n")

        hello = await other.answer()
        assert isinstance(hello, Hello)
        tell(Meet(node.node_id))
        await node.connect(hello.address, node_id=hello.node_id, public_key=hello.public_key, routed=False)
        assert await other.answer() == Told(0, 0)
        async with node.subscribe(STATE, publisher=hello.node_id) as states:
            tell(Tell(3, 100))
            payloads: list[bytes] = []
            while len(payloads) < 3:
                batch = await states.next_batch()
                assert batch is not None
                payloads += batch.payloads()
            assert payloads == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
            assert await other.answer() == Told(3, 0)
        tell(Follow(node.node_id))
        assert await other.answer() == Told(3, 0)
        await node.publisher(ORDERS).publish(b'{"n":7}')
        tell(Await(1))
        assert await other.answer() == Told(3, 1)
        other.end_input()
        assert await other.answer() == Told(3, 1)
