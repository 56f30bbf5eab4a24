"""Intake: turns datagrams into opened packets; finds the session, authenticates, and rejects replays.

There are three ways through this file, from the fastest to the slowest (the checks are those of transport.md §17):

    a run          packets of one stream of one session (engine/base/runscan.py), the normal case in a busy stream;
                   opened as a whole
    mixed          ordinary packets of a few sessions: parsed into columns, and opened session by session
    one by one     handshakes, heartbeats, pingwaves, keep-alives, junk, and batches of a few packets

Routed packets go through the same ways: those for other nodes unchanged to forwarding, those for this node without
their routing header. What a datagram costs does not depend on the others of its batch: runs are long enough to pay for
themselves, and everything else is done once per batch. Hostile input never raises; every drop is counted with a reason. What an opened packet means is
decided in engine/receive/reception.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.grouping import group_rows
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.base.runscan import Run, scan
from meshbus.engine.routes.tap import Arrival, Tap
from meshbus.engine.session.peer import Peer, PeerTable
from meshbus.errors import Fault, MalformedPacket, RemoteProtocolError, Replayed, UnknownVersion
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES, ROUTE_MAGIC, Flags
from meshbus.wire.datagram import NET_PREFIX, DatagramKind, classify
from meshbus.wire.header import HEADER_DTYPE, Header, pack_header, unpack_header
from meshbus.wire.headerbatch import HeaderStatus, read_headers
from meshbus.wire.route import destination_of
from meshbus.wire.routebatch import read_routes, routed_stretch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPECIAL = int(Flags.HANDSHAKE | Flags.HEARTBEAT)
_HANDSHAKE = int(Flags.HANDSHAKE)
_HEARTBEAT = int(Flags.HEARTBEAT)
_U8, _I64 = np.dtype(np.uint8), np.dtype(np.int64)
_AT_ZERO = np.zeros(1, _I64)
_ROUTED = ROUTE_MAGIC & 0xFF
"""The first byte of a routed packet."""
FEW_PACKETS = 3
"""Up to this many packets are handled one by one, because the arrays of a batch cost more than they save."""
RUN_SHARE = 4
"""A run is opened as a whole if it is at least this fraction (one in four) of what is left of the batch.

