"""History (0x4D02): read the log of a channel at its publisher, from a sequence on, and follow new events.

A CHUNK has columns: the times, the sizes and the bytes of its events. Only the first sequence is sent, because a log
has no gaps; what retention removed is a gap before the first event, and flagged. A payload that does not fit the rest
of a packet continues in the next chunk, with the same sequence. docs/wire/profile.md has the bytes, docs/decisions/0015
the reasons. Permissions are checked in the engine, as for a subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import MAX_EVENT, Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, pack_channel, take_field, unpack_channel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ = Layout("history read", "<BQBQI")
_CHUNK = Layout("history chunk", "<BQBQQI")
_ERROR = Layout("history error", "<BQBQ")
_CANCEL = Layout("history cancel", "<BQ")

# Tables store sequences as BIGINT.
MAX_SEQ = (1 << 63) - 1
"""The highest sequence of a log."""
EVENT_COST = 12
"""Bytes that a chunk needs for each event besides its payload: 8 for the time, 4 for the size."""
CHUNK_ROOM = MAX_EVENT - _CHUNK.size
"""8074: the room of one chunk for events, their times and sizes."""

_TIME, _SIZE = np.dtype("<i8"), np.dtype("<u4")


class _Kind(IntEnum):
    READ = 1
    CHUNK = 2
    ERROR = 3
    CANCEL = 4


class ReadFlags(IntFlag):
    """Options of a READ."""

    NONE = 0
    FOLLOW = 1
    """Continue with events that are published later."""
    FROM_FIRST = 2
    """If the start was removed, begin with the first available event and flag the gap."""


class ChunkFlags(IntFlag):
    """Properties of a chunk."""

    NONE = 0
    CAUGHT_UP = 1
    """The log ended with the last event when the chunk was sent."""
    GAP = 2
    """Events before the first one were removed."""
    CONTINUES = 4
    """The payload of the last event continues in the next chunk."""


class ErrorCode(IntEnum):
    """Why a request is refused or ended."""

    UNKNOWN_CHANNEL = 1
    """The channel does not exist, or has no log."""
    DENIED = 2
    RANGE_GONE = 3
    """The start was removed; `first_available` is the first sequence that is left."""
    BUSY = 4
    """Too many readers."""
    CLOSED = 5
    """The publisher ended the request; the reader may ask again."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the log of a channel."""

    req: int
    """Chosen by the reader; the answers repeat it."""
    channel: ChannelName
    since: int
    """The first sequence wanted."""
    flags: ReadFlags = ReadFlags.NONE
    max_bytes: int
    """About how many bytes of events may wait for this reader at the publisher."""
    token: bytes = b""
    """A permission token, or nothing."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive events of a log; a chunk without events is valid."""

    req: int
    flags: ChunkFlags = ChunkFlags.NONE
    first_available: int
    """The first sequence that is left in the log."""
    first_seq: int
    """The sequence of the first event, or of the next one when there is none."""
    stamps: bytes = b""
    """The time of each event, unix nanoseconds, 8 bytes each."""
    sizes: bytes = b""
    """The length of each payload in this chunk, 4 bytes each; the rest of the last one may follow in the next chunk."""
    data: bytes = b""
    """The payloads, one after the other."""

    def __len__(self) -> int:
        return len(self.sizes) // _SIZE.itemsize

    def times(self) -> NDArray[np.int64]:
        """Return the times of the events."""
        return np.frombuffer(self.stamps, _TIME)

    def offsets(self) -> NDArray[np.int64]:
        """Return where each payload begins in `data`, and where the last one ends."""
        edges = np.zeros(len(self) + 1, np.int64)
        np.cumsum(np.frombuffer(self.sizes, _SIZE), out=edges[1:])
        return edges


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Refuse to read a log, or stop reading it."""

    req: int
    code: ErrorCode
    first_available: int = 0


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Stop reading."""

    req: int


HistoryMessage: TypeAlias = Read | Chunk | Error | Cancel


def history_stream(req: int) -> int:
    """Return the reliable stream of all messages about one request."""
    return Subprotocol.HISTORY << 32 | req & 0xFFFFFFFF


def split_chunks(
    req: int,
    first_seq: int,
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    times: NDArray[np.int64],
    *,
    first_available: int,
    gap: bool = False,
    caught_up: bool = False,
    max_message: int = MAX_EVENT,
) -> Iterator[Chunk]:
    """Divide events into as few chunks as possible, in order; without events, yield one empty chunk.

    Event `i` is `data[offsets[i] : offsets[i + 1]]`. The gap is flagged on the first chunk, the end on the last. A chunk
    takes at most `max_message` bytes, which must be at least 43 to hold one byte of payload.
    """
    cuts = list(_cuts(offsets, max_message - _CHUNK.size)) or [(0, offsets[:1], False)]
    for place, (start, edges, continues) in enumerate(cuts):
        flags = ChunkFlags.CONTINUES if continues else ChunkFlags.NONE
        if gap and place == 0:
            flags |= ChunkFlags.GAP
        if caught_up and place == len(cuts) - 1:
            flags |= ChunkFlags.CAUGHT_UP
        yield Chunk(
            req=req,
            flags=flags,
            first_available=first_available,
            first_seq=first_seq + start,
            stamps=times[start : start + len(edges) - 1].astype(_TIME).tobytes(),
            sizes=np.diff(edges).astype(_SIZE).tobytes(),
            data=data[edges[0] : edges[-1]].tobytes(),
        )


