"""Packets for others: judged by their headers, counted on their way, and sent to the next hop as they came.

    from a neighbor? → not ours coming back → a next hop, other than where it came from → the gateway's verdict

A batch is judged as columns and rewritten where it lies: what leaves is the receive buffer itself, cut into trains, so
nothing is copied or decrypted. Only while the socket takes no more (`hold`) packets are copied into a fair queue, from
which the driver takes them by `release`. Every drop has a reason and a counter.

A recorder, where one is set, is handed everything that a verdict depended on; without one nothing is kept for it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.engine.boundary import Boundary
from meshbus.engine.counters import Counters
from meshbus.engine.fairqueue import FairQueue
from meshbus.engine.packets import Address, Output, Train, place_of
from meshbus.engine.peer import PeerTable
from meshbus.engine.routing import RoutingTable
from meshbus.names.identity import routing_id
from meshbus.policy.columns import HeaderBatch, HeaderStatus, read_headers
from meshbus.policy.transit import count_hop
from meshbus.policy.verdict import DropReason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES, Flags
from meshbus.wire.route import RouteFlags

if TYPE_CHECKING:
    from numpy.typing import NDArray

RELEASE_PACKETS = 256
"""Packets that leave the fair queue at once."""

_U8, _U64 = np.dtype(np.uint8), np.dtype(np.uint64)
_ROUTE_PRIORITY, _PRIORITY = int(RouteFlags.PRIORITY), int(Flags.PRIORITY)


class TransitReason(IntEnum):
    """Why a packet was not forwarded, beside the gateway's own reasons; the codes do not meet theirs."""

    NO_ROUTE = 16
    """No neighbor leads to its destination."""
    OWN = 17
    """We sent it: it came back."""
    STRANGER = 18
    """Whoever sent it is no peer of ours."""
    RETURNING = 19
    """Its next hop is where it came from."""
    CROWDED = 20
    """It had to wait, and there was no room."""


class Fate(IntEnum):
    """What became of a packet, as recorders write it down."""

    FORWARDED = 0
    DELIVERED = 1
    DROPPED = 2


