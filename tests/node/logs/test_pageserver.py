"""Serving pages of a node's logs: bounded, and a disk that fails is not the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshbus.errors import ChannelError, LogError, LogFault
from tests.node.channels.test_historyreader import LIDAR, numbered, pair, publish
from tests.node.test_node import take, until
from tests.patience import PATIENCE_S


async def test_pages_beyond_the_limit_of_waiting_ones_are_refused_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbus.node.logs.pageserver.MAX_WAITING", 0)
    async with pair(tmp_path) as (publisher, subscriber):
        await publish(publisher, 0, 3)
        with pytest.raises(ChannelError, match="busy") as caught:
            await subscriber.subscribe(LIDAR, since=0).__aenter__()
        assert caught.value.reason == "busy"


async def test_a_log_that_cannot_be_read_is_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (publisher, subscriber):
        await publish(publisher, 0, 3)
        log = publisher.logs.of_published(LIDAR)  # type: ignore[arg-type]
        assert log is not None
        real, broken = log.page, True

        def page(next_seq: int, max_bytes: int) -> Any:
            if broken:
                raise LogError(LogFault.CORRUPT, "for now")
            return real(next_seq, max_bytes)

        monkeypatch.setattr(log, "page", page)
        opening = asyncio.ensure_future(subscriber.subscribe(LIDAR, since=0).__aenter__())
        await until(lambda: publisher.counters.get("refuse", {}).get("history_closed"))
        broken = False
        async with asyncio.timeout(PATIENCE_S):
            subscription = await opening  # the reader tried again
        assert await take(subscription, 3) == numbered(0, 3)
        await subscription.close()
