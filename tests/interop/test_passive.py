"""Read what two nodes say to each other on real sockets, with nothing but the mesh key and a tap on the path."""

import pytest

from tests.eavesdrop import End
from tests.interop.lab import PSK, Lab, eventually, take
from tests.interop.reader import Reader
from tests.interop.tap import Tap

CHANNEL = "convoy/position"
SECRET = b"the position of the convoy"


@pytest.mark.parametrize("secure", ["off", "auto", "require"])
async def test_a_holder_of_the_mesh_key_reads_0_23_sessions_and_not_secure_ones(lab: Lab, secure: str) -> None:
    near, far = await lab.node(secure=secure), await lab.node(secure=secure)
    with Tap(near.address, far.address) as tap:  # not the lab's: those lead to plain peers
        reader = Reader(tap, [PSK], *(End(node.node_id, node.noise_public_key) for node in (near, far)))
        await near.connect(tap.peer_address, public_key=far.public_key)
        await eventually(lambda: all(peer.profile for peer in (*near.peers, *far.peers)), "the nodes agree")
        async with far.subscribe(CHANNEL) as subscription:
            await near.publisher(CHANNEL).publish(SECRET)
            await near.publisher(CHANNEL, reliable=True).publish_batch([SECRET] * 100)
            assert await take(subscription, 101) == [SECRET] * 101
    if secure == "off":
        assert reader.plain.count(SECRET) >= 101
        assert not reader.sealed
    else:
        assert SECRET not in reader.plain
        assert CHANNEL.encode() not in reader.plain, "nor what was subscribed to"
        assert b"subprotocol:0x4d04" in reader.plain, "announcements can be read"
        assert reader.sealed
