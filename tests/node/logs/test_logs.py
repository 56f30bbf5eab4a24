"""What a node logs: append precedes fan-out, in order and under the policy, and failures are errors, not losses."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbus.config.node import ChannelEntry, Logged, NodeConfig
from meshbus.engine.base.batch import EventBatch, EventColumns, Stamp
from meshbus.engine.base.counters import Counters
from meshbus.engine.channels.publication import HOP_TTL
from meshbus.errors import AuthError, ConfigError, LocalProtocolError, LogError, LogFault
from meshbus.log.files import Files
from meshbus.log.folder import folder_of
from meshbus.log.log import RedexFile
from meshbus.log.payload import Codec
from meshbus.log.positions import read_marks, replicated_log_id
from meshbus.log.reader import LogReader
from meshbus.log.replicated import ReplicatedLog
from meshbus.log.schemas import Version, read_versions
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.logs import logs
from meshbus.node.logs.logs import Logs, log_bounds
from meshbus.node.node import Node
from meshbus.wire.frames import columns_of
from tests.node.channels.test_historyreader import LIDAR, LOGGED, numbered, pair, publish
from tests.node.test_node import QUICK, take, until
from tests.patience import PATIENCE_S

EVERY = {"log_fsync": "every 1"}
LARGE = bytes(1000)


def file_of(node: Node) -> RedexFile:
    log = node.logs.of_published(ChannelName(LIDAR))
    assert log is not None
    return log.file


class Gate:
    """Holds every fsync back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waiting, self.broken = threading.Event(), threading.Event(), False
        real = Files.fsync

        def fsync(files: Files, handle: int) -> None:
            self.waiting.set()
            self.open.wait(10)
            if self.broken:
                raise OSError(errno.EIO, "the disk is gone")
            real(files, handle)

        monkeypatch.setattr(Files, "fsync", fsync)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.waiting.wait, 5)


def schema_logs(tmp_path: Path, **given: Any) -> Logs:
    entry = ChannelEntry(prefix="", log=Logged.BOTH, **given)
    return Logs(NodeConfig(log_dir=tmp_path, channels=(entry,)), Identity.generate(os.urandom), Counters())


def test_a_schema_is_stored_with_the_first_event_that_it_is_valid_for(tmp_path: Path) -> None:
    folder = LogReader(tmp_path / "published", LIDAR).folder
    for given in (
        {"log_codec": Codec.JSON, "log_schema": "n INT"},
        {"log_codec": Codec.JSON, "log_schema": "n INT"},
        {},
    ):
        kept = schema_logs(tmp_path, **given)
        log = kept.of_published(ChannelName(LIDAR))
        assert log is not None
        log.file.append(b'{"n":1}')
        kept.close()
        # The same again, or nothing, changes nothing.
        assert read_versions(folder) == (Version(0, Codec.JSON, "n INT"),)
    later = schema_logs(tmp_path, log_codec=Codec.UTF8)
    later.of_published(ChannelName(LIDAR))
    later.open_configured()
    later.close()
    assert read_versions(folder) == (Version(0, Codec.JSON, "n INT"), Version(3, Codec.UTF8))


def test_a_schema_that_cannot_be_stored_does_not_stop_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = LogReader(tmp_path / "published", LIDAR).folder
    folder.mkdir(parents=True)
    (folder / "_schemas.json").write_bytes(b"{")
    kept = schema_logs(tmp_path, log_codec=Codec.UTF8)
    log = kept.of_published(ChannelName(LIDAR))
    assert log is not None
    log.file.append(b"x")
    kept.close()
    assert f"the schema of {LIDAR} is not stored" in caplog.text


# ── published ───────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_sent_before_it_is_as_durable_as_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair(tmp_path, **EVERY) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as live,
        subscriber.subscribe(LIDAR, since=0) as replay,
    ):
        gate = Gate(monkeypatch)
        publishing = asyncio.ensure_future(publish(publisher, 0, 3))
        await gate.reached()
        await asyncio.sleep(0.1)
        assert file_of(publisher).next_seq == 3
        assert live.stats.received == replay.stats.received == 0  # appended, and nobody has it yet
        gate.open.set()
        await publishing
        assert await take(live, 3) == numbered(0, 3)
        assert await take(replay, 3) == numbered(0, 3)
        assert file_of(publisher).durable_seq == 3


