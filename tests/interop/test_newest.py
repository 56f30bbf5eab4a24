"""Events in both directions with the newest net-mesh: a level that acknowledges, repeats, and delivers in order."""

import asyncio

import pytest

from meshbus.engine.session.dialect import Level
from tests.interop.lab import Lab, take
from tests.interop.newest import PACKAGES, installed_version, locked_version

COUNT = 300
"""Five windows: without grants of the right length a stream ends after 60 events."""
SIZE = 1000
STREAM = 77


def events(tag: str) -> list[bytes]:
    return [f"{tag} {number}".encode().ljust(SIZE, b".") for number in range(COUNT)]


def test_the_locked_version_is_installed() -> None:
    assert installed_version() == locked_version(), "run tools/bootstrap.sh dev"


@pytest.mark.parametrize("kind", ["fire_and_forget", "reliable"])
async def test_its_publications_arrive_here(lab: Lab, kind: str) -> None:
    peer, node = await lab.pair({"permissive_channels": True, "packages": PACKAGES})
    async with node.subscribe("newest/theirs") as subscription:
        publishing = asyncio.wrap_future(peer.begin("publish_all", "newest/theirs", events(kind), reliability=kind))
        assert await take(subscription, COUNT) == events(kind)
        assert await publishing == COUNT
    [known] = node.peers
    assert known.dialect is Level.C, "it granted our subscribe"


@pytest.mark.parametrize("kind", ["fire_and_forget", "reliable"])
async def test_its_streams_arrive_here_once_and_in_order(lab: Lab, kind: str) -> None:
    peer, node = await lab.pair({"packages": PACKAGES})
    async with node.inbox() as inbox:
        await asyncio.to_thread(peer.open_stream, node.node_id, STREAM, reliability=kind)
        await asyncio.to_thread(peer.send_all, node.node_id, STREAM, events(kind))
        assert await take(inbox, COUNT) == events(kind)
        assert inbox.stats.received == COUNT


@pytest.mark.parametrize("reliable", [False, True])
async def test_our_publications_arrive_there(lab: Lab, reliable: bool) -> None:
    peer, node = await lab.pair({"packages": PACKAGES})
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "newest/ours")
    collecting = asyncio.wrap_future(peer.begin("collect", COUNT, 30.0))
    report = await node.publisher("newest/ours", reliable=reliable, wait_s=30.0).publish_batch(events("ours"))
    assert (report.attempted, report.delivered) == (1, 1)
    assert [raw.encode() for raw, _ in await collecting] == events("ours")
