"""Forwarding: judges packets for other nodes by their headers, and sends them to the next hop (mesh.md §2.1).

The checks, in this order; the first that fails drops the packet with a reason:

    1  the sender is a neighbor                        STRANGER, unless the node is an open relay
    2  it is not our own packet that came back         OWN
    3  there is a route to the destination             NO_ROUTE
    4  the next hop is not where the packet came from  RETURNING
    5  neither end was revoked                         REVOKED
    6  the verdict of the gateway                      engine/routes/boundary.py

A 0.23 node checks only ttl and route; checks 1, 2, 4 and 5 are stricter, and invisible to well-behaved peers.

The decision depends only on the routing header and a few fields of the inner header. So packets that agree in these
form a *run*, which is judged once, and the decision is kept until something that it rests on changes. All new runs of a
batch are judged together, as columns. A run is rewritten in place and sent as one train out of the receive buffer:
nothing is copied or decrypted. Only while the socket is full (`hold`) packets are copied into a fair queue, from which
the driver sends them with `release`.

If a recorder is set (engine/routes/tap.py), it gets everything that a decision depends on, before the packets change.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Address, Output, Train, place_of
from meshbus.engine.routes.boundary import Boundary
from meshbus.engine.routes.fairqueue import FairQueue
from meshbus.engine.routes.routing import RoutingTable
from meshbus.engine.routes.tap import Decided, Recorder, Tap
from meshbus.engine.session.service import Context
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.names.identity import routing_id
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import RECORDED, Reason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES, Flags
from meshbus.wire.headerbatch import HeaderBatch, read_headers
from meshbus.wire.route import RouteFlags
from meshbus.wire.routebatch import alike_run, count_hop, read_routes, signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_DECISIONS = 8192
"""Decisions kept, one per stream that crosses the relay. Our choice."""
RELEASE_PACKETS = 256
"""Packets taken from the fair queue by one `release`. Our choice: a few system calls of the driver."""

_ROUTE_PRIORITY, _PRIORITY = int(RouteFlags.PRIORITY), int(Flags.PRIORITY)


BOUNDS = (
    Bound(
        name="forward_decisions",
        what="decisions about streams that are forwarded",
        by=By.PEER,
        per_node=MAX_DECISIONS,
        full="the oldest goes",
        counter=forgotten("forward_decisions"),
    ),
)


class _Decision(NamedTuple):
    """The decision about all packets of one key."""

    reason: int
    """Code of the drop reason, or 0 to forward."""
    hop: Address
    judged: bool
    """Whether the gateway judged it, so that its verdicts must be counted."""
    until: float
    """Time until which the decision is valid if nothing changes."""
    decided: Decided
    """The decision and its inputs, for a recorder."""


class _Run(NamedTuple):
    """Consecutive packets with the same key, so that one decision applies to all."""

    first: int
    last: int
    key: tuple[Address, bytes]


class Forwarder:
    """Forwards the packets of one node's peers."""

    def __init__(self, context: Context, table: RoutingTable, boundary: Boundary, tap: Tap) -> None:
        """Start with an empty queue."""
        self.queue: FairQueue[tuple[Address, bytes]] = FairQueue()
        """Packets that wait while the socket is full."""
        self._identity = context.identity
        self._peers = context.peers
        self._table = table
        self._boundary = boundary
        self._revoked = context.revocations
        self._tap = tap
        self._counters = context.counters
        self._open = context.settings.open_relay
        self._held = False
        self._decisions = self._no_decisions()
        self._rests_on: tuple[object, ...] = ()
        """The versions of all state that the kept decisions depend on."""

    def forward(  # hot: bench_forward
        self,
        source: Address,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: int,
        last: int,
        now: float,
        out: Output,
    ) -> None:
        """Forward routed packets of one source: those with the indexes `first` to `last`, exclusive, of a buffer.

        The packets are changed in the buffer, and the output refers to it.
        """
        # Before anything else: a stranger must not cost more than other junk, nor fill the kept decisions.
        if self._tap.recorder is None and not self._open and self._peers.by_address(source) is None:
            self._counters.count(Reason.STRANGER, last - first)
            return
        # docs/decisions/0013: a decision is valid until one of these changes; then all of them are dropped.
        rests_on = self._table.version, self._peers.version, self._revoked.version, self._boundary.versions()
        if rests_on != self._rests_on:
            self._decisions, self._rests_on = self._no_decisions(), rests_on
        # The source is part of the key: whether a packet returns to its sender depends on it.
        place, view = place_of(source), data.data
        runs: list[_Run] = []
        missed: list[_Run] = []
        while first < last:
            count = alike_run(data, starts, lengths, first, last)
            begin = starts.item(first)
            run = _Run(first, first + count, (place, signature(view[begin : begin + ROUTE_BYTES + HEADER_BYTES])))
            first += count
            runs.append(run)
            known = self._decisions.get(run.key)
            if known is None or now > known.until:
                missed.append(run)
        if missed:
            self._decide(source, data, starts, lengths, missed, now)
        for run in runs:
            decision = self._decisions.get(run.key)
            if decision is None:  # evicted by other runs of this batch
                self._decide(source, data, starts, lengths, [run], now)
                decision = self._decisions.get(run.key)
                assert decision is not None
            self._carry_out(run, decision, data, starts, lengths, now, out)

    def _no_decisions(self) -> BoundedMap[tuple[Address, bytes], _Decision]:
        return BoundedMap(MAX_DECISIONS, self._counters.forgetting("forward_decisions"))

    def hold(self) -> None:
        """Queue packets from now on, because the socket is full."""
        self._held = True

    def release(self, out: Output) -> None:
        """Send some of the queued packets; when none is left, packets are sent directly again."""
        for _ in range(RELEASE_PACKETS):
            item = self.queue.pop()
            if item is None:
                self._held = False
                return
            out.send(*item)

    def _carry_out(
        self,
        run: _Run,
        decision: _Decision,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        now: float,
        out: Output,
    ) -> None:
        first, last, _ = run
        count, reason = last - first, decision.reason
        begin, size = starts.item(first), lengths.item(first)
        # The gateway counts packets, but judged only the first one of the run.
        if decision.judged:
            self._boundary.count(reason, count)
        if self._held and not reason:
            self._sent_on(self._wait(run, decision, data, starts, lengths, now), out)
            return
        recorder = self._tap.recorder
        # Before `count_hop`: a record shows the packets as they arrived.
        if recorder is not None:
            recorder.crossed(now, data, begin, size, count, decision.decided)
        if reason:
            self._counters.count(RECORDED[reason], count)
            return
        # In the receive buffer: the train refers to it, and nothing is copied.
        count_hop(data, starts, first, last)
        end = starts.item(last - 1) + lengths.item(last - 1)
        out.trains.append(Train(decision.hop, data.data[begin:end], size))
        self._sent_on(count, out)

    def _sent_on(self, count: int, out: Output) -> None:
        out.forwarded += count
        self._counters.add("transit", "forwarded", count)

    def _decide(
        self,
        source: Address,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        runs: list[_Run],
        now: float,
    ) -> None:
        """Judge runs together, each by its first packet, and keep the decisions."""
        rows = np.array([run.first for run in runs], np.intp)
        begins, sizes = starts[rows], lengths[rows]
        routes = read_routes(data, begins)
        # mesh.md §2.1: the body is never validated. What is not a valid header is blanked, and forwarded as well.
        headers = read_headers(data, begins + ROUTE_BYTES, sizes - ROUTE_BYTES).blanked()
        dests, senders = routes["dest_id"].tolist(), routes["src_id"].tolist()
        hops = [self._table.lookup(dest, now) for dest in dests]
        origins, streams = (headers.columns[name].tolist() for name in ("origin_hash", "stream_id"))
        reasons = [
            self._refuse(source, hop, sender) or self._refuse_revoked(dest, origin, stream)
            for hop, sender, dest, origin, stream in zip(hops, senders, dests, origins, streams, strict=True)
        ]
        asked = [number for number, reason in enumerate(reasons) if not reason]
        # Packets that are dropped already must not be counted or judged by the gateway.
        table = np.ascontiguousarray(headers.rows.reshape(-1, HEADER_BYTES)[asked]).reshape(-1)
        decisions = [
            _Decision(reason, None, False, self._table.stale_at(dest), self._tap.decided(reason, source, None))
            for reason, dest in zip(reasons, dests, strict=True)
        ]
        if asked:
            judged = routes[asked]
            ttl = np.ascontiguousarray(judged["ttl"])
            verdicts, sources, where, guard = self._boundary.judge(
                HeaderBatch(table, headers.status[asked]), judged["dest_id"], ttl, now
            )
            by_subnet = self._boundary.config is not None
            for row, number in enumerate(asked):
                reason, hop = verdicts.item(row), hops[number]
                subnets = (sources.item(row), where.item(row), guard.item(row)) if by_subnet else None
                until = min(
                    self._table.stale_at(dests[number]),
                    self._boundary.holds_until(origins[number], dests[number], streams[number]),
                )
                decided = self._tap.decided(reason, source, hop, subnets)
                decisions[number] = _Decision(reason, hop, True, until, decided)
        for run, decision in zip(runs, decisions, strict=True):
            self._decisions.put(run.key, decision)

    def _refuse(self, source: Address, hop: Address | None, sender: int) -> int:
        """Return the code of the reason to drop a packet before the gateway judges it, or 0.

        mesh.md §2.1 has none of these checks but the route: a 0.23 node lets ttl alone end a loop.
        """
        # docs/decisions/0013: forwarding for anyone would make the node an open relay.
        if not self._open and self._peers.by_address(source) is None:
            return Reason.STRANGER.code
        if sender == routing_id(self._identity.node_id):
            return Reason.OWN.code
        if hop is None:
            return Reason.NO_ROUTE.code
        return Reason.RETURNING.code if place_of(hop) == place_of(source) else 0

    def _refuse_revoked(self, dest: int, origin: int, stream: int) -> int:
        """Return the code of the reason to drop a packet because its origin or destination was revoked, or 0.

        Not by the sender of the routing header, which is half of a node id and not authenticated: another node may have
        the same half. A revoked neighbor has no session, so that its packets are those of a stranger.
        """
        revoked = self._revoked
        publication = bool(stream & PUBLISH_STREAM_BIT)
        cut = dest in revoked.nodes or origin in revoked.origins or (publication and dest in revoked.subscribers)
        return Reason.REVOKED.code if cut else 0

    def _wait(
        self,
        run: _Run,
        decision: _Decision,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        now: float,
    ) -> int:
        """Copy packets into the fair queue, and return for how many there was room."""
        begin, size = starts.item(run.first), lengths.item(run.first)
        end = starts.item(run.last - 1) + lengths.item(run.last - 1)
        recorder = self._tap.recorder
        # `count_hop` changes the packets before it is known which of them find room.
        arrived = None if recorder is None else data[begin:end].copy()
        count_hop(data, starts, run.first, run.last)
        crowded, view = [], data.data
        for start in range(begin, end, size):
            packet = bytes(view[start : min(start + size, end)])
            flags, priority = packet[ROUTE_BYTES + 3], packet[ROUTE_BYTES + 4]
            urgent = bool(packet[4] & _ROUTE_PRIORITY or flags & _PRIORITY)
            stream = packet[ROUTE_BYTES + 24 : ROUTE_BYTES + 40]  # session and stream
            # The three high bits of the priority: weights of 1 to 8.
            weight, item = 1 + (priority >> 5), (decision.hop, packet)
            crowded.append(not self.queue.push(stream, item, len(packet), weight=weight, urgent=urgent))
        self._counters.count(Reason.CROWDED, sum(crowded))
        if recorder is not None and arrived is not None:
            _tell_of_waiting(recorder, arrived, size, crowded, decision.decided, now)
        return len(crowded) - sum(crowded)


def _tell_of_waiting(
    recorder: Recorder, arrived: NDArray[np.uint8], size: int, crowded: list[bool], decided: Decided, now: float
) -> None:
    """Report queued packets to a recorder, and those for which there was no room."""
    at = 0
    for full, group in groupby(crowded):
        count = len(list(group))
        fate = msgspec.structs.replace(decided, reason=Reason.CROWDED.code) if full else decided
        recorder.crossed(now, arrived, at * size, size, count, fate)
        at += count
