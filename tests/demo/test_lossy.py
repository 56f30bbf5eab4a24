"""A lossy link passes on both ways, loses the share that it was told to, and counts the events that it lost."""

import asyncio

from meshbus.demo.lossy import LossyLink, _Side
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Header, pack_header
from meshbus.wire.route import RouteHeader, pack_route
from tests.patience import PATIENCE_S


def packet(dest: int, channel_hash: int, events: int, subprotocol: int = Subprotocol.EVENTS) -> bytes:
    header = Header(subprotocol_id=subprotocol, channel_hash=channel_hash, event_count=events, payload_len=4)
    return pack_route(RouteHeader(src_id=1, dest_id=dest)) + pack_header(header) + b"body"


async def test_what_is_lost_is_counted_and_the_rest_arrives() -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    answered: asyncio.Queue[bytes] = asyncio.Queue()

    def take(data: bytes, client: tuple[str, int]) -> None:
        arrived.put_nowait(data)
        target.sendto(b"answer", client)

    target, _ = await loop.create_datagram_endpoint(lambda: _Side(take), local_addr=("127.0.0.1", 0))
    host, port = target.get_extra_info("sockname")
    async with LossyLink(f"{host}:{port}", seed=1) as link, asyncio.timeout(PATIENCE_S):
        near = link.address.rpartition(":")
        node, _ = await loop.create_datagram_endpoint(
            lambda: _Side(lambda data, _: answered.put_nowait(data)), remote_addr=(near[0], int(near[2]))
        )
        node.sendto(packet(7, 99, 3))
        assert await arrived.get() == packet(7, 99, 3)
        assert await answered.get() == b"answer"
        assert (link.passed, link.dropped) == (2, 0)
        link.lose(1.0)
        for lost in (packet(7, 99, 3), packet(7, 99, 2), packet(8, 1, 1), packet(8, 1, 1, 0x0A00), b"junk"):
            node.sendto(lost)
        while link.dropped < 5:  # noqa: ASYNC110 - the link tells nobody
            await asyncio.sleep(0.01)
        assert link.lost == {(7, 99): 5, (8, 1): 1}
        link.lose(0.0)
        node.sendto(b"last")
        assert await arrived.get() == b"last"
        node.close()
    target.close()


def test_the_share_that_is_lost_is_what_was_asked_for() -> None:
    link = LossyLink("127.0.0.1:9", seed=7)
    link.lose(0.05)
    lost = sum(link._is_lost(b"") for _ in range(4000))
    assert 150 < lost < 250
    assert (link.passed, link.dropped) == (4000 - lost, lost)
