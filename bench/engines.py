"""Two engines connected by a memory copy: measures the cost of the protocol without sockets, loops and waiting.

Used where end-to-end runs are too coarse: the noise of two processes hides one percent of the cost of a packet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshbus.engine.base.packets import Output, PacketBatch, Train
from meshbus.engine.channels.publish import PublishConfig
from meshbus.engine.core import Engine
from meshbus.engine.settings import EngineSettings, SecureConfig, SecureMode
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy.capability import CapabilitySet

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHANNEL = ChannelName("bench/events")
_ROOM = 4 << 20


class Pair:
    """A publisher and its subscriber."""

    def __init__(self, *, window: int, reliable: bool, secure: bool = False) -> None:
        mode = SecureMode.AUTO if secure else SecureMode.OFF
        self.sender, self.receiver = (_engine(number, window, mode) for number in (1, 2))
        self._config = PublishConfig(reliable=reliable)
        self._buffer = np.empty(_ROOM, np.uint8)
        self.events = 0
        """Number of events delivered so far."""
        out = Output()
        self.sender.connect(self.receiver.node_id, "receiver", self.receiver.public_key, _now(), out)
        self.settle(out, Output())
        out = Output()
        self.receiver.subscribe(self.sender.node_id, CHANNEL, _now(), out)
        self.settle(Output(), out)
        for _ in range(3):  # announcements and profile negotiation need several ticks
            self.settle(self.sender.tick(_now() + 10), self.receiver.tick(_now() + 10))

    def publish(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        """Publish a column and exchange packets until both sides are idle."""
        out = Output()
        self.sender.publish(CHANNEL, offsets, data, self._config, _now(), out)
        self.settle(out, Output())

    def settle(self, from_sender: Output, from_receiver: Output) -> None:
        """Exchange packets until both sides are idle."""
        while from_sender.trains or from_receiver.trains:
            to_sender, to_receiver = from_receiver.trains, from_sender.trains
            from_sender = from_receiver = Output()
            if to_receiver:
                from_receiver = self.receiver.receive(self._carry(to_receiver, "sender"), _now())
                self.events += sum(map(len, from_receiver.events))
            if to_sender:
                from_sender = self.sender.receive(self._carry(to_sender, "receiver"), _now())

    def _carry(self, trains: Sequence[Train], source: str) -> PacketBatch:
        """Copy datagrams into the receiver's buffer, like a socket drain."""
        starts: list[int] = []
        end = 0
        for train in trains:
            size = len(train.data)
            self._buffer[end : end + size] = np.frombuffer(train.data, np.uint8)
            starts += range(end, end + size, train.segment)
            end += size
        edges = np.array([*starts, end], np.int64)
        return PacketBatch(self._buffer[:end], edges[:-1], np.diff(edges), [(source, len(starts))])


def _engine(number: int, window: int, mode: SecureMode) -> Engine:
    engine = Engine(
        Identity.from_seed(bytes([number]) * 32),
        EngineSettings(psk=bytes(32), window=window, loopback=True, secure=SecureConfig(mode=mode)),
        now=_now(),
        wall=lambda _: time.time_ns(),
        entropy=os.urandom,
    )
    engine.announce(CapabilitySet(), _now(), Output())
    return engine


def _now() -> float:
    return time.monotonic()
