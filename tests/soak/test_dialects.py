"""Many events with one net-mesh version of each level, without loss and with it; and the matrix of all versions."""

import asyncio

import pytest

from tests.interop import matrix, versions
from tests.interop.lab import Lab, take
from tests.interop.lossy import Arrived, it_to_us, ours_to_it
from tests.interop.matrix import WORKS
from tests.interop.versions import install

COUNT = 100_000
SIZE = 200
LONG_S = 1800.0
VERSIONS = ("0.23.0", "0.34.0", "0.45.1")
"""One of each level."""
REPEATING = ("0.27.0", "0.34.0", "0.45.1")
"""Level B as it began and as it ended, and level C."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * LONG_S)]


def events() -> list[bytes]:
    return [str(number).encode().ljust(SIZE, b".") for number in range(COUNT)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["fire_and_forget", "reliable"])
async def test_its_publications_arrive_once_and_in_order(version: str, kind: str) -> None:
    lab = Lab(install(version))
    try:
        peer, node = await lab.pair({"permissive_channels": True, "timeout_s": LONG_S})
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
    lab = Lab(install(version))
    try:
        peer, node = await lab.pair({"timeout_s": LONG_S})
        await asyncio.to_thread(peer.subscribe_channel, node.node_id, "soak/ours")
        collecting = asyncio.wrap_future(peer.begin("collect", COUNT, LONG_S))
        await node.publisher("soak/ours", reliable=reliable, wait_s=LONG_S).publish_batch(events())
        assert [raw.encode() for raw, _ in await collecting] == events()
    finally:
        await lab.close()


@pytest.mark.parametrize("version", REPEATING)
async def test_its_reliable_stream_survives_loss(version: str) -> None:
    """Level A repeats nothing, so what is lost is lost there."""
    lab = Lab(install(version))
    try:
        assert await it_to_us(lab, COUNT) == Arrived(missing=0, doubled=0, in_order=True)
    finally:
        await lab.close()


@pytest.mark.parametrize("version", REPEATING)
async def test_our_reliable_channel_survives_loss(version: str) -> None:
    """Level B delivers in the order of arrival, and every copy; only level C promises the order."""
    lab = Lab(install(version))
    try:
        arrived = await ours_to_it(lab, COUNT)
        assert (arrived.missing, arrived.doubled) == (0, 0)
        assert arrived.in_order or version != REPEATING[-1]
    finally:
        await lab.close()


async def test_every_version_passes_the_checks_of_the_matrix() -> None:
    rows = await matrix.run(versions.VERSIONS)
    failed = {
        (version, name): both
        for version, row in rows.items()
        for name, both in row.results.items()
        # Levels A and B send what belongs to a session through a relay without a routing header.
        if set(both) != {WORKS} and not (name.startswith("our relay") and row.level[0] in "AB")
    }
    assert failed == {}
    assert {row.lossy[1] for version, row in rows.items() if row.level[0] != "A"} == {"each once"}
    assert {row.lossy[0] for version, row in rows.items() if row.level[0] == "C"} == {"each once"}
    assert not [version for version, row in rows.items() if row.level[0] == "B" and "each once" not in row.lossy[0]]