async def test_publishes_that_wait_together_share_a_sync_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair(tmp_path, **EVERY, reliable=True) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as subscription,
    ):
        before = file_of(publisher).stats.syncs
        gate = Gate(monkeypatch)
        lidar = publisher.publisher(LIDAR)
        tasks = [asyncio.ensure_future(lidar.publish(event)) for event in numbered(0, 200)]
        await gate.reached()
        gate.open.set()
        reports = await asyncio.gather(*tasks)
        assert {report.delivered for report in reports} == {1}
        assert await take(subscription, 200) == numbered(0, 200)
        assert file_of(publisher).stats.syncs - before < 20
    assert file_of_closed(tmp_path) == numbered(0, 200)


def file_of_closed(folder: Path) -> list[bytes]:
    from meshbus.log.log import Redex

    with Redex(folder / "published") as redex:
        log = redex.open(LIDAR)
        return [event.payload for event in log.read_range(0, log.next_seq)]


async def test_a_publish_without_sync_stays_behind_earlier_ones_that_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair(tmp_path, log_fsync="every 3", reliable=True) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as subscription,
    ):
        gate = Gate(monkeypatch)
        first = asyncio.ensure_future(publish(publisher, 0, 3))
        await gate.reached()
        second = asyncio.ensure_future(publish(publisher, 3, 4))
        await asyncio.sleep(0.05)
        assert not second.done()
        gate.open.set()
        await asyncio.gather(first, second)
        assert await take(subscription, 4) == numbered(0, 4)
        await publish(publisher, 4, 5)  # nobody waits now
        assert await take(subscription, 1) == numbered(4, 5)


async def test_a_canceled_publish_is_published_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, **EVERY) as (publisher, subscriber), subscriber.subscribe(LIDAR) as subscription:
        gate = Gate(monkeypatch)
        publishing = asyncio.ensure_future(publish(publisher, 0, 1))
        await gate.reached()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        gate.open.set()
        assert await take(subscription, 1) == numbered(0, 1)


