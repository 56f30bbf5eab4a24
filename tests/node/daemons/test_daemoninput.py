"""Inputs of daemons: the own log, another node's, events that are gone, and publishers that come later."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbus import Subscription
from meshbus.names.channel import ChannelName
from meshbus.node.daemons import daemoninput
from meshbus.node.daemons.daemoninput import InputReader
from meshbus.wire.messages.checkpoint import InputPosition
from tests.node.daemons.daemontrio import INPUT, nodes, prepared, publish, until

CHANNEL = ChannelName(INPUT)


def ready(reader: InputReader) -> list[tuple[int, bytes]]:
    return [(first + place, payload) for first, run in reader.ready() for place, payload in enumerate(run)]


def expected(start: int, stop: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(start, stop)]


async def test_both_kinds_of_logs_are_read_from_a_position_on_and_followed(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (first, second):
        await publish(first, 0, 10)

        def subscribe(channel: str, publisher: int | None, since: int) -> Subscription:
            return second.subscribe(channel, publisher=publisher, since=since)

        position = InputPosition(first.node_id, CHANNEL, 4)
        woken = list[int]()
        readers = [
            InputReader(position, first.logs, subscribe, lambda: woken.append(1)),
            InputReader(position, None, subscribe, lambda: woken.append(1)),
        ]
        for reader in readers:
            await until(lambda reader=reader: ready(reader) == expected(4, 10))  # type: ignore[misc]
        await publish(first, 10, 15)
        for reader in readers:
            await until(lambda reader=reader: ready(reader) == expected(4, 15))  # type: ignore[misc]
            reader.taken(7)
            assert ready(reader) == expected(7, 15)
            reader.taken(15)
            assert ready(reader) == []
            await reader.close()
        assert woken


async def test_what_is_kept_ready_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemoninput, "READY_EVENTS", 50)
    monkeypatch.setattr(daemoninput, "PAGE_BYTES", 100)
    async with nodes(tmp_path, 1) as (node,):
        await publish(node, 0, 1_000)
        reader = InputReader(InputPosition(node.node_id, CHANNEL), node.logs, None, lambda: None)  # type: ignore[arg-type]
        read = list[tuple[int, bytes]]()
        while len(read) < 1_000:
            await until(lambda: bool(reader.ready()))
            found = ready(reader)
            assert len(found) < 50 + 100
            read += found
            reader.taken(read[-1][0] + 1)
        assert read == expected(0, 1_000)
        await reader.close()


async def test_a_publisher_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (node,):
        later = prepared(tmp_path, 7)
        reader = InputReader(
            InputPosition(later.node_id, CHANNEL),
            None,
            lambda channel, publisher, since: node.subscribe(channel, publisher=publisher, since=since),
            lambda: None,
        )
        await until(lambda: reader.problem is not None)
        assert "connect to it first" in (reader.problem or "")
        async with later:
            await publish(later, 0, 3)
            await later.connect(node.address, public_key=node.public_key)
            await until(lambda: ready(reader) == expected(0, 3))
            assert reader.problem is None
            await reader.close()


async def test_events_that_are_gone_are_left_out(tmp_path: Path) -> None:
    small = {"name": INPUT, "log": "published", "log_retain_events": 10, "log_seal_bytes": 4096}
    async with nodes(tmp_path, 2, channels=[small]) as (first, second):
        log = first.logs.of_published(CHANNEL)
        assert log is not None
        for start in range(0, 2_000, 500):
            await publish(first, start, start + 500)
            log.file.seal()
        log.file.expire()
        start = log.file.first_seq
        assert start > 0
        for logs in (first.logs, None):
            reader = InputReader(
                InputPosition(first.node_id, CHANNEL),
                logs,
                lambda channel, publisher, since: second.subscribe(channel, publisher=publisher, since=since),
                lambda: None,
            )
            await until(lambda reader=reader: ready(reader) == expected(start, 2_000))  # type: ignore[misc]
            await reader.close()
