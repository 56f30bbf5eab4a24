"""Live nodes with logs on disk: what was published is read again, joined to what is new; what cannot be is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import meshbus.sync
from meshbus.engine.base.notices import HistoryGap
from meshbus.errors import ChannelError, ChannelFault, LocalProtocolError, LogError, LogFault, PeerError, Timeout
from meshbus.log.durability import Retention
from meshbus.names.identity import Identity
from meshbus.node.channels.historyreader import FIRST, HistoryReader
from meshbus.node.channels.subscription import Subscription
from meshbus.node.node import Node
from tests.node.replicas.replicatrio import CHANNEL as REPLICATED
from tests.node.replicas.replicatrio import NAMES, replica_trio
from tests.node.test_node import QUICK, take, until
from tests.patience import PATIENCE_S

LIDAR = "sensors/lidar"
LOGGED: dict[str, Any] = {"name": LIDAR, "log": "published"}


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, stop)]


@asynccontextmanager
async def pair(folder: Path, **entry: object) -> AsyncIterator[tuple[Node, Node]]:
    """A publisher that logs a channel, and a subscriber connected to it; the first page may take a while to be read."""
    channel, settings = {**LOGGED, **entry}, {**QUICK, "membership_ack_timeout_s": 20.0}
    async with (
        Node.open(log_dir=folder, channels=[channel], **settings) as publisher,
        Node.open(**settings) as subscriber,
    ):
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        yield publisher, subscriber


async def publish(node: Node, first: int, stop: int) -> None:
    await node.publisher(LIDAR).publish_batch(numbered(first, stop))


async def numbers(subscription: Subscription, count: int) -> list[int | None]:
    got: list[int | None] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in subscription:
            assert event.pub_seq is not None
            assert event.ts_ns is not None
            assert event.payload == b"%d" % event.pub_seq
            got.append(event.pub_seq)
            if len(got) == count:
                break
    return got


async def test_events_of_the_log_come_first_and_live_events_follow(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        await publish(publisher, 0, 500)
        async with subscriber.subscribe(LIDAR, since=100) as subscription:
            assert await numbers(subscription, 400) == list(range(100, 500))
            for n in range(500, 520):
                await publisher.publisher(LIDAR).publish(b"%d" % n)
            await publish(publisher, 520, 600)
            assert await numbers(subscription, 100) == list(range(500, 600))
            assert publisher.roster.members(LIDAR) == []  # no second subscription
        await until(lambda: not len(publisher.live.engine.history))


async def test_publishing_while_a_reader_joins_neither_loses_nor_repeats(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        done = False

        async def keep_publishing() -> None:
            first = 0
            while not done:
                await publish(publisher, first, first + 37)
                first += 37
                await asyncio.sleep(0)

        busy = asyncio.ensure_future(keep_publishing())
        for since in (0, 5, 1000):
            async with subscriber.subscribe(LIDAR, since=since) as subscription:
                assert await numbers(subscription, 3000) == list(range(since, since + 3000))
        done = True
        await busy


async def test_the_number_of_a_live_event_is_its_sequence_in_the_log(tmp_path: Path) -> None:
    async with pair(tmp_path, reliable=True) as (publisher, subscriber):
        await publish(publisher, 0, 7)
        await until(lambda: publisher.peers and publisher.peers[0].profile)
        async with subscriber.subscribe(LIDAR) as subscription:
            await publish(publisher, 7, 10)
            batch = await subscription.next_batch()
            assert batch is not None
            assert (batch.pub_seq, batch.payloads(), batch.reading) == (7, numbered(7, 10), None)
        log = publisher.logs.published.open(LIDAR)
        assert [(event.seq, event.pub_seq) for event in log.read_range(0, 10)] == [(n, n) for n in range(10)]


async def test_numbers_continue_over_restarts(tmp_path: Path) -> None:
    for start in (0, 50):
        async with pair(tmp_path) as (publisher, subscriber):
            await publish(publisher, start, start + 50)
            async with subscriber.subscribe(LIDAR, since=0) as subscription:
                assert await numbers(subscription, start + 50) == list(range(start + 50))


async def test_a_channel_below_a_prefix_is_served_before_its_next_publish(tmp_path: Path) -> None:
    below = {"name": None, "prefix": "sensors/"}
    async with pair(tmp_path, **below) as (publisher, _):
        await publish(publisher, 0, 5)
    async with pair(tmp_path, **below) as (_, subscriber):
        async with subscriber.subscribe(LIDAR, since=0) as subscription:
            assert await numbers(subscription, 5) == [0, 1, 2, 3, 4]
        with pytest.raises(ChannelError, match="does not log it"):
            await subscriber.subscribe("sensors/never-published", since=0).__aenter__()
    assert len(list((tmp_path / "published").iterdir())) == 1  # asking made nothing


async def test_an_expired_start_is_an_error_with_the_first_available(tmp_path: Path) -> None:
    async with pair(tmp_path, log_retain_events=100) as (publisher, subscriber):
        log = publisher.logs.published.open(LIDAR, publisher.config.channels[0].log_config())
        for first in range(0, 500, 100):
            await publish(publisher, first, first + 100)
            log.seal()
        log.expire()
        assert log.first_seq == 400
        with pytest.raises(LogError, match="use since=400") as caught:
            await subscriber.subscribe(LIDAR, since=399).__aenter__()
        assert (caught.value.fault, caught.value.first_available) == (LogFault.RANGE_GONE, 400)
        async with subscriber.subscribe(LIDAR, since=400) as subscription:
            assert await numbers(subscription, 100) == list(range(400, 500))
            assert subscription.stats.missed == 0
        async with subscriber.subscribe(LIDAR, since=FIRST) as subscription:
            assert await numbers(subscription, 100) == list(range(400, 500))
            assert subscription.stats.missed == 400
        notices = subscriber.notices()
        async with asyncio.timeout(PATIENCE_S):
            gaps = [notice async for notice in _first_gap(notices)]
        assert (gaps[0].expected, gaps[0].first_available) == (0, 400)


async def _first_gap(notices: AsyncIterator[Any]) -> AsyncIterator[HistoryGap]:
    async for notice in notices:
        if isinstance(notice, HistoryGap):
            yield notice
            return


async def test_a_history_that_cannot_be_read_fails_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, subscriber):
        cases: list[tuple[str, dict[str, Any], str]] = [
            ("not/logged", {}, "does not log it"),
            ("sensors/", {}, "is a prefix"),
            (LIDAR, {"queue_group": "workers"}, "cannot be combined"),
            (LIDAR, {"since": -1}, "must be a publish number"),
            (LIDAR, {"since": "last"}, "must be a publish number"),
            (LIDAR, {"since": True}, "must be a publish number"),
        ]
        for topic, options, problem in cases:
            with pytest.raises((ChannelError, LocalProtocolError), match=problem):
                await subscriber.subscribe(topic, **{"since": 0, **options}).__aenter__()
        assert not len(subscriber.live.engine.replays)
        async with Node.open(**QUICK) as other:
            await subscriber.connect(other.address, public_key=other.public_key)
            with pytest.raises(LocalProtocolError, match="there are 2 peers"):
                await subscriber.subscribe(LIDAR, since=0).__aenter__()
            with pytest.raises(ChannelError) as caught:
                await subscriber.subscribe(LIDAR, since=0, publisher=other.node_id).__aenter__()
            assert caught.value.fault is ChannelFault.UNKNOWN
        with pytest.raises(PeerError, match="connect to it first"):
            await subscriber.subscribe(LIDAR, since=0, publisher=12345).__aenter__()


async def test_a_plain_peer_cannot_serve_history(tmp_path: Path) -> None:
    channel = {"log_dir": tmp_path, "channels": [LOGGED]}
    async with (
        Node.open(**{**QUICK, **channel}, profile=False) as plain,
        Node.open(**QUICK, session_timeout_s=60) as subscriber,
    ):
        await subscriber.connect(plain.address, public_key=plain.public_key)
        with pytest.raises(PeerError, match="cannot serve history"):
            await subscriber.subscribe(LIDAR, since=0).__aenter__()


async def test_a_publisher_that_never_answers_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        await until(lambda: subscriber.peers and subscriber.peers[0].profile)
        monkeypatch.setattr(HistoryReader, "_timeout_s", 0.2)
        monkeypatch.setattr(publisher.live.engine.history, "receive", lambda *_: None)
        with pytest.raises(Timeout):
            await subscriber.subscribe(LIDAR, since=0).__aenter__()
        assert not len(subscriber.live.engine.replays)


async def test_reading_history_needs_the_permissions_of_the_channel(tmp_path: Path) -> None:
    async with pair(tmp_path, require_token=True) as (publisher, subscriber):
        with pytest.raises(ChannelError, match="unauthorized") as caught:
            await subscriber.subscribe(LIDAR, since=0).__aenter__()
        assert caught.value.reason == "unauthorized"
        assert len(publisher.live.engine.history) == 0


async def test_losing_the_permission_ends_the_subscription_with_a_reason(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        await publish(publisher, 0, 3)
        async with subscriber.subscribe(LIDAR, since=0) as subscription:
            assert await take(subscription, 3) == numbered(0, 3)
            closed = (
                Node.open(channels=[{"name": LIDAR, "require_token": True}], **QUICK)
                .config.own_policy()
                .channel_registry()
            )
            publisher.set_channel_configs(closed)
            with pytest.raises(ChannelError, match="unauthorized"):
                await asyncio.wait_for(subscription.next_batch(), PATIENCE_S)


async def test_a_slow_reader_is_waited_for_and_loses_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        events = [bytes(1000)] * 20_000
        await publisher.publisher(LIDAR).publish_batch(events)
        async with subscriber.subscribe(LIDAR, since=0, max_events=100) as subscription:
            await until(lambda: subscription.stats.pending >= 100)
            await asyncio.sleep(0.3)
            assert subscription.stats.pending < 10_000  # the rest waits in the log, not in memory
            assert len(await take(subscription, 20_000)) == 20_000
            assert subscription.stats.dropped == 0


async def test_events_of_all_sizes_come_back(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        events = [bytes([n % 251]) * (n * 37 % 8105) for n in range(600)]
        await publisher.publisher(LIDAR).publish_batch(events)
        async with subscriber.subscribe(LIDAR, since=0) as subscription:
            assert await take(subscription, 600) == events


async def test_reading_continues_after_the_publisher_restarts(tmp_path: Path) -> None:
    who = Identity.generate(lambda size: bytes([7]) * size)
    secret = tmp_path / "identity.toml"
    settings = {**QUICK, "ephemeral": False, "identity": secret, "log_dir": tmp_path / "logs", "channels": [LOGGED]}
    assert who.node_id
    async with Node.open(**QUICK) as subscriber:
        async with Node.open(**settings) as publisher:
            await publish(publisher, 0, 20)
            await subscriber.connect(publisher.address, public_key=publisher.public_key)
            subscription = await subscriber.subscribe(LIDAR, since=0).__aenter__()
            assert await numbers(subscription, 20) == list(range(20))
        async with Node.open(**settings) as publisher:
            await publish(publisher, 20, 30)
            await subscriber.connect(publisher.address, public_key=publisher.public_key)
            assert await numbers(subscription, 10) == list(range(20, 30))
            await subscription.close()


async def test_closing_the_node_ends_the_subscription(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        await publish(publisher, 0, 3)
        subscription = await subscriber.subscribe(LIDAR, since=0).__aenter__()
        await subscriber.close()
        assert [batch async for batch in subscription.batches()] or subscription.stats.received in {0, 3}


def test_the_blocking_twin_reads_history_too(tmp_path: Path) -> None:
    settings = {**QUICK, "log_dir": tmp_path, "channels": [LOGGED]}
    with meshbus.sync.Node.open(**settings) as publisher, meshbus.sync.Node.open(**QUICK) as subscriber:
        publisher.publisher(LIDAR).publish_batch([b"0", b"1"])
        subscriber.connect(publisher.address, public_key=publisher.public_key)
        with subscriber.subscribe(LIDAR, since=0) as subscription:
            batch = subscription.next_batch(timeout_s=5)
            assert batch is not None
            assert [event.pub_seq for event in batch] == [0, 1]
        assert publisher.logs.published.open(LIDAR).next_seq == 2


def test_the_retention_error_is_that_of_the_log() -> None:
    config = Node.open(
        log_dir="logs",
        channels=[{**LOGGED, "log_retain_s": 60, "log_retain_bytes": 1 << 20, "log_retain_events": 10}],
        **QUICK,
    ).config
    assert config.channels[0].log_config().retention == Retention(60, 1 << 20, 10)


async def test_a_replicated_channel_is_read_at_any_member_and_goes_on_at_another(tmp_path: Path) -> None:
    async with replica_trio(tmp_path) as trio:
        guest = await trio.start("guest")
        await until(lambda: len(guest.peers) == 3)
        publisher = trio.nodes[await trio.led()].publisher(REPLICATED)
        await publisher.publish_batch([str(number) for number in range(50)])
        async with guest.subscribe(REPLICATED, since=0) as subscription:
            events = aiter(subscription)
            got = [(await anext(events)).payload for _ in range(50)]
            reading = next(iter(guest._opened.reader._subscriptions))
            place = guest.live.engine.replays.place_of(reading)
            assert place is not None
            await trio.stop(next(name for name in NAMES if trio.nodes[name].node_id == place[0]))
            await guest.publisher(REPLICATED, wait_s=60).publish_batch([str(number) for number in range(50, 80)])
            got += [(await anext(events)).payload for _ in range(30)]
            assert got == [str(number).encode() for number in range(80)]
            moved = guest.live.engine.replays.place_of(reading)
            assert moved is not None
            assert moved[0] != place[0]