async def test_closing_waits_for_publishes_that_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, **EVERY) as (publisher, _):
        gate = Gate(monkeypatch)
        publishing = asyncio.ensure_future(publish(publisher, 0, 5))
        await gate.reached()
        closing = asyncio.ensure_future(publisher.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        gate.open.set()
        await asyncio.gather(publishing, closing)
    assert file_of_closed(tmp_path) == numbered(0, 5)


class Held:
    """Holds back large appends of a log until it is opened, and records the threads of all appends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.open, self.waiting, self.threads = threading.Event(), threading.Event(), list[bool]()
        real = RedexFile.write_batch

        def write_batch(file: RedexFile, events: Any, **columns: Any) -> range:
            if file.channel != LIDAR:  # the census of the node
                return real(file, events, **columns)
            self.threads.append(threading.current_thread() is threading.main_thread())
            if len(events[1]) >= logs.ASIDE_BYTES:
                self.waiting.set()
                assert self.open.wait(PATIENCE_S)
                if fails:
                    raise LogError(LogFault.NO_SPACE, "no space left")
            return real(file, events, **columns)

        monkeypatch.setattr(logs, "ASIDE_BYTES", len(LARGE))
        monkeypatch.setattr(RedexFile, "write_batch", write_batch)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.waiting.wait, PATIENCE_S)


async def test_a_large_event_is_appended_beside_the_loop_and_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, reliable=True) as (publisher, subscriber), subscriber.subscribe(LIDAR) as subscription:
        held, channel = Held(monkeypatch), publisher.publisher(LIDAR)
        await channel.publish(b"before")
        large = asyncio.ensure_future(channel.publish(LARGE))
        await held.reached()
        small = [asyncio.ensure_future(channel.publish(b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        assert not large.done()
        assert not any(one.done() for one in small)
        large.cancel()  # it is published nevertheless
        held.open.set()
        assert [(await one).log_seq for one in small] == [2, 3, 4]
        await channel.publish(b"after")
        expected = [b"before", LARGE, b"0", b"1", b"2", b"after"]
        assert await take(subscription, len(expected)) == expected
        assert held.threads == [True, False, False, False, False, True]
        log = file_of(publisher)
        assert [event.payload for event in log.read_range(0, log.next_seq)] == expected


async def test_a_large_event_that_cannot_be_appended_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, reliable=True) as (publisher, subscriber), subscriber.subscribe(LIDAR) as subscription:
        held, channel = Held(monkeypatch, fails=True), publisher.publisher(LIDAR)
        large = asyncio.ensure_future(channel.publish(LARGE))
        await held.reached()
        small = asyncio.ensure_future(channel.publish(b"small"))
        held.open.set()
        with pytest.raises(LogError, match="no space left"):
            await large
        assert (await small).log_seq == 0
        assert await take(subscription, 1) == [b"small"]
        assert publisher.counters["fail"]["log_published"] == 1


async def test_a_full_disk_is_an_error_and_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        pair(tmp_path) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as live,
        subscriber.subscribe(LIDAR, since=0) as replay,
    ):
        await publish(publisher, 0, 2)
        with monkeypatch.context() as full:
            full.setattr(Files, "write_some", _no_space)
            for _ in range(2):
                with pytest.raises(LogError) as caught:
                    await publish(publisher, 2, 5)
                assert caught.value.fault is LogFault.NO_SPACE
        assert publisher.counters["fail"]["log_published"] == 6
        await publish(publisher, 2, 3)  # no number was used up
        assert await take(live, 3) == numbered(0, 3)
        assert await take(replay, 3) == numbered(0, 3)


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no space left")


async def test_a_sync_that_fails_is_an_error_and_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair(tmp_path, **EVERY) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as live,
        subscriber.subscribe(LIDAR, since=0) as replay,
    ):
        gate = Gate(monkeypatch)
        gate.broken = True
        gate.open.set()
        for _ in range(2):
            with pytest.raises(LogError, match="the disk is gone"):
                await publish(publisher, 0, 3)
        await asyncio.sleep(0.1)
        assert live.stats.received == replay.stats.received == 0
        assert publisher.counters["fail"]["log_published"] == 6


async def test_a_disk_that_failed_and_works_again_needs_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "REOPEN_S", 0.0)
    gate = Gate(monkeypatch)
    gate.open.set()
    async with (
        pair(tmp_path, **EVERY) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as live,
    ):
        await publish(publisher, 0, 3)
        assert await take(live, 3) == numbered(0, 3)
        gate.broken = True
        for _ in range(2):
            with pytest.raises(LogError, match="the disk is gone"):
                await publish(publisher, 3, 6)
        gate.broken = False
        await publish(publisher, 6, 9)
        assert await take(live, 3) == numbered(6, 9)
        file = file_of(publisher)
        assert not file.failed
        assert file.verify() == []
        stored = [event.payload for event in file.read_range(0, file.next_seq)]
        assert stored[:3] == numbered(0, 3)
        assert stored[-3:] == numbered(6, 9)


def test_a_received_log_whose_disk_failed_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "REOPEN_S", 0.0)
    kept = schema_logs(tmp_path)
    kept._open_received(ChannelName(LIDAR))
    log = kept._received[ChannelName(LIDAR)]
    assert log is not None
    failed = log.file
    with monkeypatch.context() as broken:
        broken.setattr(Files, "fsync", _no_space)
        failed.append(b"one")
        with pytest.raises(LogError):
            failed.sync()
        assert log.failed
        kept._rest_failed(ChannelName(LIDAR), log)
    assert failed.closed
    assert kept._use(ChannelName(LIDAR), log)
    assert not log.file.failed
    log.file.append(b"two")
    assert [event.payload for event in log.file.read_range(0, 2)] == [b"one", b"two"]
    kept.close()


@pytest.mark.parametrize(
    ("policy", "events", "error"),
    [
        ({"publish_caps": {"require_tags": ["gpu"]}}, numbered(0, 1), AuthError),
        ({"max_event_bytes": 9000}, [bytes(9001)], LocalProtocolError),
    ],
)
async def test_refused_events_are_not_logged(
    tmp_path: Path, policy: dict[str, Any], events: list[bytes], error: type[Exception]
) -> None:
    async with pair(tmp_path, **policy) as (publisher, _):
        with pytest.raises(error):
            await publisher.publisher(LIDAR).publish_batch(events)
        assert file_of(publisher).next_seq == 0


async def test_a_subscriber_that_loses_its_permission_during_a_sync_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, **EVERY) as (publisher, subscriber), subscriber.subscribe(LIDAR) as subscription:
        gate = Gate(monkeypatch)
        publishing = asyncio.ensure_future(publisher.publisher(LIDAR).publish(b"secret"))
        await gate.reached()
        closed = (
            Node.open(channels=[{"name": LIDAR, "require_token": True}], **QUICK).config.own_policy().channel_registry()
        )
        publisher.set_channel_configs(closed)
        gate.open.set()
        report = await publishing
        assert report.attempted == 0
        assert [node_id for node_id, _ in report.filtered] == [subscriber.node_id]
        await asyncio.sleep(0.1)
        assert subscription.stats.received == 0


async def test_an_empty_publish_is_allowed(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, _):
        assert (await publisher.publisher(LIDAR).publish_batch([])).all_delivered
        assert file_of(publisher).next_seq == 0


async def test_rows_of_published_events_name_their_publisher(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, _):
        await publish(publisher, 0, 2)
        (batch,) = file_of(publisher).read_batches(columns=["origin", "pub_seq", "recorder", "session_id", "ttl"])
        rows = batch.to_pylist()
    signed = np.array([publisher.identity.origin_hash, publisher.node_id], np.uint64).view(np.int64).tolist()
    assert [(row["origin"], row["recorder"]) for row in rows] == [tuple(signed)] * 2
    assert [(row["pub_seq"], row["session_id"], row["ttl"]) for row in rows] == [(0, None, HOP_TTL), (1, None, HOP_TTL)]


def as_signed(number: int) -> int:
    """Return a number of 64 bits as a table holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number


# ── received ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reliable", [False, True])
async def test_received_events_keep_their_sequence_on_the_wire(tmp_path: Path, reliable: bool) -> None:
    received: dict[str, Any] = {"log_dir": tmp_path, "channels": [{"prefix": "sensors/", "log": "received"}]}
    async with Node.open(subnet="3.7", **QUICK) as publisher, Node.open(**received, subnet="5", **QUICK) as recorder:
        await recorder.connect(publisher.address, public_key=publisher.public_key)
        await until(
            lambda: recorder.peers and recorder.peers[0].profile and publisher.peers and publisher.peers[0].profile
        )
        async with recorder.subscribe(LIDAR) as subscription:
            lidar = publisher.publisher(LIDAR, reliable=reliable)
            before_ns = time.time_ns()
            await lidar.publish_batch([b"x" * 3000] * 5)
            await lidar.publish(b"single")
            after_ns = time.time_ns()
            assert len(await take(subscription, 6)) == 6
        session = recorder.peers[0].session_id
        log = recorder.logs.received.open(LIDAR, recorder.config.channels[0].log_config())
        rows = [row for batch in log.read_batches() for row in batch.to_pylist()]
    assert [row["payload"] for row in rows] == [b"x" * 3000] * 5 + [b"single"]
    assert [row["event_index"] for row in rows] == [0, 1, 0, 1, 0, 0]
    starts = [row["packet_seq"] for row in rows]
    assert [seq - starts[0] for seq in starts] == [0, 0, 1, 1, 2, 3]
    assert {row["session_id"] for row in rows} == {as_signed(session)}
    assert {row["stream_id"] for row in rows} == {as_signed(ChannelName(LIDAR).stream_id)}
    assert {row["origin"] for row in rows} == {as_signed(publisher.identity.origin_hash)}
    assert {row["recorder"] for row in rows} == {as_signed(recorder.node_id)}
    assert {(row["src"], row["dst"], row["ttl"], row["hops"], row["flags"]) for row in rows} == {
        (
            int(np.int64(publisher.config.subnet).astype(np.int32)),
            int(recorder.config.subnet),
            HOP_TTL,
            0,
            int(reliable),
        )
    }
    numbers = [row["pub_seq"] for row in rows]
    assert numbers == [None] * 6 if not reliable else numbers == list(range(numbers[0], numbers[0] + 6))
    # The publisher's time, which packets carry in units of 1024 ns, and not that of receipt.
    assert all(before_ns - 1024 <= row["ts_ns"] <= after_ns for row in rows)
    assert all(row["recv_ts_ns"] >= before_ns for row in rows)


async def test_a_received_event_whose_time_is_unknown_is_logged_with_null(tmp_path: Path) -> None:
    received: dict[str, Any] = {"log_dir": tmp_path, "channels": [{"name": LIDAR, "log": "received"}]}
    async with Node.open(profile=False, **QUICK) as publisher, Node.open(**received, **QUICK) as recorder:
        await recorder.connect(publisher.address, public_key=publisher.public_key)
        async with recorder.subscribe(LIDAR) as subscription:
            await publisher.publisher(LIDAR).publish_batch(numbered(0, 3))
            assert await take(subscription, 3) == numbered(0, 3)
        log = recorder.logs.received.open(LIDAR, recorder.config.channels[0].log_config())
        rows = [row for batch in log.read_batches() for row in batch.to_pylist()]
        assert [event.ts_ns for event in log.read_range(0, 3)] == [None] * 3
        log.seal()
        assert [event.ts_ns for event in log.read_range(0, 3)] == [None] * 3
    assert [(row["ts"], row["ts_ns"]) for row in rows] == [(None, None)] * 3
    assert all(row["recv_ts"] is not None and row["recv_ts_ns"] for row in rows)


async def test_a_recorder_that_reads_history_has_the_publishers_numbers_and_times(tmp_path: Path) -> None:
    received = {"log_dir": tmp_path / "r", "channels": [{**LOGGED, "log": "received", "log_fsync": "every 2"}]}
    async with pair(tmp_path / "p") as (publisher, _), Node.open(**{**QUICK, **received}) as recorder:
        await publish(publisher, 0, 100)
        await recorder.connect(publisher.address, public_key=publisher.public_key)
        async with recorder.subscribe(LIDAR, since=10) as subscription:
            assert len(await take(subscription, 90)) == 90
        log = recorder.logs.received.open(LIDAR, recorder.config.channels[0].log_config())
        times = [event.ts_ns for event in file_of(publisher).read_range(10, 100)]
        events = list(log.read_range(0, 90))
        await until(lambda: log.durable_seq == 90)
    assert [(event.pub_seq, event.ts_ns) for event in events] == list(zip(range(10, 100), times, strict=True))
    assert {event.origin for event in events} == {publisher.identity.origin_hash}


@pytest.mark.parametrize("arrow", [True, False])
async def test_a_log_holds_an_event_once_however_often_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    monkeypatch.setattr(logs, "has_arrow", lambda: arrow)
    received = {"log_dir": tmp_path / "r", "channels": [{**LOGGED, "log": "received"}]}

    def logged(recorder: Node) -> list[bytes]:
        log = recorder.logs.received.open(LIDAR, recorder.config.channels[0].log_config())
        return [event.payload for event in log.read_range(0, 1000)]

    async with pair(tmp_path / "p") as (publisher, _):
        await publish(publisher, 0, 20)
        for restart in range(2):
            async with Node.open(**{**QUICK, **received}) as recorder:
                await recorder.connect(publisher.address, public_key=publisher.public_key)
                await until(lambda node=recorder: node.peers and node.peers[0].profile)  # type: ignore[misc]
                for since in (10, 0, 5):
                    async with recorder.subscribe(LIDAR, since=since) as subscription:
                        assert len(await take(subscription, 20 - since)) == 20 - since
                assert logged(recorder) == [*numbered(10, 20), *numbered(0, 10)], restart
        async with Node.open(**{**QUICK, **received}) as recorder:
            await recorder.connect(publisher.address, public_key=publisher.public_key)
            await until(
                lambda: recorder.peers and recorder.peers[0].profile and publisher.peers and publisher.peers[-1].profile
            )
            async with recorder.subscribe(LIDAR) as live, recorder.subscribe(LIDAR, since=0) as reading:
                await publisher.publisher(LIDAR, reliable=True).publish_batch(numbered(20, 30))
                assert len(await take(reading, 30)) == 30
                assert len(await take(live, 10)) == 10
            assert logged(recorder)[20:] == numbered(20, 30)


async def test_published_and_received_events_have_separate_logs(tmp_path: Path) -> None:
    both = {**LOGGED, "log": "both"}
    async with Node.open(log_dir=tmp_path, channels=[both], **QUICK) as left, Node.open(**QUICK) as right:
        await left.connect(right.address, public_key=right.public_key)
        async with left.subscribe(LIDAR) as subscription:
            await right.publisher(LIDAR).publish(b"theirs")
            assert await take(subscription, 1) == [b"theirs"]
        await left.publisher(LIDAR).publish(b"ours")
        config = left.config.channels[0].log_config()
        for redex, expected in ((left.logs.published, b"ours"), (left.logs.received, b"theirs")):
            assert [event.payload for event in redex.open(LIDAR, config).read_range(0, 9)] == [expected]


async def test_received_events_that_cannot_be_logged_are_delivered_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = {"log_dir": tmp_path, "channels": [{**LOGGED, "log": "received"}]}
    async with Node.open(**QUICK) as publisher, Node.open(**{**QUICK, **received}) as recorder:
        await recorder.connect(publisher.address, public_key=publisher.public_key)
        async with recorder.subscribe(LIDAR) as subscription:
            monkeypatch.setattr(Files, "write_some", _no_space)
            await publisher.publisher(LIDAR).publish_batch(numbered(0, 5))
            assert await take(subscription, 5) == numbered(0, 5)
            assert recorder.counters["fail"]["log_received"] == 5


async def test_a_node_does_not_start_if_a_log_cannot_be_opened(tmp_path: Path) -> None:
    async with Node.open(log_dir=tmp_path, channels=[LOGGED], **QUICK):
        second = Node.open(log_dir=tmp_path, channels=[LOGGED], **QUICK)
        with pytest.raises(LogError) as caught:
            await second.start()
        assert caught.value.fault is LogFault.LOCKED
    async with Node.open(log_dir=tmp_path, channels=[LOGGED], **QUICK) as third:  # nothing is held any more
        assert third.logs.published.path.exists()


async def test_a_prefix_log_that_cannot_be_opened_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "received").write_text("no folder")
    received = {"log_dir": tmp_path, "channels": [{"prefix": "", "log": "received"}]}
    async with Node.open(**QUICK) as publisher, Node.open(**{**QUICK, **received}) as recorder:
        await recorder.connect(publisher.address, public_key=publisher.public_key)
        async with recorder.subscribe(LIDAR) as subscription:
            for n in range(3):
                await publisher.publisher(LIDAR).publish(b"%d" % n)
            assert await take(subscription, 3) == numbered(0, 3)
            assert recorder.counters["fail"] == {"log_open": 1, "log_received": 3}


