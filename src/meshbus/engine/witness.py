"""What a flight recorder is told: packets that were forwarded, delivered or dropped, and all that was known about them.

Whoever decides about packets tells the `Witness`, a batch at a time, and only while a recorder is set: without one
nothing is kept for it. How packets arrived (`Arrival`) is kept apart from what they are, because a packet that is
opened here has lost its routing header by then. Where the record goes is no business of the engine: node/recording.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from meshbus.engine.packets import Address, PacketBatch
from meshbus.engine.peer import PeerTable
from meshbus.policy.fate import ArrivalReason, Fate, TransitReason
from meshbus.policy.transit import ROUTE_DTYPE, read_routes
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_U8, _U64 = np.dtype(np.uint8), np.dtype(np.uint64)
_NOBODY = np.zeros(1, _U64)

MAX_KEPT = 4_096
"""Neighbors, and decisions, whose arrays are kept."""


class Passed(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Packets about which something was decided together, and everything that was known then.

    The arrays are the recorder's until it returns; it must not change them.
    """

    at: float
    headers: NDArray[np.void]
    """As they arrived."""
    routes: NDArray[np.void] | None
    """Their routing headers, as they arrived; None for packets that came without."""
    here: bool
    """Whether they were for this node."""
    reasons: NDArray[np.uint8]
    """Codes of policy/fate.py, one each or one for all; 0 where a packet was not dropped."""
    previous_hops: NDArray[np.uint64]
    """The neighbor each came from, or one number for all of them; 0 for nobody we know."""
    next_hops: NDArray[np.uint64]
    """The neighbor each goes to if it is forwarded, or one number for all; 0 for none, or one without a session."""
    sources: NDArray[np.uint32] | None = None
    dests: NDArray[np.uint32] | None = None
    """Subnets as judged, one each or one for all; None when nothing was judged by them."""
    guard: NDArray[np.uint8] | None = None
    """AuthVerdict codes, the same; boundary.NOT_ASKED where the guard played no part."""
    policy: NDArray[np.uint64]
    """The gateway's policy in force, as its kernel reads it; another array after every change."""

    @property
    def fates(self) -> NDArray[np.uint8]:
        """What became of each."""
        kept = Fate.DELIVERED if self.here else Fate.FORWARDED
        fates = np.where(self.reasons == 0, _U8.type(kept), _U8.type(Fate.DROPPED))
        return np.broadcast_to(fates, len(self.headers))


Recorder = Callable[[Passed], None]


class Arrival(NamedTuple):
    """How packets for this node came."""

    previous_hops: NDArray[np.uint64]
    """One each, or one for all."""
    routes: NDArray[np.void] | None

    def only(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Arrival:
        """Give that of some of the packets."""
        hops = self.previous_hops if len(self.previous_hops) == 1 else self.previous_hops[rows]
        return Arrival(hops, None if self.routes is None else self.routes[rows])


class Alike(NamedTuple):
    """What was decided about packets that fare alike."""

    reason: int
    source: int
    dest: int
    guard: int
    by_subnet: bool
    """Whether the subnets were those of a gateway's judgment."""


class _AsArrays(NamedTuple):
    reasons: NDArray[np.uint8]
    sources: NDArray[np.uint32] | None
    dests: NDArray[np.uint32] | None
    guard: NDArray[np.uint8] | None


class Witness:
    """Tells a recorder, while there is one."""

    def __init__(self, peers: PeerTable, policy: Callable[[], NDArray[np.uint64]]) -> None:
        """Set up; `policy` gives what is in force."""
        self.recorder: Recorder | None = None
        self._peers = peers
        self._policy = policy
        self._hops: dict[int, NDArray[np.uint64]] = {}
        """Node ids of neighbors as arrays, which cost more to make than to find."""
        self._alike: dict[Alike, _AsArrays] = {}
        """The same for decisions."""

    def hop(self, address: Address | None) -> NDArray[np.uint64]:
        """Give the neighbor at an address, as recorders are told it."""
        neighbor = None if address is None else self._peers.by_address(address)
        if neighbor is None:
            return _NOBODY
        known = self._hops.get(neighbor.node_id)
        if known is None:
            if len(self._hops) >= MAX_KEPT:
                self._hops.clear()
            known = self._hops[neighbor.node_id] = np.array((neighbor.node_id,), _U64)
        return known

    def forwarded(
        self,
        headers: NDArray[np.void],
        routes: NDArray[np.void],
        source: Address,
        hop: Address,
        decided: Alike,
        crowded: list[bool],
        now: float,
    ) -> None:
        """Tell about packets for others that fared alike, but for those that found no room to wait."""
        if self.recorder is None:
            return
        reasons, sources, dests, guard = self._arrays_of(decided)
        if any(crowded):
            reasons = np.where(crowded, _U8.type(TransitReason.CROWDED), _U8.type(0))
        self.recorder(
            Passed(
                at=now,
                headers=headers,
                routes=routes,
                here=False,
                reasons=reasons,
                previous_hops=self.hop(source),
                next_hops=self.hop(hop),
                sources=sources,
                dests=dests,
                guard=guard,
                policy=self._policy(),
            )
        )

    def _arrays_of(self, decided: Alike) -> _AsArrays:
        known = self._alike.get(decided)
        if known is None:
            if len(self._alike) >= MAX_KEPT:
                self._alike.clear()
            subnets = [np.array((subnet,), np.uint32) for subnet in (decided.source, decided.dest)]
            known = self._alike[decided] = _AsArrays(
                np.array((decided.reason,), _U8),
                subnets[0] if decided.by_subnet else None,
                subnets[1] if decided.by_subnet else None,
                np.array((decided.guard,), _U8) if decided.by_subnet else None,
            )
        return known

    def arrival(self, batch: PacketBatch, starts: NDArray[np.int64], rows: NDArray[np.intp] | slice) -> Arrival | None:
        """Take note of how packets of a batch came, those that start so and are these rows; None without a recorder."""
        if self.recorder is None:
            return None
        if len(batch.runs) == 1:
            hops = self.hop(batch.runs[0][0])
        else:
            each = [(self.hop(source), count) for source, count in batch.runs]
            hops = np.concatenate([np.repeat(hop, count) for hop, count in each])[rows]
        return Arrival(hops, read_routes(batch.data, starts - ROUTE_BYTES) if batch.routed else None)

    def arrival_of(self, source: Address, route: memoryview | None) -> Arrival:
        """Do the same for one packet, with its routing header if it had one."""
        return Arrival(self.hop(source), None if route is None else _columns(route, ROUTE_BYTES, ROUTE_DTYPE))

    def refused(self, header: memoryview, arrival: Arrival | None, reason: ArrivalReason, now: float) -> None:
        """Tell about one packet for this node that it did not take."""
        if arrival is not None:
            self.arrived(_columns(header, HEADER_BYTES, HEADER_DTYPE), arrival, np.full(1, reason, _U8), now)

    def arrived(
        self, headers: NDArray[np.void], arrival: Arrival | None, reasons: NDArray[np.uint8], now: float
    ) -> None:
        """Tell about packets for this node; those with a reason were dropped."""
        if self.recorder is None or arrival is None or not len(headers):
            return
        self.recorder(
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
