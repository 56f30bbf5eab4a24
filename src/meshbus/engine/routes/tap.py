"""What a flight recorder is told: packets that were forwarded, delivered or dropped, and all that was known about them.

Whoever decides about packets tells the `Tap`, a batch at a time, and only while a recorder is set: without one
nothing is kept for it. Packets for others are told where they lie in the receive buffer (`crossed`), before their hop is
counted, because a copy of their headers costs more than the record of them. Those for this node are told as columns
(`Passed`); how they arrived (`Arrival`) is kept apart from what they are, because a packet that is opened here has lost
its routing header by then. Where the record goes is no business of the engine: node/recording.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np

from meshbus.engine.base.packets import Address, PacketBatch
from meshbus.engine.session.peer import PeerTable
from meshbus.policy.fate import Fate
from meshbus.policy.reason import Reason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.headerbatch import read_headers
from meshbus.wire.routebatch import ROUTE_DTYPE, read_routes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_U8, _U64 = np.dtype(np.uint8), np.dtype(np.uint64)
_NOBODY = np.zeros(1, _U64)

MAX_HOPS = 4_096
"""Neighbors whose arrays are kept."""


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
    """Codes of policy/reason.py, one each or one for all; 0 where a packet was not dropped."""
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


class Decided(msgspec.Struct, frozen=True, eq=False):
    """What was decided about packets of one stream for others; the same object for all that follow one decision."""

    reason: int
    """A code of policy/reason.py; 0 for packets that are forwarded."""
    previous_hop: int
    next_hop: int
    """Neighbors; 0 for nobody we know."""
    source: int
    dest: int
    guard: int
    by_subnet: bool
    """Whether the subnets, and the guard's answer, were those of a gateway's judgment."""
    policy: NDArray[np.uint64]
    """See `Passed.policy`."""


class Recorder(Protocol):
    """What a tap tells."""

    def passed(self, told: Passed) -> None:
        """Take packets as columns."""

    def crossed(self, at: float, data: NDArray[np.uint8], begin: int, size: int, count: int, decided: Decided) -> None:
        """Take packets for others that fared alike, as they arrived: one behind the other in the receive buffer.

        The first begins at `begin`, with its routing header, and it is `size` bytes to the next. The buffer is the
        recorder's until it returns; it must not change it. Plain arguments, because this is once for every train.
        """


class InColumns:
    """A recorder that hands on columns only, to whoever has the time to wait for them."""

    def __init__(self, take: Callable[[Passed], None]) -> None:
        self._take = take

    def passed(self, told: Passed) -> None:
        """Hand them on as they are."""
        self._take(told)

    def crossed(self, at: float, data: NDArray[np.uint8], begin: int, size: int, count: int, decided: Decided) -> None:
        """Return the same as columns, which share no memory with the buffer."""
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
    """How packets for this node came."""

    previous_hops: NDArray[np.uint64]
    """One each, or one for all."""
    routes: NDArray[np.void] | None

    def only(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Arrival:
        """Return that of some of the packets."""
        hops = self.previous_hops if len(self.previous_hops) == 1 else self.previous_hops[rows]
        return Arrival(hops, None if self.routes is None else self.routes[rows])


class Tap:
    """Tells a recorder, while there is one."""

    def __init__(self, peers: PeerTable, policy: Callable[[], NDArray[np.uint64]]) -> None:
        """Set up; `policy` gives what is in force."""
        self.recorder: Recorder | None = None
        self._peers = peers
        self._policy = policy
        self._hops: dict[int, NDArray[np.uint64]] = {}
        """Node ids of neighbors as arrays, which cost more to make than to find."""

    def hop(self, address: Address | None) -> NDArray[np.uint64]:
        """Return the neighbor at an address, as recorders are told it."""
        neighbor = None if address is None else self._peers.by_address(address)
        if neighbor is None:
            return _NOBODY
        known = self._hops.get(neighbor.node_id)
        if known is None:
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
        """Note a decision, once for all packets that it is about; `judged` is source, destination and guard's answer."""
        subnets = judged or (0, 0, 0)
        ids = int(self.hop(source)[0]), int(self.hop(hop)[0])
        return Decided(reason, *ids, *subnets, judged is not None, self._policy())

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

    def refused(self, header: memoryview, arrival: Arrival | None, reason: Reason, now: float) -> None:
        """Tell about one packet for this node that it did not take."""
        if arrival is not None:
            self.arrived(_columns(header, HEADER_BYTES, HEADER_DTYPE), arrival, np.full(1, reason.code, _U8), now)

    def arrived(
        self, headers: NDArray[np.void], arrival: Arrival | None, reasons: NDArray[np.uint8], now: float
    ) -> None:
        """Tell about packets for this node; those with a reason were dropped."""
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