async def test_asking_a_node_without_logs_for_a_log_is_an_error() -> None:
    async with Node.open(**QUICK) as node:
        with pytest.raises(ConfigError, match="log_dir"):
            _ = node.logs
    with pytest.raises(ConfigError, match="log_dir"):
        Logs(node.config, Identity.generate(bytes), Counters())


async def test_opaque_messages_and_events_without_a_channel_are_not_logged(tmp_path: Path) -> None:
    config = Node.open(log_dir=tmp_path, channels=[{"prefix": "", "log": "both"}], **QUICK).config
    logs = Logs(config, Identity.generate(bytes), Counters())
    offsets, data = columns_of([b"x"])
    nothing: dict[str, Any] = {
        "offsets": offsets,
        "data": data,
        "publisher": 1,
        "session_id": 2,
        "stream_id": 3,
        "packet_seqs": np.zeros(1, np.uint64),
        "packet_events": np.ones(1, np.int64),
        "stamp": Stamp(),
    }
    logs.take(EventColumns(**nothing))
    logs.take(EventColumns(**nothing, channel=ChannelName(LIDAR), subprotocol_id=0x7777))
    assert not (tmp_path / "received").exists()
    logs.take(EventColumns(**nothing, channel=ChannelName(LIDAR)))
    assert (tmp_path / "received").exists()
    logs.close()


