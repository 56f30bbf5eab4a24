"""Run scanner: finds packets at the start of a batch that belong to one stream of one session.

A busy stream fills a drain with ordinary packets of one session and one stream. Such a *run* is opened and delivered as
a whole. One kernel makes all of its columns in a single pass, because twenty small array operations cost more than
decrypting the packets. A handshake, a heartbeat, a malformed packet or a packet of another stream ends the run;
engine/receive/intake.py handles it in another way.

Nothing here authenticates a packet: session/link.py does that for the run.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus import jit
from meshbus.wire.constants import (
    AAD_BYTES,
    HEADER_BYTES,
    MAX_EVENTS,
    MAX_PAYLOAD,
    NET_MAGIC,
    PACKET_COST,
    VERSION,
    Flags,
)
from meshbus.wire.header import aad_of
from meshbus.wire.keys import nonce_prefix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]
    Numbers = NDArray[np.uint64]

SEAL_BYTES = 68
"""What opening a packet needs besides the key: 56 bytes of associated data and the 12-byte nonce (transport.md §4)."""

_SPECIAL = int(Flags.HANDSHAKE | Flags.HEARTBEAT)
# The first three header bytes, read as one little-endian number: magic and version.
_FIRST = NET_MAGIC | VERSION << 16
_U8, _I64, _U64 = np.dtype(np.uint8), np.dtype(np.int64), np.dtype(np.uint64)
# Places in the array of facts that the kernel fills, because a kernel returns one number only.
_SESSION, _STREAM, _ORIGIN, _SUBPROTOCOL, _FLAGS, _SEQUENCES, _COUNTERS, _BYTES, _EVENTS = range(9)
_FACTS = 9


class Run(msgspec.Struct, frozen=True, eq=False):
    """Ordinary packets of one session and one stream, in the order of arrival. None of them is verified yet."""

    session_id: int
    stream_id: int
    origin_hash: int
    subprotocol_id: int
    flags: int
    sequences_follow: bool
    """Whether the sequences are consecutive."""
    counters_follow: bool
    """Whether the nonce counters are consecutive."""
    payload_bytes: int
    """Total size of the plaintexts."""
    events: int
    """Total number of events, according to the headers."""
    rows: Bytes
    """The headers, 68 bytes each."""
    seals: bytes
    """Associated data and nonce of each packet, SEAL_BYTES each."""
    sequences: Numbers
    counters: Numbers
    lengths: Places
    """Size of each plaintext."""
    counts: Places
    """Events in each plaintext, according to its header."""
    places: Places
    """Where each plaintext begins when they are placed one after the other."""

    def __len__(self) -> int:
        return len(self.sequences)


def scan(data: Bytes, starts: Places, lengths: Places) -> Run | None:  # hot: bench_stream
    """Return the run of packets at the start of a batch, or None if the first packet is not an ordinary one."""
    count = len(starts)
    # Space for the whole batch: how long the run is, is known only after the scan.
    rows, seals = np.empty(count * HEADER_BYTES, _U8), np.empty(count * SEAL_BYTES, _U8)
    numbers, columns = np.empty((2, count), _U64), np.empty((3, count), _I64)
    facts = np.empty(_FACTS, _U64)
    found = _scan.run(data, starts, lengths, rows, seals, numbers, columns, facts)
    if not found:
        return None
    if found < count:
        rows, seals = rows[: found * HEADER_BYTES], seals[: found * SEAL_BYTES]
        numbers, columns = numbers[:, :found], columns[:, :found]
    session, stream, origin, subprotocol, flags, sequences, counters, size, events = facts.tolist()
    return Run(
        session,
        stream,
        origin,
        subprotocol,
        flags,
        bool(sequences),
        bool(counters),
        size,
        events,
        rows,
        # Bytes, because the caller unpacks them with `struct`, which returns the pieces that the cipher needs.
        seals.tobytes(),
        numbers[0],
        numbers[1],
        columns[0],
        columns[1],
        columns[2],
    )


_LAYOUT = struct.Struct("<IIHHIQQQQQIHHHH")
"""The header fields that are read here (transport.md §3); the nonce is read as a 4-byte prefix and the counter."""


def _scan_reference(
    data: Bytes,
    starts: Places,
    lengths: Places,
    rows: Bytes,
    seals: Bytes,
    numbers: Numbers,
    columns: Places,
    facts: Numbers,
) -> int:
    view = data.data
    found, place, events = 0, 0, 0
    common: tuple[int, ...] = ()
    sequences = counters = True
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if length < PACKET_COST or start < 0 or start + length > len(data):
            break
        header = bytes(view[start : start + HEADER_BYTES])
        first, _, subprotocol, _, _, counter, session, stream, sequence, origin, *_, size, count = _LAYOUT.unpack(
            header
        )
        flags = first >> 24
        # transport.md §3: these limits make a header invalid, and the length must match payload_len exactly.
        if first & 0xFFFFFF != _FIRST or flags & _SPECIAL or size > MAX_PAYLOAD or count > MAX_EVENTS:
            break
        if length != size + PACKET_COST:
            break
        # Flags too: RELIABLE decides how a stream is handled, so a run has one kind only.
        shared = (session, stream, origin, subprotocol, flags)
        if found and shared != common:
            break
        common = shared
        if found:
            sequences = sequences and sequence == int(numbers[0, found - 1]) + 1
            counters = counters and counter == int(numbers[1, found - 1]) + 1
        # transport.md §4: only the counter of the nonce is read, the prefix follows from the session id.
        seal = aad_of(header) + nonce_prefix(session) + header[16:24]
        rows[found * HEADER_BYTES : (found + 1) * HEADER_BYTES] = np.frombuffer(header, _U8)
        seals[found * SEAL_BYTES : (found + 1) * SEAL_BYTES] = np.frombuffer(seal, _U8)
        numbers[:, found] = sequence, counter
        columns[:, found] = size, count, place
        place += size
        events += count
        found += 1
    if found:
        facts[:] = *common, sequences, counters, place, events
    return found


@jit.kernel(_scan_reference)
def _scan(
    data: Bytes,
    starts: Places,
    lengths: Places,
    rows: Bytes,
    seals: Bytes,
    numbers: Numbers,
    columns: Places,
    facts: Numbers,
) -> int:
    source, headers, sealed = data.ctypes.data, rows.ctypes.data, seals.ctypes.data
    one = np.uint64(1)
    place: Any = 0
    events: Any = 0
    found = len(starts)
    # A single packet is consecutive.
    facts[_SEQUENCES] = facts[_COUNTERS] = one
    for i in range(len(starts)):
        start, length = starts[i], lengths[i]
        if length < PACKET_COST or start < 0 or start + length > len(data):
            found = i
            break
        packet = source + start
        # transport.md §3: magic, version and flags are in the first word; payload_len and event_count in the last.
        first, last = jit.load_u32(packet), jit.load_u32(packet + 64)
        size: Any = np.int64(last & 0xFFFF)
        count: Any = np.int64(last >> 16)
        flags = first >> 24
        # transport.md §3: these limits make a header invalid, and the length must match payload_len exactly.
        if first & 0xFFFFFF != _FIRST or flags & _SPECIAL or size > MAX_PAYLOAD or count > MAX_EVENTS:
            found = i
            break
        if length != size + PACKET_COST:
            found = i
            break
        subprotocol = jit.load_u32(packet + 8) & 0xFFFF
        # transport.md §3: nonce counter at byte 16, session at 24, stream at 32, sequence at 40, origin at 48.
        counter, session, stream = jit.load_u64(packet + 16), jit.load_u64(packet + 24), jit.load_u64(packet + 32)
        sequence, origin = jit.load_u64(packet + 40), jit.load_u64(packet + 48)
        if i == 0:
            facts[_SESSION], facts[_STREAM], facts[_ORIGIN] = session, stream, origin
            facts[_SUBPROTOCOL], facts[_FLAGS] = subprotocol, flags
        else:
            if (
                session != facts[_SESSION]
                or stream != facts[_STREAM]
                or origin != facts[_ORIGIN]
                or subprotocol != facts[_SUBPROTOCOL]
                or flags != facts[_FLAGS]
            ):
                found = i
                break
            if sequence != numbers[0, i - 1] + one:
                facts[_SEQUENCES] = 0
            if counter != numbers[1, i - 1] + one:
                facts[_COUNTERS] = 0
        jit.copy_bytes(headers + i * HEADER_BYTES, packet, HEADER_BYTES)
        seal = sealed + i * SEAL_BYTES
        jit.copy_bytes(seal, packet, 12)
        seals[i * SEAL_BYTES + 6] = 0  # transport.md §4: hop_count counts as 0, because relays change it
        jit.copy_bytes(seal + 12, packet + 24, 44)
        # transport.md §4: the prefix on the wire is not authenticated, so rebuild it (as wire/keys.py does).
        prefix: Any = (session ^ session >> np.uint64(32)) & np.uint64(0xFFFFFFFF)
        jit.store_u32(seal + AAD_BYTES, prefix)
        jit.copy_bytes(seal + AAD_BYTES + 4, packet + 16, 8)
        numbers[0, i], numbers[1, i] = sequence, counter
        columns[0, i], columns[1, i], columns[2, i] = size, count, place
        place += size
        events += count
    facts[_BYTES], facts[_EVENTS] = place, events
    return found