def _cuts(offsets: NDArray[np.int64], room: int) -> Iterator[tuple[int, NDArray[np.int64], bool]]:
    """Yield for each chunk its first event, the bounds of its payloads, and whether the last payload continues."""
    costs = offsets + EVENT_COST * np.arange(len(offsets))
    start = 0
    while start < len(offsets) - 1:
        # The last event that still fits. `costs` are running totals, so a binary search finds it.
        stop = int(np.searchsorted(costs, costs[start] + room, side="right")) - 1
        if stop > start:
            yield start, offsets[start : stop + 1], False
            start = stop
            continue
        # Not even one event fits: spread its payload over chunks of its own.
        begin, end = offsets[start : start + 2].tolist()
        for left, right in pairwise([*range(begin, end, room - EVENT_COST), end]):
            yield start, np.array((left, right)), right < end
        start += 1


def encode_history(message: HistoryMessage) -> bytes:
    """Write a history message.

    Raises LocalProtocolError for what does not fit one packet; `split_chunks` makes events fit.
    """
    match message:
        case Read():
            return _encode_read(message)
        case Chunk(req=req, flags=flags, first_available=first_available, first_seq=first_seq):
            head = _CHUNK.pack(_Kind.CHUNK, req, flags, first_available, first_seq, len(message))
            return _fitting(head + message.stamps + message.sizes + message.data)
        case Error(req=req, code=code, first_available=first_available):
            return _ERROR.pack(_Kind.ERROR, req, code, first_available)
        case Cancel(req=req):
            return _CANCEL.pack(_Kind.CANCEL, req)


def decode_history(event: Buffer) -> HistoryMessage:
    """Read a history message; payloads are copied."""
    view = memoryview(event)
    if not view:
        raise MalformedPacket("history", Fault.TRUNCATED, "empty")
    match view[0]:
        case _Kind.READ:
            return _decode_read(view)
        case _Kind.CHUNK:
            return _decode_chunk(view)
        case _Kind.ERROR:
            _, req, code, first_available = _ERROR.unpack(view)
            # Checked before the conversion: an enum would raise ValueError, which is not an error of the protocol.
            if not ErrorCode.UNKNOWN_CHANNEL <= code <= ErrorCode.CLOSED or first_available > MAX_SEQ:
                raise MalformedPacket("history error", Fault.BAD_VALUE, f"code {code}, first {first_available}")
            return Error(req=req, code=ErrorCode(code), first_available=first_available)
        case _Kind.CANCEL:
            _, req = _CANCEL.unpack(view)
            return Cancel(req=req)
        case kind:
            raise MalformedPacket("history", Fault.UNKNOWN_KIND, f"kind {kind}")


def _encode_read(read: Read) -> bytes:
    name = pack_channel(read.channel)
    if len(read.token) > MAX_EVENT:
        raise LocalProtocolError(f"history read: a token of {len(read.token)} bytes does not fit one packet")
    head = _READ.pack(_Kind.READ, read.req, read.flags, read.since, read.max_bytes)
    return _fitting(head + bytes((len(name),)) + name + len(read.token).to_bytes(2, "little") + read.token)


def _fitting(event: bytes) -> bytes:
    if len(event) > MAX_EVENT:
        raise LocalProtocolError(f"history: {len(event)} bytes do not fit one packet of {MAX_EVENT}")
    return event


def _decode_read(view: memoryview) -> Read:
    _, req, flags, since, max_bytes = _READ.unpack_prefix(view)
    name, rest = take_field("history read", "name", view[_READ.size :], 1)
    token, rest = take_field("history read", "token", rest, 2)
    if rest:
        raise MalformedPacket("history read", Fault.TRAILING, f"{len(rest)} bytes")
    if flags > ReadFlags.FOLLOW | ReadFlags.FROM_FIRST or since > MAX_SEQ:
        raise MalformedPacket("history read", Fault.BAD_VALUE, f"flags {flags}, since {since}")
    return Read(
        req=req,
        channel=unpack_channel("history read", name),
        since=since,
        flags=ReadFlags(flags),
        max_bytes=max_bytes,
        token=bytes(token),
    )


def _decode_chunk(view: memoryview) -> Chunk:
    _, req, flags, first_available, first_seq, count = _CHUNK.unpack_prefix(view)
    sizes_at = _CHUNK.size + _TIME.itemsize * count
    data_at = _CHUNK.size + EVENT_COST * count
    if len(view) < data_at:
        raise MalformedPacket("history chunk", Fault.TRUNCATED, f"{count} events in {len(view)} bytes")
    sizes, data = bytes(view[sizes_at:data_at]), bytes(view[data_at:])
    wanted = int(np.frombuffer(sizes, _SIZE).sum(dtype=np.int64))
    if wanted != len(data):
        fault = Fault.TRUNCATED if wanted > len(data) else Fault.TRAILING
        raise MalformedPacket("history chunk", fault, f"{len(data)} bytes of {wanted}")
    # Without an event there is no payload that could continue.
    continues_nothing = flags & ChunkFlags.CONTINUES and not count
    if flags > sum(ChunkFlags) or continues_nothing or max(first_available, first_seq + count) > MAX_SEQ:
        raise MalformedPacket("history chunk", Fault.BAD_VALUE, f"flags {flags}, {count} events from {first_seq}")
    return Chunk(
        req=req,
        flags=ChunkFlags(flags),
        first_available=first_available,
        first_seq=first_seq,
        stamps=bytes(view[_CHUNK.size : sizes_at]),
        sizes=sizes,
        data=data,
    )