def test_every_channel_log_has_a_bound_that_is_logged_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = NodeConfig(
        log_dir=tmp_path,
        channels=(
            ChannelEntry(name=ChannelName("a"), log=Logged.BOTH),
            ChannelEntry(prefix="sensors/", log=Logged.RECEIVED, log_retain_bytes=5 << 20),
            ChannelEntry(name=ChannelName("b")),
        ),
    )
    assert [entry.log_config().retention.max_bytes for entry in config.channels[:2]] == [1 << 30, 5 << 20]
    said = [
        "a: two logs of at most 1024 MiB (log_retain_bytes)",
        "each channel that starts with 'sensors/': one log of at most 5 MiB (log_retain_bytes)",
    ]
    assert log_bounds(config) == said
    with caplog.at_level("INFO", "meshbus.node"):
        kept = Logs(config, Identity.generate(bytes), Counters())
        kept.open_configured()
        kept.close()
    assert caplog.messages == said


def received_batch(channel: str, payload: bytes = b"x") -> EventBatch:
    offsets, data = columns_of([payload])
    return EventColumns(
        offsets=offsets,
        data=data,
        publisher=1,
        session_id=2,
        stream_id=3,
        packet_seqs=np.zeros(1, np.uint64),
        packet_events=np.ones(1, np.int64),
        stamp=Stamp(),
        channel=ChannelName(channel),
    )


