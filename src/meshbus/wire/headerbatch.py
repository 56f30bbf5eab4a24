"""Parse the headers of many datagrams into columns; payloads stay sealed.

A batch is one buffer with the start and length of each packet, as a socket drain leaves it. Every header is copied into
one array of rows and gets a status: an invalid packet is a status, not an exception. Kernels take the rows as plain
bytes, because a structured array is slow to create and to pass (docs/decisions/0001); everything else reads
`HeaderBatch.columns`. The form for one packet is wire/header.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus import jit
from meshbus.wire.constants import (
    HEADER_BYTES,
    MAX_EVENTS,
    MAX_PAYLOAD,
    NET_MAGIC,
    PACKET_COST,
    VERSION,
    Flags,
)
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

_HANDSHAKE = int(Flags.HANDSHAKE)
_U8 = np.dtype(np.uint8)


class HeaderStatus(IntEnum):
    """Whether a header is acceptable, and if not, why; the codes of `HeaderBatch.status`."""

    OK = 0
    TRUNCATED = 1
    BAD_MAGIC = 2
    BAD_VERSION = 3
    BAD_LENGTH = 4
    """payload_len or event_count is larger than a packet can hold."""
    WRONG_SIZE = 5
    """The bytes after the header are not exactly payload and tag."""


class HeaderBatch(msgspec.Struct, frozen=True):
    """The headers of many packets; do not rely on rows whose status is not OK."""

    rows: Bytes
    """The headers, 68 bytes each."""
    status: Bytes
    """HeaderStatus codes."""

    @classmethod
    def of(cls, headers: NDArray[np.void]) -> HeaderBatch:
        """Return a batch of headers that are columns already, such as recorded ones; all have status OK."""
        return cls(np.ascontiguousarray(headers).view(np.uint8), np.zeros(len(headers), _U8))

    def __len__(self) -> int:
        return len(self.status)

    @property
    def columns(self) -> NDArray[np.void]:
        """The headers as one structured array of HEADER_DTYPE; shares the memory of `rows`."""
        return self.rows.view(HEADER_DTYPE)

    @property
    def acceptable(self) -> NDArray[np.bool_]:
        """Which rows are OK."""
        return np.equal(self.status, HeaderStatus.OK)

    def blanked(self) -> HeaderBatch:
        """Zero the rows that are not headers, in place, and return the same batch."""
        if self.status.any():
            junk = (self.status == HeaderStatus.BAD_MAGIC) | (self.status == HeaderStatus.BAD_VERSION)
            self.rows.reshape(-1, HEADER_BYTES)[junk] = 0
        return self


def read_headers(data: Bytes, starts: Places, lengths: Places) -> HeaderBatch:  # hot: bench_kernels
    """Read the headers of packets in one buffer."""
    rows = np.empty(len(starts) * HEADER_BYTES, _U8)
    status = np.empty(len(starts), _U8)
    _read.run(data, starts, lengths, rows, status)
    return HeaderBatch(rows, status)


def _read_reference(data: Bytes, starts: Places, lengths: Places, rows: Bytes, status: Bytes) -> None:
    whole = (lengths >= HEADER_BYTES) & (starts >= 0) & (starts + lengths <= len(data))
    table = rows.reshape(-1, HEADER_BYTES)
    # `rows` is not initialized, and a row must not show the memory of something else.
    table[~whole] = 0
    table[whole] = data[starts[whole][:, None] + np.arange(HEADER_BYTES)]
    headers = rows.view(HEADER_DTYPE)
    payload = headers["payload_len"].astype(np.int64)
    # transport.md §3: one trailing byte is enough to drop a packet. In a handshake, the rest of the datagram is the
    # Noise message (§10.1). A heartbeat has payload_len 0, so the same rule gives its 84 bytes.
    exact = (headers["flags"] & _HANDSHAKE != 0) | (lengths == payload + PACKET_COST)
    status[:] = np.select(
        [
            ~whole,
            headers["magic"] != NET_MAGIC,
            headers["version"] != VERSION,
            (payload > MAX_PAYLOAD) | (headers["event_count"] > MAX_EVENTS),
            ~exact,
        ],
        [
            HeaderStatus.TRUNCATED,
            HeaderStatus.BAD_MAGIC,
            HeaderStatus.BAD_VERSION,
            HeaderStatus.BAD_LENGTH,
            HeaderStatus.WRONG_SIZE,
        ],
        HeaderStatus.OK,
    )


@jit.kernel(_read_reference)
def _read(data: Bytes, starts: Places, lengths: Places, rows: Bytes, status: Bytes) -> None:
    source, target = data.ctypes.data, rows.ctypes.data
    for i in range(len(starts)):
        start, length = starts[i], lengths[i]
        row = i * HEADER_BYTES
        if length < HEADER_BYTES or start < 0 or start + length > len(data):
            rows[row : row + HEADER_BYTES] = 0
            # HeaderStatus codes as literals, here and below: the compiler accepts only plain integers.
            status[i] = 1
            continue
        jit.copy_bytes(target + row, source + start, HEADER_BYTES)
        first = jit.load_u32(source + start)  # magic, version, flags
        last = jit.load_u32(source + start + 64)  # payload_len, event_count
        payload = np.int64(last & 0xFFFF)
        if first & 0xFFFF != NET_MAGIC:
            status[i] = 2
        elif (first >> 16) & 0xFF != VERSION:
            status[i] = 3
        elif payload > MAX_PAYLOAD or last >> 16 > MAX_EVENTS:
            status[i] = 4
        elif (first >> 24) & _HANDSHAKE == 0 and length != payload + PACKET_COST:
            status[i] = 5
        else:
            status[i] = 0
