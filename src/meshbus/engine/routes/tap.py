"""Tap: reports forwarded, delivered and dropped packets to a recorder, with everything that was known about them.

The code that decides about packets calls the `Tap`, a batch at a time. Without a recorder it does nothing.

Packets for other nodes are reported where they are in the receive buffer (`crossed`), before their hop is counted: a
copy of their headers would cost more than the record. Packets for this node are reported as columns (`Passed`). How
they arrived (`Arrival`) is kept separately, because a packet has lost its routing header when it is decrypted.

The engine does not store records: that is node/logs/recording.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np

from meshbus.engine.base.packets import Address, PacketBatch
from meshbus.engine.session.peer import PeerTable
from meshbus.policy.bound import Bound, By
from meshbus.policy.fate import Fate
from meshbus.policy.reason import Reason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.headerbatch import read_headers
from meshbus.wire.routebatch import ROUTE_DTYPE, read_routes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_U8, _U64 = np.dtype(np.uint8), np.dtype(np.uint64)
# 0 is never the id of a node (transport.md §6).
_NOBODY = np.zeros(1, _U64)

MAX_HOPS = 4_096
"""Neighbors whose arrays are kept. Our choice: as many as have a rate for pingwaves."""


BOUNDS = (
    Bound(
        name="recorded_hops",
        what="neighbors in the form that the recorder needs",
        by=By.MEMBER,
        per_node=MAX_HOPS,
        full="all are made again",
        counter="none: only a cache",
    ),
)


class Passed(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Packets that were decided together, and the inputs of the decision.

    The recorder may read the arrays until it returns, and must not change them.
    """

    at: float
    headers: NDArray[np.void]
    """Headers as they arrived."""
    routes: NDArray[np.void] | None
    """Routing headers as they arrived; None for packets without."""
    here: bool
    """Whether the packets were for this node."""
    reasons: NDArray[np.uint8]
    """Codes of policy/reason.py, one for each packet or one for all; 0 for packets that were not dropped."""
    previous_hops: NDArray[np.uint64]
    """Neighbors that the packets came from, one for each or one for all; 0 if unknown."""
    next_hops: NDArray[np.uint64]
    """Neighbors that forwarded packets go to, one for each or one for all; 0 for none, or one without a session."""
    sources: NDArray[np.uint32] | None = None
    dests: NDArray[np.uint32] | None = None
    """Subnets used by the gateway, one for each packet or one for all; None if it did not judge by subnets."""
    guard: NDArray[np.uint8] | None = None
    """AuthVerdict codes, one for each packet or one for all; boundary.NOT_ASKED where the guard was not consulted."""
    policy: NDArray[np.uint64]
    """The policy of the gateway, as its kernel reads it; a new array after every change."""

    @property
    def fates(self) -> NDArray[np.uint8]:
        """The Fate code of each packet."""
        kept = Fate.DELIVERED if self.here else Fate.FORWARDED
        fates = np.where(self.reasons == 0, _U8.type(kept), _U8.type(Fate.DROPPED))
        return np.broadcast_to(fates, len(self.headers))


class Decided(msgspec.Struct, frozen=True, eq=False):
    """A decision about packets for other nodes; all packets that it applies to share the object."""

    reason: int
    """Code of policy/reason.py; 0 for forwarded packets."""
    previous_hop: int
    next_hop: int
    """Neighbors; 0 if unknown."""
    source: int
    dest: int
    guard: int
    by_subnet: bool
    """Whether a gateway judged by subnets, so that `source`, `dest` and `guard` are meaningful."""
    policy: NDArray[np.uint64]
    """See `Passed.policy`."""


class Recorder(Protocol):
    """Receives the reports of a tap."""

    def passed(self, told: Passed) -> None:
        """Record packets given as columns."""

    def crossed(self, at: float, data: NDArray[np.uint8], begin: int, size: int, count: int, decided: Decided) -> None:
        """Record packets for other nodes with one decision, as they arrived: contiguous in the receive buffer.

        The first one, with its routing header, is at `begin`, and each next one `size` bytes later. The recorder may
        read the buffer until it returns, and must not change it. The arguments are plain values because this is called
        once for every train.
        """


class InColumns:
    """A recorder that converts every report to columns, for receivers that prefer simplicity to speed."""

    def __init__(self, take: Callable[[Passed], None]) -> None:
        self._take = take

    def passed(self, told: Passed) -> None:
        """Pass the columns on."""
        self._take(told)

    def crossed(self, at: float, data: NDArray[np.uint8], begin: int, size: int, count: int, decided: Decided) -> None:
        """Convert the packets to columns, which share no memory with the buffer, and pass them on."""
        starts = np.arange(begin, begin + size * count, size)
        judged = decided.by_subnet
        self._take(
            Passed(
                at=at,
                headers=read_headers(data, starts + ROUTE_BYTES, np.full(count, HEADER_BYTES)).blanked().columns,
                routes=read_routes(data, starts),
                here=False,
                reasons=np.array([decided.reason], _U8),
                previous_hops=np.array([decided.previous_hop], _U64),
                next_hops=np.array([decided.next_hop], _U64),
                sources=np.array([decided.source], np.uint32) if judged else None,
                dests=np.array([decided.dest], np.uint32) if judged else None,
                guard=np.array([decided.guard], _U8) if judged else None,
                policy=decided.policy,
            )
        )