def prefix_logs(folder: Path) -> tuple[Logs, Counters]:
    config = Node.open(log_dir=folder, channels=[{"prefix": "", "log": "received"}], **QUICK).config
    counters = Counters()
    return Logs(config, Identity.generate(bytes), counters), counters


def test_a_prefix_of_many_channels_holds_few_files_open_and_logs_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "most_open_logs", lambda: 4)
    kept, counters = prefix_logs(tmp_path)
    open_files = []
    for turn in range(2):
        for number in range(10):
            kept.take(received_batch(f"many/{number}", b"%d" % turn))
            open_files.append(sum("_hot" in link or "_lock" in link for link in open_links(tmp_path)))
    assert max(open_files) <= 2 * 4
    kept.close()
    for number in range(10):
        events = LogReader(tmp_path / "received", f"many/{number}").snapshot().events()
        assert [event.payload for event in events] == [b"0", b"1"]
    assert counters.snapshot().get("fail") is None


def open_links(below: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return [place for place in found if place.startswith(str(below))]


def test_logs_recover_when_files_can_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, counters = prefix_logs(tmp_path)
    kept.take(received_batch("first"))
    real = Files.lock

    def refused(_: Files, path: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Files, "lock", refused)
    kept.take(received_batch("second", b"lost"))
    kept.take(received_batch("second", b"lost too, without another attempt"))
    assert counters.snapshot()["fail"] == {"log_open": 1, "log_received": 2}
    monkeypatch.setattr(Files, "lock", real)
    monkeypatch.setattr(kept, "_closed_until", {})  # a few seconds later
    kept.take(received_batch("second", b"kept"))
    kept.take(received_batch("first", b"kept too"))
    kept.close()
    for channel, expected in {"first": [b"x", b"kept too"], "second": [b"kept"]}.items():
        events = LogReader(tmp_path / "received", channel).snapshot().events()
        assert [event.payload for event in events] == expected


def test_a_log_that_cannot_be_opened_for_want_of_handles_takes_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, counters = prefix_logs(tmp_path)
    real = Files.lock

    def scarce(files: Files, path: Path) -> int:
        if open_links(tmp_path):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(files, path)

    monkeypatch.setattr(Files, "lock", scarce)
    for turn in range(2):
        for channel in ("first", "second"):
            kept.take(received_batch(channel, b"%d" % turn))
    assert counters.snapshot() == {"forget": {"open_logs": 3}}
    kept.close()
    for channel in ("first", "second"):
        events = LogReader(tmp_path / "received", channel).snapshot().events()
        assert [event.payload for event in events] == [b"0", b"1"]


def test_channels_are_known_within_bounds_and_logs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_RECEIVED", 5)
    monkeypatch.setattr(logs, "most_open_logs", lambda: 2)
    kept, counters = prefix_logs(tmp_path)
    for turn in range(2):
        for number in range(20):
            kept.take(received_batch(f"many/{number}", b"%d" % turn))
            assert len(kept._received) <= 5
    kept.close()
    for number in range(20):
        events = LogReader(tmp_path / "received", f"many/{number}").snapshot().events()
        assert [event.payload for event in events] == [b"0", b"1"]
    assert counters.snapshot().get("fail") is None


def test_the_bound_of_open_logs_follows_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {64: 8, 1024: 128, 1 << 20: 4_096, -1: 4_096}
    for limit, expected in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert logs.most_open_logs() == expected


async def test_a_sync_task_that_fails_is_counted_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    channels = [{**LOGGED, "log": "both", **EVERY}]
    config = Node.open(log_dir=tmp_path, channels=channels, **QUICK).config
    counters = Counters()
    kept = Logs(config, Identity.generate(bytes), counters)
    published = kept.of_published(ChannelName(LIDAR))
    assert published is not None
    real = RedexFile.commit

    def bug(_: RedexFile) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RedexFile, "commit", bug)
    offsets, data = columns_of([b"x"])
    with pytest.raises(ZeroDivisionError):
        await published.append(offsets, data, lambda first: first)
    kept.take(received_batch(LIDAR))
    await kept.drain()
    assert counters.snapshot()["fail"] == {"log_published": 1, "task": 2}
    assert caplog.text.count("failed unexpectedly") == 2
    monkeypatch.setattr(RedexFile, "commit", real)
    assert await published.append(offsets, data, lambda first: first) == 1
    kept.take(received_batch(LIDAR))
    await kept.drain()
    (received,) = [log for log in kept._received.values() if log is not None]
    assert (published.file.durable_seq, received.file.durable_seq) == (2, 2)
    kept.close()


