"""Link: the keys and the address of one session; seals and opens packets in batches.

Single packets are sealed and opened by wire/seal.py; this file does it for trains. A train consists of datagrams of
equal length, because the operating system sends only those in one call. `equalize` pads payloads of mixed sizes if that
wastes little: receivers ignore bytes after the last counted event (transport.md §5).

The batch paths keep the loop over packets in C (`map` over the AEAD) and prepare headers and nonces in one kernel.

A session may get new keys (engine/session/secure.py). The id in the header of a packet says which keys it is sealed with,
so that packets under the old and the new ones can be on the way together:

    expect       packets under the new keys can be opened; what is sent is still sealed with the old ones
    seal_anew    what is sent is sealed with the new keys; at the latest when the first packet under them has arrived
    forget_old   packets under the old keys cannot be opened any more
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag

from meshbus import jit
from meshbus.engine.base.packets import Address, Train
from meshbus.engine.base.runscan import SEAL_BYTES, Run
from meshbus.policy.bound import Bound, By
from meshbus.wire.constants import AAD_BYTES, HEADER_BYTES, NONCE_BYTES, PACKET_COST, TAG_BYTES, Subprotocol
from meshbus.wire.frames import Packed
from meshbus.wire.header import Buffer, Header, aad_columns, aad_of, pack_header
from meshbus.wire.keys import Role, SessionKeys
from meshbus.wire.route import RouteHeader, pack_route
from meshbus.wire.seal import Opener, Sealer
from meshbus.wire.stamp import STAMP_AT

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_TRAIN_BYTES = 65_500
"""Largest train: below the 65 507 bytes that one UDP send over IPv4 can carry. Eight full packets fit, as many as a receiver
acknowledges at once: a flight of parts (streams/traffic.py) is one train, and one read."""
MAX_TRAIN_PACKETS = 64
"""Datagrams in one train: what every Linux kernel with UDP_SEGMENT accepts (UDP_MAX_SEGMENTS)."""
MAX_PADDING = 8
"""Pad to equal length if that adds at most one byte in this many. Our choice: fewer sends outweigh the extra bytes."""
MAX_PATTERNS = 256
"""Streams of one session of which the header is kept ready for single events. Our choice: more channels than most nodes
publish on; making one again takes as long as sealing four events."""

IN_THE_CLEAR = frozenset(
    {
        Subprotocol.NEGOTIATION,
        Subprotocol.SECURE,
        Subprotocol.CAPABILITY,
        Subprotocol.HANDSHAKE_RELAY,
        Subprotocol.REFLEX,
        Subprotocol.RENDEZVOUS,
        Subprotocol.ROUTE_WITHDRAWAL,
        Subprotocol.STREAM_WINDOW,
    }
)
"""What a session needs before it is secure: to find a path, to agree, and to show that it is alive. None of it carries data
of an application; announcements are signed, relayed handshakes protect themselves, and the rest is a hint."""
_BEFORE_ONLY = frozenset({Subprotocol.NEGOTIATION, Subprotocol.SECURE})
"""What counts only under the new keys, once there are some: it decides what comes next."""

_SEAL = struct.Struct(f"{AAD_BYTES}s{NONCE_BYTES}s")
_NUMBER = struct.Struct("<Q")
_END = struct.Struct("<Q12sIHH")
"""The end of a header: sequence, origin hash and subnet, stamp, payload_len and event_count (transport.md §3)."""
_STAMP = struct.Struct("<I")
_U8, _I64 = np.dtype(np.uint8), np.dtype(np.int64)


BOUNDS = (
    Bound(
        name="sealing_patterns",
        what="streams to a peer whose packet header is kept ready",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_PATTERNS},
        full="all are made again",
        counter="none: only a cache",
    ),
)


class Opening(NamedTuple):
    """Decrypted packets of one session."""

    plain: NDArray[np.uint8]
    """All plaintexts, one after the other."""
    genuine: NDArray[np.bool_] | None = None
    """Which packets were authenticated; None if all of them were, and all were new."""
    fresh: NDArray[np.bool_] | None = None
    """Which of the authenticated packets passed the replay window; None as for `genuine`."""


class _Pieces(NamedTuple):
    """What the packets of one header share, for `Link.seal_one`."""

    header: Header
    front: bytes
    """Routing header and packet header up to the nonce counter."""
    start: bytes
    """The first 12 bytes of the associated data."""
    middle: bytes
    """Session and stream."""
    origin: bytes
    """Origin hash and subnet."""


class Link:
    """The keys of one session, its address, and the routing header for a peer behind a relay."""

    __slots__ = (
        "_awaited",
        "_known",
        "_next",
        "_others",
        "_pieces",
        "_seen_before",
        "address",
        "closed",
        "ephemeral",
        "epoch",
        "handshake_hash",
        "holds",
        "home",
        "mesh_key",
        "opener",
        "probes",
        "refused",
        "role",
        "route",
        "sealer",
        "session_id",
        "stamped",
        "turned",
        "used_at",
    )

    def __init__(
        self, keys: SessionKeys, role: Role, address: Address, now: float, *, route: RouteHeader | None = None
    ) -> None:
        self.sealer = Sealer(keys)
        self.opener = Opener(keys)
        self.session_id = keys.session_id
        """Names the session, whatever its keys are; also the id in packets under its first keys."""
        self.handshake_hash = keys.handshake_hash
        self.epoch = 0
        """How often the keys have changed; 0 means those of the 0.23 handshake."""
        self.holds = False
        """Whether nothing but `IN_THE_CLEAR` is sent until the session is secure (engine/session/secure.py)."""
        self.closed = False
        """Whether nothing but `IN_THE_CLEAR` is accepted under the keys of the 0.23 handshake."""
        self.refused = False
        """Whether the session should be secure, and did not become so in time."""
        self.turned = False
        """Whether the first packet under new keys has just arrived; reset when that was handled."""
        self._others: dict[int, Opener] = {}
        """Openers of other keys than the current ones, by the id in packets: of the last keys, or of the next."""
        self._awaited: int | None = None
        """The id of the next keys, until a packet under them has arrived."""
        self._next: Sealer | None = None
        self._seen_before = 0
        self.role = role
        self.address = address
        """Where packets are sent: to the peer, or to the neighbor that is the next hop."""
        self.home = None if route is not None else address
        """The peer's own address; None if the session was established through a relay."""
        self.route = b"" if route is None else pack_route(route)
        """Routing header in front of every packet to a peer behind a relay; empty for a direct peer.

        transport.md §7: 0.23 nodes never send it on ordinary traffic, but accept it."""
        self.stamped = False
        """Whether packets carry the publisher's time: both sides negotiated presence."""
        self.ephemeral = b""
        """The initiator's ephemeral key of the handshake, to recognize a replay of message 1."""
        self.mesh_key = b""
        """The mesh key of its handshake, or the one that the peer has proved to have since then; empty without a handshake."""
        self.probes = 0
        """Reflex requests that asked for a proof of the session and are not answered."""
        self.used_at = now
        """When a packet was last verified."""
        self._known: tuple[Header | None, NDArray[np.uint8]] = (None, np.empty(0, _U8))
        self._pieces: dict[int, _Pieces] = {}
        """What the packets of single events share, by stream."""

    @property
    def proved(self) -> bool:
        """Whether the peer has proved that it has the keys of the session."""
        # transport.md §11: message 2 proves it to the initiator, the first packet that verifies to the responder.
        return self.role is Role.INITIATOR or self.seen > 0

    @property
    def seen(self) -> int:
        """A number that grows with the packets that were opened; 0 until the first."""
        return self._seen_before + self.opener.window.next + sum(opener.window.next for opener in self._others.values())

    @property
    def overrun(self) -> bool:
        """Whether so many packets in a row were lost that no later one can be opened."""
        return self.opener.window.overrun

    @property
    def session_ids(self) -> tuple[int, ...]:
        """The ids in packets that this link can open."""
        return (self.opener.session_id, *self._others)

    def bars(self, session_id: int, subprotocol_id: int) -> bool:
        """Return whether packets with this id must not carry a subprotocol, because others could have sealed them."""
        if session_id != self.session_id:
            return False
        return (self.closed and subprotocol_id not in IN_THE_CLEAR) or (
            self.epoch > 0 and subprotocol_id in _BEFORE_ONLY
        )

    def expect(self, keys: SessionKeys) -> None:
        """Open packets under new keys too."""
        self._others[keys.session_id] = Opener(keys)
        self._awaited = keys.session_id
        self._next = Sealer(keys)

    def seal_anew(self) -> None:
        """Seal with the keys of the last `expect` from now on."""
        if self._next is not None:
            self.sealer, self._next = self._next, None
            self.epoch += 1
            self.holds = False
            self._forget_patterns()

    def forget_old(self) -> list[int]:
        """Stop opening packets under earlier keys, and return the ids that those have."""
        old = [session_id for session_id in self._others if session_id != self._awaited]
        for session_id in old:
            self._seen_before += self._others.pop(session_id).window.next
        return old

    def follow(self, address: Address, route: RouteHeader | None) -> None:
        """Change the address: to a next hop, with a routing header, or to the peer itself, without one."""
        self.address = address
        self.route = b"" if route is None else pack_route(route)
        self._forget_patterns()

    def seal(self, header: Header, payload: bytes) -> Train:
        """Seal one packet."""
        datagram = self.route + self.sealer.seal(header, payload)
        return Train(self.address, datagram, len(datagram))

    def seal_one(  # hot: bench_publish
        self, header: Header, payload: bytes, sequence: int, stamp: int = 0
    ) -> Train:
        """Seal one event as a packet of its own; `header` is the pattern, as for `seal_batch`."""
        pieces = self._pieces.get(header.stream_id)
        # A publisher passes the same header object for every event, so identity is enough.
        if pieces is None or pieces[0] is not header:
            pieces = self._cut(header)
        _, front, start, middle, origin = pieces
        sealer = self.sealer
        # transport.md §3: nonce counter at byte 16, sequence at 40, payload_len and event_count at 64.
        counter = _NUMBER.pack(sealer.take())
        end = middle + _END.pack(sequence, origin, stamp if self.stamped else 0, len(payload), 1)
        # transport.md §4: the associated data is the header without the nonce, and with hop_count 0.
        sealed = sealer.aead.encrypt(sealer.nonce_prefix + counter, payload, start + end)
        datagram = b"".join((front, counter, end, sealed))
        return Train(self.address, datagram, len(datagram))

    def seal_batch(self, header: Header, packed: Packed, first_sequence: int) -> list[Train]:  # hot: bench_stream
        """Seal payloads as consecutive packets of one stream.

        `header` is the pattern: sequence, nonce, payload length and event count are filled in here.
        """
        count = len(packed)
        edges = packed.bounds.tolist()
        offset = len(self.route) + HEADER_BYTES
        # Not a bytearray, which would be zeroed: every byte is written below.
        wire = np.empty(edges[-1] - edges[0] + count * (offset + TAG_BYTES), _U8)
        dressed = np.empty(count * SEAL_BYTES, _U8)
        pattern = self._pattern(header)
        _STAMP.pack_into(pattern.data, len(self.route) + STAMP_AT, packed.stamp if self.stamped else 0)
        # Counters are taken before anything is sealed, so none is used twice, even after an error.
        stride = _dress.run(
            pattern, packed.bounds, packed.counts, self.sealer.take(count), first_sequence, wire, dressed
        )
        view, source = wire.data, packed.data.data
        sizes = [end - at for at, end in pairwise(edges)]
        bodies = accumulate((size + offset + TAG_BYTES for size in sizes[:-1]), initial=offset)
        aads, nonces = zip(*_SEAL.iter_unpack(dressed.data), strict=True)
        plain = [source[at:end] for at, end in pairwise(edges)]
        sealed = [view[body : body + size + TAG_BYTES] for body, size in zip(bodies, sizes, strict=True)]
        # `deque(map(...))` runs the loop in C; a Python loop would add about a fifth to the cost of each packet.
        deque(map(self.sealer.aead.encrypt_into, nonces, plain, aads, sealed), maxlen=0)
        if stride:
            step = stride * min(MAX_TRAIN_PACKETS, MAX_TRAIN_BYTES // stride)
            return [Train(self.address, view[begin : begin + step], stride) for begin in range(0, len(wire), step)]
        return self._trains(view, [size + offset + TAG_BYTES for size in sizes])

    def open_run(self, data: NDArray[np.uint8], starts: NDArray[np.int64], run: Run) -> Opening:  # hot: bench_stream
        """Open a run of packets of this session; `starts` says where they begin in `data`.

        Returns the plaintexts, placed as the run says, and which packets to leave out, if any.
        """
        # Plaintexts go straight to where delivery reads them: one buffer, without a copy per packet.
        plain = np.empty(run.payload_bytes, _U8)
        opener = self._opener_of(run.session_id)
        forged = _decrypt(opener, data, starts, run.lengths, run.places, run.seals, plain)
        # transport.md §12: the replay window is consulted only after a successful decrypt.
        if not forged and run.counters_follow and opener.window.admit_run(run.counters.item(0), len(run)):
            if opener is not self.opener:
                self._came(opener)
            return Opening(plain)
        return Opening(plain, *self._judge(opener, forged, run.counters))

    def open_batch(  # hot: bench_stream
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        headers: NDArray[np.void],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Open packets of this session, in any order and of any of its streams.

        Returns the plaintexts in one buffer, where each begins, which packets were authenticated, and which of those
        were new.
        """
        sizes = headers["payload_len"].astype(np.int64)
        ends = np.cumsum(sizes)
        places = ends - sizes
        plain = np.empty(int(ends[-1]), np.uint8)
        counters = np.ascontiguousarray(headers["counter"])
        seals = np.empty((len(starts), SEAL_BYTES), np.uint8)
        seals[:, :AAD_BYTES] = aad_columns(headers)
        opener = self._opener_of(headers["session_id"].item(0))
        seals[:, AAD_BYTES : AAD_BYTES + 4] = np.frombuffer(opener.nonce_prefix, np.uint8)
        seals[:, AAD_BYTES + 4 :] = counters.view(np.uint8).reshape(-1, 8)
        forged = _decrypt(opener, data, starts, sizes, places, seals.tobytes(), plain)
        return plain, places, *self._judge(opener, forged, counters)

    def open_one(self, header: Header, packet: Buffer) -> bytes:  # hot: bench_publish
        """Open one packet of this session, and return its plaintext; raises as `Opener.decrypt` does."""
        opener = self.opener
        if opener.session_id != header.session_id:
            opener = self._others[header.session_id]
        payload = opener.decrypt(header, packet)
        if opener is not self.opener:
            self._came(opener)
        return payload

    def _judge(
        self, opener: Opener, forged: list[int], counters: NDArray[np.uint64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which packets are authenticated, and which of those are new."""
        genuine = np.ones(len(counters), np.bool_)
        # Only counters of authentic packets may reach the replay window (transport.md §12).
        genuine[forged] = False
        fresh = genuine.copy()
        fresh[genuine] = opener.window.admit_batch(counters[genuine])
        if opener is not self.opener and fresh.any():
            self._came(opener)
        return genuine, fresh

    def _opener_of(self, session_id: int) -> Opener:
        """Return what opens packets with an id; it must be one of `session_ids`."""
        opener = self.opener
        return opener if opener.session_id == session_id else self._others[session_id]

    def _came(self, opener: Opener) -> None:
        """Handle packets that are not sealed with the current keys: the first ones under the next keys make these current."""
        if opener.session_id == self._awaited:
            self._others[self.opener.session_id] = self.opener
            self.opener = self._others.pop(opener.session_id)
            self._awaited = None
            # The peer has them, too.
            self.seal_anew()
            self.turned = True

    def _forget_patterns(self) -> None:
        # They contain the routing header and the id of the keys.
        self._known = None, np.empty(0, _U8)
        self._pieces.clear()

    def _cut(self, header: Header) -> _Pieces:
        """Return the parts of a header that all its packets share, and keep them for the next packet of the stream."""
        pattern, at = self._pattern(header).tobytes(), len(self.route)
        start = pattern[at : at + 6] + b"\0" + pattern[at + 7 : at + 12]
        if len(self._pieces) >= MAX_PATTERNS:
            self._pieces.clear()
        pieces = _Pieces(
            header, pattern[: at + 16], start, pattern[at + 24 : at + 40], pattern[at + 48 : at + STAMP_AT]
        )
        self._pieces[header.stream_id] = pieces
        return pieces

    def _pattern(self, header: Header) -> NDArray[np.uint8]:
        """Return routing header and packed header for packets of this pattern; the last pattern is cached."""
        known, pattern = self._known
        # A publisher passes the same header object for every packet, so identity is enough to find the cached one.
        if known is not header:
            full = msgspec.structs.replace(
                header, nonce=self.sealer.nonce_prefix + bytes(8), session_id=self.sealer.session_id
            )
            pattern = np.frombuffer(bytearray(self.route + pack_header(full)), _U8)
            self._known = header, pattern
        return pattern

    def _trains(self, wire: memoryview, strides: list[int]) -> list[Train]:
        """Cut sealed packets into trains: all datagrams of a train have equal length, only the last may be shorter."""
        trains: list[Train] = []
        begin = end = packets = segment = 0
        closed = True
        for stride in strides:
            # After a shorter datagram a train is closed: segmentation offload allows it only at the end.
            fits = not closed and stride <= segment and end - begin + stride <= MAX_TRAIN_BYTES
            if not fits or packets == MAX_TRAIN_PACKETS:
                if packets:
                    trains.append(Train(self.address, wire[begin:end], segment))
                begin, packets, segment = end, 0, stride
            end += stride
            packets += 1
            closed = stride < segment
        trains.append(Train(self.address, wire[begin:end], segment))
        return trains


def _decrypt(
    opener: Opener,
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    seals: bytes,
    plain: NDArray[np.uint8],
) -> list[int]:
    """Decrypt packets into one buffer, and return the indexes of those that failed authentication."""
    source, target = data.data, plain.data
    lengths = sizes.tolist()
    aads, nonces = zip(*_SEAL.iter_unpack(seals), strict=True)
    sealed = [
        source[start + HEADER_BYTES : start + size + PACKET_COST]
        for start, size in zip(starts.tolist(), lengths, strict=True)
    ]
    opened = [target[place : place + size] for place, size in zip(places.tolist(), lengths, strict=True)]
    decrypt = opener.aead.decrypt_into
    try:
        deque(map(decrypt, nonces, sealed, aads, opened), maxlen=0)
    except InvalidTag:
        # `map` stopped at the first forged packet: decrypt again, one by one. Decrypting twice is harmless.
        return [
            i for i, packet in enumerate(zip(nonces, sealed, aads, opened, strict=True)) if _forged(decrypt, packet)
        ]
    return []


def _forged(decrypt: Callable[..., int], packet: tuple[bytes, memoryview, bytes, memoryview]) -> bool:
    try:
        decrypt(*packet)
    except InvalidTag:
        return True
    return False


def equalize(packed: Packed) -> Packed:  # hot: bench_stream
    """Pad payloads to one length if that wastes little; the last one may stay shorter."""
    width = _width.run(packed.bounds)
    # Equal already, or padding would waste too much.
    if not width:
        return packed
    count = len(packed)
    last = packed.bounds.item(count) - packed.bounds.item(count - 1)
    bounds = np.arange(count + 1, dtype=_I64) * width
    bounds[-1] += last - width
    data = np.empty(bounds.item(count), _U8)
    _spread.run(packed.data, packed.bounds, width, data)
    return Packed(data, bounds, packed.counts, packed.stamp)


def part_of(packed: Packed, start: int, stop: int) -> Packed:
    """Return a range of the payloads, which shares their memory."""
    return Packed(packed.data, packed.bounds[start : stop + 1], packed.counts[start:stop], packed.stamp)


def _dress_reference(
    pattern: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    counts: NDArray[np.int64],
    counter: int,
    sequence: int,
    wire: NDArray[np.uint8],
    seals: NDArray[np.uint8],
) -> int:
    ahead = len(pattern) - HEADER_BYTES
    edges, numbers, position = bounds.tolist(), counts.tolist(), 0
    strides = [end - start + len(pattern) + TAG_BYTES for start, end in pairwise(edges)]
    for i, stride in enumerate(strides):
        head = bytearray(pattern.tobytes())
        head[ahead + 16 : ahead + 24] = (counter + i).to_bytes(8, "little")
        head[ahead + 40 : ahead + 48] = (sequence + i).to_bytes(8, "little")
        head[ahead + 64 : ahead + 66] = (edges[i + 1] - edges[i]).to_bytes(2, "little")
        head[ahead + 66 : ahead + 68] = numbers[i].to_bytes(2, "little")
        wire[position : position + len(head)] = np.frombuffer(head, _U8)
        seal = aad_of(head[ahead:]) + bytes(head[ahead + 12 : ahead + 24])
        seals[i * SEAL_BYTES : (i + 1) * SEAL_BYTES] = np.frombuffer(seal, _U8)
        position += stride
    equal = all(stride == strides[0] for stride in strides[:-1]) and strides[-1] <= strides[0]
    return strides[0] if equal else 0


@jit.kernel(_dress_reference)
def _dress(
    pattern: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    counts: NDArray[np.int64],
    counter: int,
    sequence: int,
    wire: NDArray[np.uint8],
    seals: NDArray[np.uint8],
) -> int:
    """Write the packet headers into the wire buffer, and associated data and nonces into `seals`.

    Returns the length of the datagrams if they form trains (equal length, the last one may be shorter), otherwise 0.
    """
    model, target, sealed = pattern.ctypes.data, wire.ctypes.data, seals.ctypes.data
    ahead = len(pattern) - HEADER_BYTES
    last, position, widest, equal = len(counts) - 1, 0, 0, True
    for i in range(len(counts)):
        size = bounds[i + 1] - bounds[i]
        stride = len(pattern) + size + TAG_BYTES
        if i == 0:
            widest = stride
        if stride > widest or (stride < widest and i < last):
            equal = False
        jit.copy_bytes(target + position, model, len(pattern))
        head = target + position + ahead
        number, place = counter + i, sequence + i
        # transport.md §3: nonce counter at byte 16, sequence at 40, payload_len and event_count at 64.
        jit.store_u32(head + 16, number & 0xFFFFFFFF)
        jit.store_u32(head + 20, (number >> 32) & 0xFFFFFFFF)
        jit.store_u32(head + 40, place & 0xFFFFFFFF)
        jit.store_u32(head + 44, (place >> 32) & 0xFFFFFFFF)
        jit.store_u32(head + 64, size | counts[i] << 16)
        seal = sealed + i * SEAL_BYTES
        jit.copy_bytes(seal, head, 12)
        seals[i * SEAL_BYTES + 6] = 0  # transport.md §4: hop_count counts as 0, because relays change it
        jit.copy_bytes(seal + 12, head + 24, 44)
        jit.copy_bytes(seal + AAD_BYTES, head + 12, NONCE_BYTES)
        position += stride
    return widest if equal else 0


def _width_reference(bounds: NDArray[np.int64]) -> int:
    sizes = np.diff(bounds)
    if len(sizes) < 2:
        return 0
    widest, last = int(sizes[:-1].max()), int(sizes[-1])
    # The last payload needs no padding, because the last datagram of a train may be shorter.
    padding = widest * (len(sizes) - 1) - int(sizes[:-1].sum())
    if padding == 0 or last > widest or padding * MAX_PADDING > int(sizes.sum()):
        return 0
    return widest


@jit.kernel(_width_reference)
def _width(bounds: NDArray[np.int64]) -> int:
    """Return the length to pad payloads to, or 0 if they are already equal or differ too much."""
    last = len(bounds) - 2
    widest = 0
    for i in range(last):
        widest = max(widest, bounds[i + 1] - bounds[i])
    padding = widest * last - (bounds[last] - bounds[0])
    if last < 1 or padding == 0 or bounds[last + 1] - bounds[last] > widest:
        return 0
    if padding * MAX_PADDING > bounds[last + 1] - bounds[0]:
        return 0
    return widest


def _spread_reference(data: NDArray[np.uint8], bounds: NDArray[np.int64], width: int, out: NDArray[np.uint8]) -> None:
    out[:] = 0
    for row, (start, end) in enumerate(pairwise(bounds.tolist())):
        out[row * width : row * width + end - start] = data[start:end]


@jit.kernel(_spread_reference)
def _spread(data: NDArray[np.uint8], bounds: NDArray[np.int64], width: int, out: NDArray[np.uint8]) -> None:
    """Copy payloads to positions `width` apart, and fill the space between them with zeros."""
    source, target = data.ctypes.data, out.ctypes.data
    for i in range(len(bounds) - 1):
        size = bounds[i + 1] - bounds[i]
        jit.copy_bytes(target + i * width, source + bounds[i], size)
        for k in range(i * width + size, min((i + 1) * width, len(out))):
            out[k] = 0
