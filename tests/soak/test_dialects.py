"""Many events with one net-mesh version of each level, without loss and with it; and the matrix of all versions."""

import asyncio
import random

import pytest

from tests.interop import matrix
from tests.interop.lab import Lab, take
from tests.interop.matrix import WORKS, install

COUNT = 100_000
SIZE = 200
LOSS = 0.02
LONG_S = 1800.0
STREAM = 77
VERSIONS = ("0.23.0", "0.34.0", "0.45.1")
"""One of each level."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * LONG_S)]


def events() -> list[bytes]:
    return [str(number).encode().ljust(SIZE, b".") for number in range(COUNT)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["fire_and_forget", "reliable"])
async def test_its_publications_arrive_once_and_in_order(version: str, kind: str) -> None:
    lab = Lab()
    try:
        peer, node = await lab.pair({"packages": install(version), "permissive_channels": True, "timeout_s": LONG_S})
        async with node.subscribe("soak/theirs") as subscription:
            publishing = asyncio.wrap_future(peer.begin("publish_all", "soak/theirs", events(), reliability=kind))
            assert await take(subscription, COUNT, LONG_S) == events()
            await publishing
            assert subscription.stats.dropped == 0
    finally:
        await lab.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reliable", [False, True])
async def test_our_publications_arrive_once_and_in_order(version: str, reliable: bool) -> None:
    lab = Lab()
    try:
        peer, node = await lab.pair({"packages": install(version), "timeout_s": LONG_S})
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "soak/ours")
        collecting = asyncio.wrap_future(peer.begin("collect", COUNT, LONG_S))
        await node.publisher("soak/ours", reliable=reliable, wait_s=LONG_S).publish_batch(events())
        assert [raw.encode() for raw, _ in await collecting] == events()
    finally:
        await lab.close()


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_its_reliable_stream_survives_loss(version: str) -> None:
    """Level A repeats nothing, so what is lost is lost there."""
    lab = Lab()
    try:
        peer, node = await lab.pair({"packages": install(version), "timeout_s": LONG_S})
        chance = random.Random(1)
        lab.taps[0].judge = lambda _datagram, _outgoing: chance.random() >= LOSS
        async with node.inbox() as inbox:
            await asyncio.to_thread(peer.open_stream, node.node_id, STREAM, reliability="reliable")
            sending = asyncio.wrap_future(peer.begin("send_all", node.node_id, STREAM, events()))
            assert await take(inbox, COUNT, LONG_S) == events()
            await sending
    finally:
        await lab.close()


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_our_reliable_channel_survives_loss(version: str) -> None:
    """Level B delivers in the order of arrival, so only level C promises the order."""
    lab = Lab()
    try:
        peer, node = await lab.pair({"packages": install(version), "timeout_s": LONG_S})
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "soak/ours")
        chance = random.Random(2)
        lab.taps[0].judge = lambda _datagram, _outgoing: chance.random() >= LOSS
        collecting = asyncio.wrap_future(peer.begin("collect", COUNT, LONG_S))
        await node.publisher("soak/ours", reliable=True, wait_s=LONG_S).publish_batch(events())
        arrived = [raw.encode() for raw, _ in await collecting]
        assert sorted(arrived) == sorted(events())
        if version == VERSIONS[-1]:
            assert arrived == events()
    finally:
        await lab.close()


async def test_every_version_passes_the_checks_of_the_matrix() -> None:
    rows = await matrix.run(matrix.VERSIONS)
    failed = {version: results for version, (_, results) in rows.items() if set(sum(results.values(), ())) != {WORKS}}
    assert failed == {}
