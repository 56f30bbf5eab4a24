"""What goes into the engine and what comes out: batches of datagrams, never one object per event.

A driver drains its socket into a `PacketBatch` and sends the `Train`s of an `Output`. Addresses are whatever the
driver's socket calls them, hashable and opaque here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.notices import Control

if TYPE_CHECKING:
    from numpy.typing import NDArray

Address: TypeAlias = Hashable


def place_of(address: Address) -> Address:
    """Give what tells places apart, host and port: a socket of IPv6 adds more to what a user wrote."""
    return address[:2] if isinstance(address, tuple) else address


class PacketBatch(msgspec.Struct, frozen=True):
    """Datagrams as a drain left them: one buffer, the place of each, and runs of packets with one source."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    runs: Sequence[tuple[Address, int]]
    """Source address and how many packets in a row came from it."""
    routed: bool = False
    """Whether each packet lies behind the routing header that it came with."""

    @classmethod
    def of(cls, datagrams: Sequence[tuple[Address, bytes]]) -> PacketBatch:
        """Gather single datagrams; for tests, simulations and slow sockets."""
        lengths = np.array([len(datagram) for _, datagram in datagrams], np.int64)
        joined = bytearray(b"".join(datagram for _, datagram in datagrams))
        runs = [(address, len(list(run))) for address, run in groupby(address for address, _ in datagrams)]
        return cls(np.frombuffer(joined, np.uint8), np.cumsum(lengths) - lengths, lengths, runs)

    def __len__(self) -> int:
        return len(self.starts)


class Train(msgspec.Struct, frozen=True):
    """Datagrams of equal length for one address (the last may be shorter), one after the other."""

    address: Address
    data: bytes | bytearray | memoryview
    segment: int
    """Length of each datagram."""

    def datagrams(self) -> Iterator[bytes]:
        """Cut the train into its datagrams."""
        view = memoryview(self.data)
        for start in range(0, len(view), self.segment):
            yield bytes(view[start : start + self.segment])


class Output:
    """What one call into the engine gave: trains to send, events to deliver, things that happened."""

    __slots__ = ("control", "events", "trains")

    def __init__(self) -> None:
        self.trains: list[Train] = []
        self.events: list[EventBatch] = []
        self.control: list[Control] = []

    def send(self, address: Address, datagram: bytes) -> None:
        """Add a single datagram."""
        self.trains.append(Train(address, datagram, len(datagram)))

    def merge(self, other: Output) -> None:
        """Take over everything another output holds."""
        self.trains += other.trains
        self.events += other.events
        self.control += other.control