class Passed(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Packets that had one fate after another, and everything that was known when it was decided."""

    at: float
    headers: NDArray[np.void]
    """As they arrived."""
    routes: NDArray[np.void] | None
    """Their routing headers, as they arrived; None for packets that came without."""
    fates: NDArray[np.uint8]
    reasons: NDArray[np.uint8]
    """DropReason or TransitReason codes; 0 where a packet was not dropped."""
    previous_hop: int | None
    """The neighbor they came from, if it is one."""
    next_hops: NDArray[np.uint64]
    """The neighbor each was sent to; 0 for none, or for one without a session."""
    sources: NDArray[np.uint32] | None
    dests: NDArray[np.uint32] | None
    """Subnets as judged; None when nothing was judged by them."""
    guard: NDArray[np.uint8] | None
    """AuthVerdict codes, boundary.NOT_ASKED where the guard played no part."""
    policy_version: int


Recorder = Callable[[Passed], None]

_FORWARDED = ("transit", "forwarded")
_COUNTERS = {int(reason): ("drop", f"transit_{reason.name.lower()}") for reason in (*DropReason, *TransitReason)}


class Forwarder:
    """Forwards the packets of one node's peers."""

    def __init__(
        self,
        node_id: int,
        *,
        peers: PeerTable,
        table: RoutingTable,
        boundary: Boundary,
        counters: Counters,
        open_relay: bool = False,
    ) -> None:
        """Set up; an open relay forwards for everybody, as 0.23 nodes do."""
        self.recorder: Recorder | None = None
        self.queue: FairQueue[tuple[Address, bytes]] = FairQueue()
        """What waits while the socket takes no more."""
        self._routing_id = np.uint32(routing_id(node_id))
        self._peers = peers
        self._table = table
        self._boundary = boundary
        self._counters = counters
        self._open = open_relay
        self._held = False

    def forward(  # hot: bench_forward
        self,
        source: Address,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        routes: NDArray[np.void],
        now: float,
        out: Output,
    ) -> None:
        """Take routed packets of one source that are for others, and where each begins in a buffer.

        The buffer is written to, and what is put into the output is part of it.
        """
        headers = _readable(read_headers(data, starts + ROUTE_BYTES, lengths - ROUTE_BYTES))
        dests = routes["dest_id"]
        neighbor = self._peers.by_address(source)
        if neighbor is None and not self._open:
            reasons = np.full(len(starts), TransitReason.STRANGER, _U8)
            hops: dict[int, Address | None] = {}
        else:
            reasons, hops = self._find_ways(source, dests, now)
            own = routes["src_id"] == self._routing_id
            if own.any():
                reasons[own] = TransitReason.OWN
        record = None if self.recorder is None else _Record(len(starts))
        self._judge(headers, routes, reasons, now, record)
        dropped = np.count_nonzero(reasons)
        if dropped < len(reasons):
            count_hop(data, starts, reasons)
            self._send(data, starts, lengths, headers, routes, reasons, hops, out)
        self._count(reasons)
        if record is not None and self.recorder is not None:
            previous = None if neighbor is None else neighbor.node_id
            self.recorder(self._passed(headers, routes, reasons, hops, previous, now, record))

    def hold(self) -> None:
        """Let packets wait from now on: the socket is full."""
        self._held = True

    def release(self, out: Output) -> None:
        """Send some of what waits; when nothing is left, packets no longer wait."""
        waiting: dict[Address, list[bytes]] = {}
        for _ in range(RELEASE_PACKETS):
            item = self.queue.pop()
            if item is None:
                self._held = False
                break
            waiting.setdefault(item[0], []).append(item[1])
        for address, datagrams in waiting.items():
            out.trains += [Train(address, datagram, len(datagram)) for datagram in datagrams]

    def _find_ways(
        self, source: Address, dests: NDArray[np.uint64], now: float
    ) -> tuple[NDArray[np.uint8], dict[int, Address | None]]:
        """Find the next hop of each destination, and the packets that have none."""
        reasons = np.zeros(len(dests), _U8)
        first = dests[0]
        alike = len(dests) == 1 or bool((dests == first).all())
        hops: dict[int, Address | None] = {}
        for dest in [int(first)] if alike else dict.fromkeys(dests.tolist()):
            hop = hops[dest] = self._table.lookup(dest, now)
            if hop is not None and place_of(hop) != place_of(source):
                continue
            reason = TransitReason.NO_ROUTE if hop is None else TransitReason.RETURNING
            reasons[slice(None) if alike else dests == np.uint64(dest)] = reason
        return reasons, hops

    def _judge(
        self,
        headers: HeaderBatch,
        routes: NDArray[np.void],
        reasons: NDArray[np.uint8],
        now: float,
        record: _Record | None,
    ) -> None:
        """Let the gateway judge what has a way, and enter its verdicts."""
        rows: slice | NDArray[np.intp] = slice(None)
        if reasons.any():
            rows = np.flatnonzero(reasons == 0)
            if not len(rows):
                return
            table = headers.rows.reshape(-1, HEADER_BYTES)[rows]
            headers = HeaderBatch(np.ascontiguousarray(table).reshape(-1), headers.status[rows])
        judged = routes[rows]
        ttl = np.ascontiguousarray(judged["ttl"])
        judgment = self._boundary.judge(headers, judged["dest_id"], ttl, now, guard=record is not None)
        reasons[rows] = judgment.verdicts
        if record is not None and self._boundary.config is not None:
            record.sources[rows], record.dests[rows] = judgment.sources, judgment.dests
            if judgment.guard is not None:
                record.guard[rows] = judgment.guard
            record.judged = True

    def _send(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        headers: HeaderBatch,
        routes: NDArray[np.void],
        reasons: NDArray[np.uint8],
        hops: dict[int, Address | None],
        out: Output,
    ) -> None:
        """Cut what goes on into trains, or let it wait."""
        going = np.flatnonzero(reasons == 0)
        begins, sizes = starts[going], lengths[going]
        dests = routes["dest_id"][going]
        view = data.data
        if self._held:
            self._wait(view, begins, sizes, headers.columns[going], routes[going], hops, going, reasons)
            return
        ends = begins + sizes
        # A train is one piece of the buffer: equal datagrams for one neighbor, of which the last may be shorter.
        breaks = begins[1:] != ends[:-1]
        breaks |= sizes[1:] != sizes[:-1]
        if len(hops) > 1:
            breaks |= dests[1:] != dests[:-1]
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(going)]
        pieces = [
            (begins.item(first), ends.item(last - 1), sizes.item(first), dests.item(first))
            for first, last in pairwise(edges)
        ]
        number = 0
        while number < len(pieces):
            begin, end, size, dest = pieces[number]
            number += 1
            if number < len(pieces):
                follower = pieces[number]
                lone = follower[1] - follower[0] == follower[2]
                if lone and follower[0] == end and follower[2] < size and follower[3] == dest:
                    end = follower[1]
                    number += 1
            out.trains.append(Train(hops[dest], view[begin:end], size))

    def _wait(
        self,
        view: memoryview,
        begins: NDArray[np.int64],
        sizes: NDArray[np.int64],
        headers: NDArray[np.void],
        routes: NDArray[np.void],
        hops: dict[int, Address | None],
        rows: NDArray[np.intp],
        reasons: NDArray[np.uint8],
    ) -> None:
        """Copy packets into the fair queue; those without room get their reason."""
        for row, begin, size, header, route in zip(
            rows.tolist(), begins.tolist(), sizes.tolist(), headers, routes, strict=True
        ):
            stream = int(header["session_id"]), int(header["stream_id"])
            urgent = bool(route["flags"] & _ROUTE_PRIORITY or header["flags"] & _PRIORITY)
            packet = hops[int(route["dest_id"])], bytes(view[begin : begin + size])
            weight = 1 + (int(header["priority"]) >> 5)
            if not self.queue.push(stream, packet, size, weight=weight, urgent=urgent):
                reasons[row] = TransitReason.CROWDED

    def _count(self, reasons: NDArray[np.uint8]) -> None:
        first = reasons.item(0)
        counts = {first: len(reasons)}
        if len(reasons) > 1 and not (reasons == first).all():
            counts = dict(enumerate(np.bincount(reasons).tolist()))
        for reason, count in counts.items():
            what, why = _COUNTERS.get(reason, _FORWARDED)
            self._counters.add(what, why, count)

    def _passed(
        self,
        headers: HeaderBatch,
        routes: NDArray[np.void],
        reasons: NDArray[np.uint8],
        hops: dict[int, Address | None],
        previous: int | None,
        now: float,
        record: _Record,
    ) -> Passed:
        next_hops = np.zeros(len(reasons), _U64)
        for dest, hop in hops.items():
            neighbor = None if hop is None else self._peers.by_address(hop)
            if neighbor is not None:
                next_hops[(routes["dest_id"] == np.uint64(dest)) & (reasons == 0)] = neighbor.node_id
        return Passed(
            at=now,
            headers=headers.columns,
            routes=routes,
            fates=np.where(reasons == 0, np.uint8(Fate.FORWARDED), np.uint8(Fate.DROPPED)),
            reasons=reasons,
            previous_hop=previous,
            next_hops=next_hops,
            sources=record.sources if record.judged else None,
            dests=record.dests if record.judged else None,
            guard=record.guard if record.judged else None,
            policy_version=self._boundary.version,
        )


class _Record:
    """What a recorder wants to know about a batch and nobody else does."""

    __slots__ = ("dests", "guard", "judged", "sources")

    def __init__(self, count: int) -> None:
        self.sources = np.zeros(count, np.uint32)
        self.dests = np.zeros(count, np.uint32)
        self.guard = np.full(count, 0xFF, _U8)
        self.judged = False


def _readable(headers: HeaderBatch) -> HeaderBatch:
    """Blank what is no header, so that nothing is read into it: such packets are forwarded, hops counted."""
    status = headers.status
    if not status.any():
        return headers
    junk = (status == HeaderStatus.BAD_MAGIC) | (status == HeaderStatus.BAD_VERSION)
    headers.rows.reshape(-1, HEADER_BYTES)[junk] = 0
    return headers
