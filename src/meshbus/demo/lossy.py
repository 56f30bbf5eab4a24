"""A link of the demo that loses datagrams, and knows what was in them.

Stands between one node and another, as a bad radio would: the node connects to `address`, and everything that it sends is
passed on from another port, except for what is lost. Headers are not encrypted, so the link can count the events that it has
lost, by receiver and channel: without that, nobody could tell what is missing at the end of a stream.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from meshbus.errors import ProtocolError
from meshbus.wire.constants import ROUTE_BYTES, Subprotocol
from meshbus.wire.header import unpack_header
from meshbus.wire.route import unpack_route

Lost = Counter[tuple[int, int]]
"""Events by the node id of their receiver and the wire hash of their channel."""


class LossyLink:
    """One link, used as an async context manager. Loses nothing before `lose`."""

    def __init__(self, target: str, seed: int) -> None:
        self.address = ""
        """Where the node connects instead of the target."""
        self.passed = self.dropped = 0
        """Datagrams, in both directions."""
        self.lost: Lost = Counter()
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._share = 0.0
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._client: tuple[str, int] | None = None
        self._near: asyncio.DatagramTransport | None = None
        self._far: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._near, _ = await loop.create_datagram_endpoint(lambda: _Side(self._outward), local_addr=("127.0.0.1", 0))
        self._far, _ = await loop.create_datagram_endpoint(lambda: _Side(self._inward), remote_addr=self._target)
        host, port = self._near.get_extra_info("sockname")[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for side in (self._near, self._far):
            if side is not None:
                side.close()

    def lose(self, share: float) -> None:
        """Lose this share of all datagrams from now on."""
        self._share = share

    def _outward(self, data: bytes, client: tuple[str, int]) -> None:
        self._client = client
        if self._far is not None and not self._is_lost(data):
            self._far.sendto(data)

    def _inward(self, data: bytes, _: tuple[str, int]) -> None:
        if self._near is not None and self._client is not None and not self._is_lost(data):
            self._near.sendto(data, self._client)

    def _is_lost(self, data: bytes) -> bool:
        lost = self._chance.random() < self._share
        if lost:
            self.dropped += 1
            self._count(data)
        else:
            self.passed += 1
        return lost

    def _count(self, data: bytes) -> None:
        try:
            route, header = unpack_route(data), unpack_header(data[ROUTE_BYTES:])
        except ProtocolError:
            return  # no routed packet: for the target itself, which subscribes to nothing
        if header.subprotocol_id == Subprotocol.EVENTS and header.event_count:
            self.lost[route.dest_id, header.channel_hash] += header.event_count


class _Side(asyncio.DatagramProtocol):
    """Hands on what arrives."""

    def __init__(self, take: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._take = take

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._take(data, addr)