def replicated(tmp_path: Path, psk: bytes) -> Logs:
    entry = ChannelEntry(name=ChannelName(LIDAR), replicas=("n0",))
    return Logs(NodeConfig(log_dir=tmp_path, psk=psk, channels=(entry,)), Identity.generate(os.urandom), Counters())


def test_the_id_of_a_replicated_log_follows_from_the_mesh_key(tmp_path: Path) -> None:
    ids = []
    for name, psk in (("a", bytes(32)), ("b", bytes(32)), ("c", b"1" * 32)):
        with replicated(tmp_path / name, psk).open_replicated(ChannelName(LIDAR)) as log:
            ids.append(log.committed.log_id)
        assert [mark.log_id for mark in read_marks(folder_of(tmp_path / name / "published", ChannelName(LIDAR)))] == [
            ids[-1].hex()
        ]
    assert ids[0] == ids[1] != ids[2]


def test_a_replica_that_exists_keeps_its_id_and_is_marked_with_the_present_one(tmp_path: Path) -> None:
    old = b"o" * 16
    with ReplicatedLog.open(tmp_path / "published", LIDAR, old, background=False) as log:
        log.append(1, 0, [b"x"])
        log.sync()
        log.commit_to(1)
        log.keep()
    for psk in (bytes(32), bytes(32), b"1" * 32):  # the mesh key changes
        with replicated(tmp_path, psk).open_replicated(ChannelName(LIDAR)) as log:
            assert log.committed.log_id == old
    marks = read_marks(folder_of(tmp_path / "published", ChannelName(LIDAR)))
    assert [mark.log_id for mark in marks] == [replicated_log_id(psk, LIDAR).hex() for psk in (bytes(32), b"1" * 32)]