class Arrival(NamedTuple):
    """How packets for this node arrived."""

    previous_hops: NDArray[np.uint64]
    """One for each packet, or one for all."""
    routes: NDArray[np.void] | None

    def only(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Arrival:
        """Return the arrival of some of the packets."""
        hops = self.previous_hops if len(self.previous_hops) == 1 else self.previous_hops[rows]
        return Arrival(hops, None if self.routes is None else self.routes[rows])


class Tap:
    """Reports packets to a recorder, if one is set."""

    def __init__(self, peers: PeerTable, policy: Callable[[], NDArray[np.uint64]]) -> None:
        """Start without a recorder; `policy` returns the current policy of the gateway."""
        self.recorder: Recorder | None = None
        self._peers = peers
        self._policy = policy
        self._hops: dict[int, NDArray[np.uint64]] = {}
        """Arrays of one node id each, by neighbor: looking one up is cheaper than making it."""
        self._last: tuple[Sequence[tuple[Address, int]], NDArray[np.uint64]] | None = None
        """The sources of the last batch, and the previous hop of each of its packets."""

    def hop(self, address: Address | None) -> NDArray[np.uint64]:
        """Return the neighbor at an address as an array of one node id, 0 if unknown."""
        neighbor = None if address is None else self._peers.by_address(address)
        if neighbor is None:
            return _NOBODY
        known = self._hops.get(neighbor.node_id)
        if known is None:
            # Only a cache: what is dropped is made again when it is needed.
            if len(self._hops) >= MAX_HOPS:
                self._hops.clear()
            known = self._hops[neighbor.node_id] = np.array((neighbor.node_id,), _U64)
        return known

    def decided(
        self,
        reason: int,
        source: Address,
        hop: Address | None,
        judged: tuple[int, int, int] | None = None,
    ) -> Decided:
        """Return the record of a decision; `judged` is the source subnet, the destination subnet and the guard's code."""
        subnets = judged or (0, 0, 0)
        ids = int(self.hop(source)[0]), int(self.hop(hop)[0])
        return Decided(reason, *ids, *subnets, judged is not None, self._policy())

    def arrival(self, batch: PacketBatch, starts: NDArray[np.int64], rows: NDArray[np.intp] | slice) -> Arrival | None:
        """Return how the packets `rows` of a batch, which begin at `starts`, arrived; None without a recorder."""
        if self.recorder is None:
            return None
        hops = self.hop(batch.runs[0][0]) if len(batch.runs) == 1 else self._hops_of(batch)[rows]
        return Arrival(hops, read_routes(batch.data, starts - ROUTE_BYTES) if batch.routed else None)

    def _hops_of(self, batch: PacketBatch) -> NDArray[np.uint64]:
        """Return the previous hop of each packet of a batch; found once per batch, however many sessions are in it."""
        if self._last is None or self._last[0] is not batch.runs:
            each = [np.repeat(self.hop(source), count) for source, count in batch.runs]
            self._last = batch.runs, np.concatenate(each)
        return self._last[1]

    def arrival_of(self, source: Address, route: memoryview | None) -> Arrival:
        """Return how one packet arrived; `route` is its routing header, if it had one."""
        return Arrival(self.hop(source), None if route is None else _columns(route, ROUTE_BYTES, ROUTE_DTYPE))

    def refused(self, header: memoryview, arrival: Arrival | None, reason: Reason, now: float) -> None:
        """Report one packet for this node that was dropped."""
        if arrival is not None:
            self.arrived(_columns(header, HEADER_BYTES, HEADER_DTYPE), arrival, np.full(1, reason.code, _U8), now)

    def arrived(
        self, headers: NDArray[np.void], arrival: Arrival | None, reasons: NDArray[np.uint8], now: float
    ) -> None:
        """Report packets for this node; those with a reason were dropped."""
        if self.recorder is None or arrival is None or not len(headers):
            return
        self.recorder.passed(
            Passed(
                at=now,
                headers=headers,
                routes=arrival.routes,
                here=True,
                reasons=reasons,
                previous_hops=arrival.previous_hops,
                next_hops=_NOBODY,
                policy=self._policy(),
            )
        )


def _columns(packet: memoryview, size: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.frombuffer(bytearray(packet[:size]), dtype)
