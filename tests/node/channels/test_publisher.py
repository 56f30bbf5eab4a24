"""What people publish becomes offsets and data, without copies where it is Arrow; numbered batches are published once."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from meshbus.engine.channels.publish import PublishConfig
from meshbus.errors import ConfigError, LocalProtocolError, PartialDelivery
from meshbus.node.channels.publisher import ChannelPublisher, PublishOptions, bytes_of, columns_from
from meshbus.node.node import Node
from tests.node.channels.test_historyreader import LIDAR, pair
from tests.node.test_node import QUICK, nodes, take, until

__all__ = ["nodes"]  # a fixture

EVENTS = [b"one", b"", b"three"]


def as_list(columns: Any) -> list[bytes]:
    offsets, data = columns
    return [data[a:b].tobytes() for a, b in pairwise(offsets)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_arrow_columns(kind: pa.DataType) -> None:
    array = pa.array([b"skipped", *EVENTS], pa.binary()).cast(kind)
    assert as_list(columns_from(array.slice(1))) == EVENTS
    _, data = columns_from(array)
    assert data.ctypes.data == array.buffers()[2].address
    assert as_list(columns_from(pa.chunked_array([array.slice(1, 1), array.slice(2)]))) == EVENTS


def test_lists_of_bytes_and_text() -> None:
    assert as_list(columns_from(["one", b"", bytearray(b"three")])) == EVENTS
    assert as_list(columns_from([])) == []
    assert as_list(columns_from(pa.array([], pa.binary()))) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (b"one", "use publish for one event"),
        ("one", "use publish for one event"),
        (7, "takes a list of bytes"),
        (pa.array([b"a", None]), "has 1 nulls"),
        (pa.array([1, 2]), "cast it to binary"),
        ([{"a": 1}], "an event is bytes or text, got dict"),
        ([b"a", 7], "an event is bytes or text, got int"),
    ],
)
def test_the_error_explains_what_can_be_published(events: object, problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        columns_from(events)


# ── publish_once ────────────────────────────────────────────────────────────────────────────


def numbered_rows(batch: int, count: int = 3) -> pa.Table:
    return pa.table({"payload": [b"%d:%d" % (batch, number) for number in range(count)], "ts_ns": range(count)})


async def test_a_batch_that_is_tried_again_is_published_once(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (publisher, subscriber),
        subscriber.subscribe(LIDAR) as live,
        subscriber.subscribe(LIDAR, since=0) as logged,
    ):
        lidar = publisher.publisher(LIDAR)
        tries = [lidar.publish_once(numbered_rows(batch), writer="w", batch=batch) for batch in (0, 1)]
        again = [lidar.publish_once(numbered_rows(1), writer="w", batch=batch) for batch in (1, 0)]
        assert await asyncio.gather(*tries, *again) == [3, 3, 0, 0]
        expected = [b"%d:%d" % (batch, number) for batch in range(2) for number in range(3)]
        for subscription in (live, logged):
            assert await take(subscription, 6) == expected


async def test_a_logged_event_without_subscribers_is_not_published_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (publisher, subscriber), subscriber.subscribe(LIDAR):
        lidar = publisher.publisher(LIDAR)

        async def unreached(*_: object) -> object:
            raise PartialDelivery(1, 0, "gone")

        monkeypatch.setattr(ChannelPublisher, "_finish", unreached)
        assert await lidar.publish_once(numbered_rows(0), writer="w", batch=0) == 3
        assert await lidar.publish_once(numbered_rows(0), writer="w", batch=0) == 0


async def test_publish_once_requires_a_log() -> None:
    async with Node.open(**QUICK) as node:
        with pytest.raises(ConfigError, match="is not logged when published"):
            await node.publisher(LIDAR).publish_once(numbered_rows(0), writer="w", batch=0)


def test_the_options_of_a_publisher_are_the_fields_of_its_config() -> None:
    assert list(PublishOptions.__annotations__) == list(PublishConfig.__struct_fields__)


async def test_a_publish_reports_sent_events_and_a_flush_acknowledged_ones(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    await until(
        lambda: publisher.peers and publisher.peers[0].profile and subscriber.peers and subscriber.peers[0].profile
    )
    async with subscriber.subscribe("sensors/lidar") as subscription:
        best_effort = publisher.publisher("sensors/lidar")
        report = await best_effort.publish(b"1")
        assert (report.sent, report.delivered, report.acknowledged) == (1, 1, None)
        flushed = await best_effort.flush()
        assert (flushed.attempted, flushed.acknowledged) == (0, None), "nobody confirms best-effort events"
        reliable = publisher.publisher("sensors/lidar", reliable=True)
        for _ in range(3):
            report = await reliable.publish_batch([bytes(1000)] * 100)
            assert (report.sent, report.acknowledged) == (1, None)
            flushed = await reliable.flush()
            assert (flushed.attempted, flushed.sent, flushed.acknowledged, flushed.errors) == (1, 1, 1, ())
        assert subscription.stats.received == 301, "acknowledged is received"


async def test_a_flush_names_the_subscribers_that_do_not_acknowledge(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    await until(
        lambda: publisher.peers and publisher.peers[0].profile and subscriber.peers and subscriber.peers[0].profile
    )
    async with subscriber.subscribe("sensors/lidar"):
        reliable = publisher.publisher("sensors/lidar", reliable=True)
        await reliable.publish(b"1")
        assert (await reliable.flush()).acknowledged == 1
        driver = subscriber.live.driver
        for socket in (driver.socket, *driver._lanes):
            asyncio.get_running_loop().remove_reader(socket.fileno())  # it hears nothing any more
        await reliable.publish(b"2")
        flushed = await reliable.flush(timeout_s=0.2)
        assert (flushed.attempted, flushed.acknowledged) == (1, 0)
        assert [(error.node_id, error.code) for error in flushed.errors] == [(subscriber.node_id, "timeout")]


@pytest.mark.parametrize("reliable", [False, True])
async def test_an_event_that_is_too_long_for_a_relay_is_refused_and_loses_nothing_behind_it(reliable: bool) -> None:
    async with AsyncExitStack() as stack:
        relay, left, right = [await stack.enter_async_context(Node.open(**QUICK)) for _ in range(3)]
        for node in (left, right):
            await node.connect(relay.address, public_key=relay.public_key)
        await until(lambda: right.node_id in left.find_nodes())
        assert (await left.connect(public_key=right.public_key)).relayed
        await until(lambda: [peer.profile for peer in right.peers] == [True, True])
        publisher = left.publisher("sensors/lidar", reliable=reliable, on_failure="collect")
        async with right.subscribe("sensors/lidar", publisher=left.node_id) as subscription:
            assert (await publisher.publish(bytes(8086))).sent == 1
            for refused in (await publisher.publish(bytes(8104)), await publisher.publish_batch([b"a", bytes(8087)])):
                assert (refused.attempted, refused.sent) == (1, 0)
                ((node_id, code, message),) = refused.errors
                assert (node_id, code) == (right.node_id, "local_protocol")
                assert "8086" in message
            assert (await publisher.publish(b"behind")).sent == 1
            assert [len(payload) for payload in await take(subscription, 2)] == [8086, 6]
        with pytest.raises(LocalProtocolError, match="relay"):
            left.send(right.node_id, bytes(8104))


@pytest.mark.parametrize("payload", [{"a": 1}, 7, None, [1, 2], 1.5])
async def test_an_event_that_is_neither_bytes_nor_text_is_refused_with_advice(
    nodes: tuple[Node, Node], payload: Any
) -> None:
    first, second = nodes
    kind = type(payload).__name__
    for call in (
        lambda: first.publisher("a").publish(payload),
        lambda: first.publisher("a").publish_batch([payload]),
        lambda: first.request(second.node_id, "a", payload),
    ):
        with pytest.raises(LocalProtocolError, match=f"an event is bytes or text, got {kind}; encode it first"):
            await call()
    with pytest.raises(LocalProtocolError, match=f"got {kind}"):
        first.send(second.node_id, payload)
    assert bytes_of("grüß") == "grüß".encode()
    assert bytes_of(memoryview(b"x")) == bytes_of(bytearray(b"x")) == b"x"


async def test_a_report_has_the_sequence_of_an_event_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        lidar = publisher.publisher(LIDAR)
        assert (await lidar.publish(b"nobody listens")).log_seq == 0
        assert (await lidar.publish_batch([b"a", b"b"])).log_seq == 1
        assert (await publisher.publisher("other").publish(b"x")).log_seq is None
        async with subscriber.subscribe(LIDAR):
            report = await lidar.publish(b"c")
            assert (report.delivered, report.log_seq) == (1, 3)

        async def unreached(*_: object) -> object:
            raise PartialDelivery(1, 0, "gone", report=report)

        monkeypatch.setattr(ChannelPublisher, "_finish", unreached)
        with pytest.raises(PartialDelivery, match="in this node's log, so do not publish them again") as partial:
            await lidar.publish(b"d")
        assert partial.value.report == msgspec.structs.replace(report, log_seq=4)
