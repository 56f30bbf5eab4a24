"""What people publish becomes offsets and data, without copies where it is Arrow; numbered batches are published once."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from meshbus.engine.channels.publish import PublishConfig
from meshbus.errors import ConfigError, LocalProtocolError, PartialDelivery
from meshbus.node.node import Node
from meshbus.node.publisher import ChannelPublisher, PublishOptions, columns_from
from tests.node.test_historyreader import LIDAR, pair
from tests.node.test_node import QUICK, take

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
    ],
)
def test_what_cannot_be_published_is_explained(events: object, problem: str) -> None:
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


async def test_nobody_to_reach_is_no_reason_to_publish_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path) as (publisher, subscriber), subscriber.subscribe(LIDAR):
        lidar = publisher.publisher(LIDAR)

        async def unreached(*_: object) -> object:
            raise PartialDelivery(1, 0, "gone")

        monkeypatch.setattr(ChannelPublisher, "_finish", unreached)
        assert await lidar.publish_once(numbered_rows(0), writer="w", batch=0) == 3
        assert await lidar.publish_once(numbered_rows(0), writer="w", batch=0) == 0


async def test_a_channel_without_a_log_cannot_tell_what_it_has() -> None:
    async with Node.open(**QUICK) as node:
        with pytest.raises(ConfigError, match="is not logged when published"):
            await node.publisher(LIDAR).publish_once(numbered_rows(0), writer="w", batch=0)


def test_the_options_of_a_publisher_are_the_fields_of_its_config() -> None:
    assert list(PublishOptions.__annotations__) == list(PublishConfig.__struct_fields__)
