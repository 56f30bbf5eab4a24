"""A load test counts every event of a run once, and says what is missing."""

import asyncio
import struct

import pytest

from meshbus import Node
from meshbus.errors import ConfigError, LocalProtocolError, PartialDelivery
from meshbus.node.loadtest import MAX_RUN, MIN_SIZE, Measured, Sent, measure_load, send_load
from tests.patience import PATIENCE_S

PSK = "5a" * 32


async def subscribed(node: Node, channel: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not node.roster.members(channel):  # noqa: ASYNC110 - the other node subscribes
            await asyncio.sleep(0.01)


async def measured(*events: bytes, load: dict[str, int] | None = None) -> tuple[Measured | None, Sent | None]:
    """Send events, or a load, to a node that measures."""
    async with Node.open(psk=PSK, ephemeral=True) as sender, Node.open(psk=PSK, ephemeral=True) as receiver:
        await receiver.connect(sender.address, public_key=sender.public_key)
        measuring = asyncio.ensure_future(measure_load(receiver, "bench/a", timeout_s=PATIENCE_S))
        await subscribed(sender, "bench/a")
        sent = None
        if load is not None:
            sent = await send_load(sender, "bench/a", reliable=True, **load)
        else:
            await sender.publisher("bench/a", reliable=True).publish_batch(list(events))
        return await measuring, sent


async def test_a_run_arrives_as_a_whole() -> None:
    found, sent = await measured(load={"events": 1500, "size": 64})
    assert found is not None
    assert sent is not None
    assert (found.events, found.missing, found.bytes) == (1500, 0, 1500 * 64)
    assert (sent.events, sent.size, sent.subscribers) == (1500, 64, 1)
    assert list(found.latency_us) == ["p50", "p90", "p99", "p100"]


async def test_missing_events_are_told_and_repeated_ones_count_once() -> None:
    one, three = (struct.pack("<QQQQ", 7, index, 4, 1) for index in (0, 2))
    found, _ = await measured(one, three, b"other", three)
    assert found is not None
    assert (found.events, found.missing) == (2, 2)


@pytest.mark.parametrize("event", [b"a pose", struct.pack("<QQQQ", 7, 0, 0, 1)])
async def test_other_events_on_the_channel_are_an_error(event: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="choose a channel without other publishers"):
        await measured(event)


async def test_a_run_of_more_events_than_are_measured_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        await measured(struct.pack("<QQQQ", 7, 0, MAX_RUN + 1, 1))
    async with Node.open(psk=PSK, ephemeral=True) as node:
        with pytest.raises(ConfigError, match=f"events: must be from 1 to {MAX_RUN}"):
            await send_load(node, "bench/a", events=MAX_RUN + 1, size=64)


async def test_what_cannot_be_sent_or_measured_is_said() -> None:
    async with Node.open(psk=PSK, ephemeral=True) as node:
        with pytest.raises(ConfigError, match="size: must be from"):
            await send_load(node, "bench/a", events=1, size=MIN_SIZE - 1)
        with pytest.raises(PartialDelivery, match="no node has subscribed to bench/a"):
            await send_load(node, "bench/a", events=1, size=64)
        with pytest.raises(ConfigError, match="timeout_s: must be positive"):
            await measure_load(node, "bench/a", timeout_s=0)
        assert await measure_load(node, "bench/a", timeout_s=0.05) is None
