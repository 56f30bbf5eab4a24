"""Input and output of the engine: batches of datagrams in; trains of datagrams, events and notices out.

The driver (node/driving/driver.py) drains its socket into a `PacketBatch` and sends the `Train`s of an `Output`. Values are
made per batch, never per event. An `Address` is whatever the driver's socket uses, such as (host, port): the engine
only hashes and compares it.
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
    """Return host and port of an address, without the flow info and scope id that an IPv6 socket adds.

    Compare places rather than addresses: an address that a user wrote has only host and port.
    """
    # Simulations and tests use plain strings as addresses.
    return address[:2] if isinstance(address, tuple) else address


def host_of(address: Address) -> Address:
    """Return the host of an address, whatever the port."""
    return address[0] if isinstance(address, tuple) else address


class PacketBatch(msgspec.Struct, frozen=True):
    """Datagrams of one drain: one buffer, where each datagram starts, and runs of datagrams from one source."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    runs: Sequence[tuple[Address, int]]
    """Source addresses, each with the number of consecutive datagrams that came from it."""
    routed: bool = False
    """Whether the 18 bytes in front of each packet are its routing header, which `starts` already skips."""

    @classmethod
    def of(cls, datagrams: Sequence[tuple[Address, bytes]]) -> PacketBatch:
        """Build a batch from single datagrams; for tests, simulations and slow sockets."""
        lengths = np.array([len(datagram) for _, datagram in datagrams], np.int64)
        # Writable, as a drained buffer is: forwarding changes the routing header in place.
        joined = bytearray(b"".join(datagram for _, datagram in datagrams))
        runs = [(address, len(list(run))) for address, run in groupby(address for address, _ in datagrams)]
        return cls(np.frombuffer(joined, np.uint8), np.cumsum(lengths) - lengths, lengths, runs)

    def __len__(self) -> int:
        return len(self.starts)


class Train(msgspec.Struct, frozen=True):
    """Datagrams for one address, back to back, of equal length; the last one may be shorter.

    This is the form that UDP segmentation offload takes, so a train leaves in one system call (node/driving/udp.py).
    """

    address: Address
    data: bytes | bytearray | memoryview
    segment: int
    """Length of each datagram."""

    def datagrams(self) -> Iterator[bytes]:
        """Cut the train into its datagrams."""
        view = memoryview(self.data)
        for start in range(0, len(view), self.segment):
            yield bytes(view[start : start + self.segment])


class Output(msgspec.Struct, eq=False):
    """Result of one call into the engine: trains to send, events to deliver, and notices."""

    trains: list[Train] = []
    events: list[EventBatch] = []
    control: list[Control] = []
    forwarded: int = 0
    """Packets of others that were sent on, or wait to be."""
    parts: int = 0
    """Parts of large events that were written to their place; the event comes with the last of them."""

    def send(self, address: Address, datagram: bytes) -> None:
        """Add a single datagram."""
        self.trains.append(Train(address, datagram, len(datagram)))

    def merge(self, other: Output) -> None:
        """Append everything from another output."""
        self.trains += other.trains
        self.events += other.events
        self.control += other.control
        self.forwarded += other.forwarded
        self.parts += other.parts