Our choice: below that, sorting by columns is cheaper than scanning again after each short run."""


class Opened(msgspec.Struct, frozen=True, eq=False):
    """Authenticated, new packets of one peer, in the order of arrival."""

    headers: NDArray[np.void]
    data: NDArray[np.uint8]
    """All plaintexts."""
    starts: NDArray[np.int64]
    """Where the plaintext of each packet begins."""
    run: Run | None = None
    """The run, if the packets are exactly one."""
    arrival: Arrival | None = None
    """Where the packets came from, if the flight recorder is on."""

    @classmethod
    def of(cls, header: Header, payload: bytes, arrival: Arrival | None = None) -> Opened:
        """Build the columns of a single packet."""
        columns = np.frombuffer(bytearray(pack_header(header)), HEADER_DTYPE)
        return cls(columns, np.frombuffer(payload, np.uint8), np.zeros(1, np.int64), arrival=arrival)


class Receiver(Protocol):
    """Interface to which the intake passes its results; engine/receive/reception.py implements it."""

    def on_handshake(self, source: Address, datagram: memoryview, now: float, out: Output, *, routed: bool) -> None:
        """Handle a handshake packet, with its routing header if it is routed."""

    def on_stranger(self, source: Address, packet: bytes, now: float, out: Output) -> bool:
        """Handle a packet of a session that is no peer's current one; return False if the session is unknown."""

    def on_new_keys(self, peer: Peer, now: float, out: Output) -> None:
        """Handle the first packet under new keys of a session, before its content."""

    def on_heartbeat(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a verified heartbeat."""

    def on_packets(self, peer: Peer, opened: Opened, now: float, out: Output) -> None:
        """Handle opened packets."""

    def on_packet(self, peer: Peer, header: Header, payload: bytes, now: float, out: Output) -> None:
        """Handle one opened packet."""

    def on_transit(
        self,
        source: Address,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: int,
        last: int,
        now: float,
        out: Output,
        /,
    ) -> None:
        """Handle routed packets of one source for other nodes: rows `first` up to `last` of `starts` and `lengths`."""

    def on_pingwave(self, source: Address, datagram: memoryview, now: float, out: Output, /) -> None:
        """Handle a pingwave."""

    def on_keepalive(self, source: Address, datagram: memoryview, now: float, out: Output, /) -> None:
        """Handle a keep-alive of hole punching; it is not authenticated."""


class Intake:
    """Parses, opens and sorts the datagrams of one node."""

    def __init__(self, identity: Identity, peers: PeerTable, counters: Counters, receiver: Receiver, tap: Tap) -> None:
        self._identity = identity
        self._peers = peers
        self._counters = counters
        self._receiver = receiver
        self._tap = tap

    def receive(self, batch: PacketBatch, now: float, out: Output) -> None:  # hot: bench_stream
        """Handle a batch of datagrams."""
        starts, lengths = batch.starts, batch.lengths
        first, count = 0, len(batch)
        if count <= FEW_PACKETS:
            self._receive_singly(batch, range(count), now, out)
            return
        # One run after the other, as long as they are long enough; whatever remains is sorted by columns.
        while first < count:
            # The first byte is a cheap test before `routed_stretch`, which checks the whole magic and the length.
            if batch.data.item(starts.item(first)) == _ROUTED and (
                routed := self._receive_routed_row(batch, first, now, out)
            ):
                first += routed
                continue
            run = scan(batch.data, starts[first:], lengths[first:]) if first else scan(batch.data, starts, lengths)
            ahead = 0
            if run is not None and len(run) <= FEW_PACKETS and len(run) * RUN_SHARE < count - first:
                # Perhaps a few packets in front of a long run, such as a small event in front of a train.
                ahead = len(run)
                run = scan(batch.data, starts[first + ahead :], lengths[first + ahead :])
            if run is None or len(run) * RUN_SHARE < count - first - ahead:
                self._receive_mixed(batch, first, now, out)
                return
            if ahead:
                self._receive_singly(batch, range(first, first + ahead), now, out)
            self._receive_run(batch, first + ahead, run, now, out)
            first += ahead + len(run)

    def _receive_run(self, batch: PacketBatch, first: int, run: Run, now: float, out: Output) -> None:
        """Open a run of packets that begins at row `first` of a batch."""
        count = len(run)
        peer = self._peers.by_session(run.session_id)
        # Perhaps the session of a candidate: those are opened packet by packet (session/candidate.py).
        if peer is None:
            self._receive_singly(batch, range(first, first + count), now, out)
            return
        starts = batch.starts if count == len(batch) else batch.starts[first : first + count]
        plain, genuine, fresh = peer.link.open_run(batch.data, starts, run)
        if peer.link.turned:
            self._receiver.on_new_keys(peer, now, out)
        headers = np.frombuffer(run.rows, HEADER_DTYPE)
        arrival = self._tap.arrival(batch, starts, slice(first, first + count))
        if genuine is None or fresh is None:
            self._receiver.on_packets(peer, Opened(headers, plain, run.places, run, arrival), now, out)
            return
        self._refuse(headers, arrival, genuine, fresh, now)
        # The forged or repeated packets break up the run, so what is left goes the way of mixed packets.
        if fresh.any():
            arrival = None if arrival is None else arrival.only(fresh)
            self._receiver.on_packets(peer, Opened(headers[fresh], plain, run.places[fresh], arrival=arrival), now, out)

    def _receive_mixed(self, batch: PacketBatch, first: int, now: float, out: Output) -> None:
        """Handle the packets of a batch from row `first` on, which may be of several kinds."""
        count = len(batch) - first
        if count <= FEW_PACKETS:
            self._receive_singly(batch, range(first, first + count), now, out)
            return
        headers = read_headers(batch.data, batch.starts[first:], batch.lengths[first:])
        columns = headers.columns
        readable = headers.status == HeaderStatus.OK
        ordinary = readable & (columns["flags"] & _SPECIAL == 0)
        if ordinary.all():
            self._receive_ordinary(batch, columns, np.arange(first, len(batch)), now, out)
            return
        routed = (columns["magic"] == ROUTE_MAGIC) & (batch.lengths[first:] >= ROUTE_BYTES + HEADER_BYTES)
        if routed.any():
            self._receive_routed_batch(batch, _rows(routed, first), now, out)
        beats = readable & (columns["flags"] & _SPECIAL == _HEARTBEAT) & (columns["payload_len"] == 0)
        # Handshakes come before what may belong to their sessions. Pingwaves, which are no packets, come last: they count
        # only from neighbors, and the first packet of one may be in this batch.
        self._receive_singly(batch, _rows(readable & ~(ordinary | routed | beats), first).tolist(), now, out)
        for some in (beats, ordinary):
            if some.any():
                self._receive_ordinary(batch, columns[some], _rows(some, first), now, out)
        self._receive_singly(batch, _rows(~(readable | routed), first).tolist(), now, out)

    def _receive_routed_row(self, batch: PacketBatch, first: int, now: float, out: Output) -> int:
        """Handle consecutive routed packets of one source, all for others or all for us, and return their number.

        Returns 0 if they are too few to be a run.
        """
        # `routed_stretch` returns a positive count for packets for other nodes and a negative one for ours.
        source, last = _run_at(batch, first)
        data, starts, lengths = batch.data, batch.starts, batch.lengths
        count = routed_stretch(data, starts, lengths, first, last, self._identity.node_id)
        if abs(count) * RUN_SHARE < len(batch) - first:
            return 0
        if count > 0:
            self._receiver.on_transit(source, data, starts, lengths, first, first + count, now, out)
        elif count < 0:
            self._receive_relayed(batch, np.arange(first, first - count), now, out)
        return abs(count)

    def _receive_routed_batch(self, batch: PacketBatch, rows: NDArray[np.intp], now: float, out: Output) -> None:
        """Handle routed packets that are spread over a batch, for other nodes or for us."""
        starts, lengths = batch.starts[rows], batch.lengths[rows]
        mine = read_routes(batch.data, starts)["dest_id"] == self._identity.node_id
        if mine.any():
            self._receive_relayed(batch, rows[mine], now, out)
            rows, starts, lengths = rows[~mine], starts[~mine], lengths[~mine]
        for source, first, last in _by_source(batch, rows):
            self._receiver.on_transit(source, batch.data, starts, lengths, first, last, now, out)

    def _receive_relayed(self, batch: PacketBatch, rows: NDArray[np.intp], now: float, out: Output) -> None:
        """Handle routed packets for us, without their routing headers."""
        # mesh.md §2.1: the inner packet is treated like a direct one; a second routing header in it is invalid.
        if len(batch.runs) == 1:
            runs = [(batch.runs[0][0], len(rows))]
        else:
            runs = [(source, 1) for _, source in _sources(batch, rows.tolist())]
        inner = PacketBatch(
            batch.data, batch.starts[rows] + ROUTE_BYTES, batch.lengths[rows] - ROUTE_BYTES, runs, routed=True
        )
        run = scan(inner.data, inner.starts, inner.lengths)
        if run is not None and len(run) == len(inner):
            self._receive_run(inner, 0, run, now, out)
            return
        headers = read_headers(inner.data, inner.starts, inner.lengths)
        ordinary = (headers.status == HeaderStatus.OK) & (headers.columns["flags"] & _SPECIAL == 0)
        if not ordinary.all():
            self._receive_singly(batch, rows[~ordinary].tolist(), now, out)
        if ordinary.any():
            self._receive_ordinary(inner, headers.columns[ordinary], np.flatnonzero(ordinary), now, out)

    def _receive_ordinary(
        self, batch: PacketBatch, columns: NDArray[np.void], rows: NDArray[np.intp], now: float, out: Output
    ) -> None:
        sessions = columns["session_id"]
        if (sessions == sessions[0]).all():
            self._open(batch, columns, batch.starts[rows], rows, now, out)
            return
        # Strangers are sorted out first, so that there are no more groups than sessions, however many ids were invented.
        ids = sessions.tolist()
        known = np.fromiter((self._peers.by_session(id_) is not None for id_ in ids), np.bool_, len(ids))
        chosen = np.flatnonzero(known)
        groups = [chosen[group] for group in group_rows(sessions[chosen])]
        few = [np.flatnonzero(~known), *(group for group in groups if len(group) <= FEW_PACKETS)]
        self._receive_singly(batch, np.sort(rows[np.concatenate(few)]).tolist(), now, out)
        for group in groups:
            if len(group) > FEW_PACKETS:
                self._open(batch, columns[group], batch.starts[rows[group]], rows[group], now, out)

    def _open(
        self,
        batch: PacketBatch,
        columns: NDArray[np.void],
        starts: NDArray[np.int64],
        rows: NDArray[np.intp],
        now: float,
        out: Output,
    ) -> None:
        """Open ordinary packets of one session, or heartbeats of one session."""
        peer = self._peers.by_session(int(columns["session_id"][0]))
        if peer is None:
            self._receive_singly(batch, rows.tolist(), now, out)
            return
        data, places, genuine, fresh = peer.link.open_batch(batch.data, starts, columns)
        if peer.link.turned:
            self._receiver.on_new_keys(peer, now, out)
        arrival = self._tap.arrival(batch, starts, rows)
        if not fresh.all():
            self._refuse(columns, arrival, genuine, fresh, now)
            columns, places = columns[fresh], places[fresh]
            arrival = None if arrival is None else arrival.only(fresh)
        if len(columns) and columns["flags"].item(0) & _HEARTBEAT:
            self._receiver.on_heartbeat(peer, now, out)  # once for all of them: they say the same
        elif len(columns):
            self._receiver.on_packets(peer, Opened(columns, data, places, arrival=arrival), now, out)

    def _refuse(
        self,
        headers: NDArray[np.void],
        arrival: Arrival | None,
        genuine: NDArray[np.bool_],
        fresh: NDArray[np.bool_],
        now: float,
    ) -> None:
        """Count and record packets that failed authentication or are not new."""
        self._counters.count(Reason.BAD_TAG, int(np.count_nonzero(~genuine)))
        self._counters.count(Reason.REPLAYED, int(np.count_nonzero(genuine & ~fresh)))
        if arrival is not None:
            # transport.md §17: the tag is checked before the replay window, so a forgery never counts as a replay.
            reasons = np.where(genuine, _U8.type(Reason.REPLAYED.code), _U8.type(Reason.BAD_TAG.code))
            self._tap.arrived(headers[~fresh], arrival.only(~fresh), reasons[~fresh], now)

    def _receive_singly(self, batch: PacketBatch, rows: range | list[int], now: float, out: Output) -> None:
        """Handle some packets of a batch, given by ascending rows, one by one."""
        view, starts, lengths = batch.data.data, batch.starts, batch.lengths
        for row, source in _sources(batch, rows):
            start = starts.item(row)
            if batch.routed:
                route = view[start - ROUTE_BYTES : start]
                self._receive_packet(source, view[start : start + lengths.item(row)], route, now, out)
            else:
                self.receive_one(source, view[start : start + lengths.item(row)], now, out)

    def receive_one(self, source: Address, datagram: memoryview, now: float, out: Output) -> None:
        """Handle one datagram, by its kind (transport.md §2)."""
        if datagram[:2] == NET_PREFIX:  # nearly always; `classify` asks for it first, too
            self._receive_packet(source, datagram, None, now, out)
            return
        match classify(datagram):
            case DatagramKind.ROUTED:
                self._receive_routed(source, datagram, now, out)
            case DatagramKind.PINGWAVE:
                self._receiver.on_pingwave(source, datagram, now, out)
            case DatagramKind.KEEPALIVE:
                self._receiver.on_keepalive(source, datagram, now, out)
            case _:
                self._counters.count(Reason.UNREADABLE)

    def _receive_routed(self, source: Address, datagram: memoryview, now: float, out: Output) -> None:
        if destination_of(datagram) != self._identity.node_id:
            data = np.frombuffer(datagram, _U8)
            lengths = np.full(1, len(datagram), _I64)
            self._receiver.on_transit(source, data, _AT_ZERO, lengths, 0, 1, now, out)
            return
        # transport.md §7: the ttl of a packet for this node is not looked at, and a routed heartbeat is dropped.
        inner = datagram[ROUTE_BYTES:]
        # transport.md §2: a routed packet has at least 86 bytes, so the inner header is complete.
        flags = inner[3]
        if flags & _HEARTBEAT:
            self._counters.count(Reason.ROUTED_HEARTBEAT)
        elif flags & _HANDSHAKE:
            self._receiver.on_handshake(source, datagram, now, out, routed=True)
        else:
            self._receive_packet(source, inner, datagram[:ROUTE_BYTES], now, out)

    def _receive_packet(  # hot
        self, source: Address, packet: memoryview, route: memoryview | None, now: float, out: Output
    ) -> None:
        try:
            header = unpack_header(packet)
        except RemoteProtocolError as error:
            self._counters.count(_reason_of(error))
            return
        if header.flags & _HANDSHAKE:
            self._receiver.on_handshake(source, packet, now, out, routed=False)
            return
        # transport.md §17: a valid packet from another address is accepted, so only the session id selects the session.
        peer = self._peers.by_session(header.session_id)
        arrival = None if self._tap.recorder is None else self._tap.arrival_of(source, route)
        if peer is None:
            if not self._receiver.on_stranger(source, bytes(packet), now, out):
                self._tap.refused(packet, arrival, Reason.UNKNOWN_SESSION, now)
            return
        try:
            payload = peer.link.open_one(header, packet)
        except RemoteProtocolError as error:
            reason = _reason_of(error)
            self._counters.count(reason)
            self._tap.refused(packet, arrival, reason, now)
            return
        if peer.link.turned:
            self._receiver.on_new_keys(peer, now, out)
        if header.flags & _HEARTBEAT:
            self._receiver.on_heartbeat(peer, now, out)
        elif arrival is None:
            self._receiver.on_packet(peer, header, payload, now, out)
        else:
            self._receiver.on_packets(peer, Opened.of(header, payload, arrival), now, out)


def _run_at(batch: PacketBatch, row: int) -> tuple[Address, int]:
    """Return the source of a packet, and the row after the last packet of its run of that source."""
    end = 0
    for source, count in batch.runs:
        end += count
        if row < end:
            return source, end
    raise IndexError(row)


def _rows(chosen: NDArray[np.bool_], first: int) -> NDArray[np.intp]:
    """Return the rows of a batch that are chosen among those from `first` on."""
    return np.flatnonzero(chosen) + first


def _reason_of(error: RemoteProtocolError) -> Reason:
    match error:
        case MalformedPacket(fault=Fault.TRUNCATED):
            return Reason.TRUNCATED
        case MalformedPacket(fault=Fault.BAD_MAGIC):
            return Reason.BAD_MAGIC
        case MalformedPacket():
            return Reason.MALFORMED
        case UnknownVersion():
            return Reason.UNKNOWN_VERSION
        case Replayed():
            return Reason.REPLAYED
        case _:
            return Reason.BAD_TAG


def _by_source(batch: PacketBatch, rows: NDArray[np.intp]) -> Iterator[tuple[Address, int, int]]:
    """Yield the sources of some rows, each with the range within `rows` that came from it."""
    sources, counts = zip(*batch.runs, strict=True)
    first = 0
    for source, last in zip(sources, np.searchsorted(rows, np.cumsum(counts)).tolist(), strict=True):
        if last > first:
            yield source, first, last
        first = last


def _sources(batch: PacketBatch, rows: Iterable[int]) -> Iterator[tuple[int, Address]]:
    """Yield ascending rows of a batch, each with the source of its packet."""
    runs, end, source = iter(batch.runs), 0, None
    for row in rows:
        while row >= end:
            source, count = next(runs)
            end += count
        yield row, source
