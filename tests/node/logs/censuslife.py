"""The census of a node on a disk that may fail: whatever happens, in the end the log says what holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from meshbus.config.node import NodeConfig
from meshbus.engine.base.notices import Subscribed
from meshbus.errors import LogError
from meshbus.log.census import Fact, channel_of
from meshbus.log.log import Redex
from meshbus.log.reader import LogReader
from meshbus.names.channel import ChannelName
from meshbus.node.logs import census
from meshbus.node.logs.census import CONFIG, Census, CensusLog
from meshbus.testing.fakenet import FakeNet
from tests.node.test_node import until

CHANNELS = 4


class Life:
    """A census that does everything: it is opened, written, synced and closed, while subscribers come."""

    def __init__(self, root: Path, files: Any) -> None:
        self.files = files
        self._root = root
        self._engine = FakeNet(1).create("node").engine
        self._subscribed = 0
        self._census: Census | None = None
        self._loop = asyncio.new_event_loop()
        self._begin()

    def live(self) -> None:
        """Do everything, with a disk that fails."""
        with patch.object(census, "LOOK_S", 0.001), patch.object(census, "RETRY_S", 0.0):
            self._loop.run_until_complete(self._live())

    def check(self, where: str) -> None:
        """Wait, without a restart, until the log says who subscribes to what; then restart, and look again."""
        self.files.heal()
        with patch.object(census, "LOOK_S", 0.001), patch.object(census, "RETRY_S", 0.0):
            self._loop.run_until_complete(self._check(where))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _begin(self) -> None:
        self._redex = Redex(self._root, recorder=self._engine.node_id, files=self.files, background=False)
        self._log = CensusLog(self._redex, self._engine.node_id)

    def _start(self) -> None:
        try:
            self._log.open()
        except LogError:
            self._engine.counters.add("fail", "census_open")
        self._census = Census(self._engine, NodeConfig.load(env={}, ephemeral=True, psk=bytes(32).hex()), self._log)

    async def _live(self) -> None:
        self._start()
        for _ in range(CHANNELS):
            await self._subscribe()
            self._keep()
        if self._log.works:
            with suppress(LogError):
                self._redex.open(channel_of(self._engine.node_id), CONFIG).seal()

    async def _subscribe(self) -> None:
        assert self._census is not None
        channel = ChannelName(f"sensors/{self._subscribed}")
        self._engine.admission.roster.add(channel, 7)
        self._subscribed += 1
        self._census.take(Subscribed(7, channel))
        await asyncio.sleep(0)

    def _keep(self) -> None:
        if self._log.works:
            file = self._redex.open(channel_of(self._engine.node_id), CONFIG)
            with suppress(LogError):  # of a log that failed: the next fact finds out
                file.sync()
                file.keep()

    async def _check(self, where: str) -> None:
        assert self._census is not None
        for round_ in ("", ", opened again"):
            await self._subscribe()
            await until(lambda: self._told() == self._subscribed)
            await self._census.close()
            assert self._told() == self._subscribed, where + round_
            assert self._engine.counters.get("fail", "task") == 0, where
            if not round_:
                self._begin()
                self._start()

    def _told(self) -> int:
        """Return how many channels have a subscriber, according to the log."""
        try:
            batches = list(
                LogReader(self._root, channel_of(self._engine.node_id)).snapshot().batches(columns=["payload"])
            )
        except LogError:
            return -1  # there is no log yet
        rosters: dict[str, int] = {}
        for fact in (msgspec.json.decode(row["payload"], type=Fact) for one in batches for row in one.to_pylist()):
            if fact.kind == "snapshot":
                rosters.clear()
            elif fact.channel is not None and fact.subscribers is not None:
                rosters[fact.channel] = fact.subscribers
        return sum(rosters.values())
