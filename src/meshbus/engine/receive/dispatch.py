"""Dispatch: decides by subprotocol id where a decrypted packet goes; the same for single packets and for batches.

    0                              plain events
    an id with a service here      the service; a profile id only if it was negotiated with the peer
    anything else is opaque        delivered with its id, never among plain events, or dropped and counted

Strict mode, the default, drops opaque packets below the vendor range, and those of the profile that were not
negotiated. Compatible mode delivers all of them, as a 0.23 node does (subprotocols.md §3). A 0.23 sender spends credit
on everything that its receiver would count as events, whatever the id, so it gets grants for such packets even if they
are dropped here (transport.md §14). Packets for other nodes never come here: engine/routes/forward.py forwards them,
whatever their id.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import IntEnum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from meshbus.engine.session.service import Row
from meshbus.engine.settings import OpaqueMode
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.subprotocol import FIRST_VENDOR_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNCREDITED = frozenset(
    {
        Subprotocol.MIGRATION,
        0x0F00,  # mesh database of the 0.23 node
        0x1000,  # fold announcements of the 0.23 node
    }
)
"""Ids without a service here that a 0.23 node handles without credit (transport.md §17, step 10).

For ids with a service, `credit` of the service table says the same."""


class Way(IntEnum):
    """Destination of packets."""

    EVENTS = auto()
    SERVICE = auto()
    OPAQUE = auto()
    DROP = auto()


class Disposition(NamedTuple):
    """What is done with the packets of one subprotocol."""

    way: Way
    owes_grant: bool
    """Whether the sender expects a grant for them."""
    reason: Reason | None = None
    """Why they are opaque or dropped."""


class Group(NamedTuple):
    """Packets of one batch with the same subprotocol id."""

    subprotocol_id: int
    rows: Rows
    """Index of the packets in the columns of the batch."""


Rows: TypeAlias = "slice | NDArray[np.intp]"

# transport.md §14: 0.23 nodes grant credit for plain events and for unknown ids, not for messages that they handle.
_PLAIN = Disposition(Way.EVENTS, owes_grant=True)
_ALL_PLAIN = (Group(Subprotocol.EVENTS, slice(None)),)
_SERVED = Disposition(Way.SERVICE, owes_grant=False)


class Dispatch:
    """The dispatch rules that follow from the service table of one node."""

    def __init__(self, table: Iterable[Row], mode: OpaqueMode = OpaqueMode.STRICT) -> None:
        rows = [row for row in table if row.id is not None]
        self._services = frozenset(row.id for row in rows if not row.profile)
        self._profile = frozenset(row.id for row in rows if row.profile)
        """Ids that must be negotiated with the peer."""
        self._uncredited = _UNCREDITED | {row.id for row in rows if not row.credit}
        self._mode = mode

    def disposition(self, subprotocol_id: int, negotiated: Container[int]) -> Disposition:
        """Return what to do with a packet from a peer with which this set was negotiated."""
        if subprotocol_id == Subprotocol.EVENTS:
            return _PLAIN
        if subprotocol_id in self._services or (subprotocol_id in self._profile and subprotocol_id in negotiated):
            return _SERVED
        reason = Reason.NOT_NEGOTIATED if subprotocol_id in self._profile else Reason.UNKNOWN_SUBPROTOCOL
        # A message of our own profile is never an application's, not even while both sides have yet to agree.
        ours = subprotocol_id < FIRST_VENDOR_ID or subprotocol_id in self._profile
        dropped = self._mode is OpaqueMode.STRICT and ours
        return Disposition(Way.DROP if dropped else Way.OPAQUE, subprotocol_id not in self._uncredited, reason)


def split(ids: NDArray[np.uint16]) -> Sequence[Group]:  # hot: bench_stream
    """Split a batch of one peer's packets into groups, in the order in which to handle them.

    Messages come first, in the order of arrival, grouped into runs of one id. A message may change the disposition of
    the next one, so look it up only when a group is handled. Plain events come last and all together, for speed; no
    message depends on them.
    """
    # The usual batch has plain events only, and needs no grouping.
    if not ids.any():
        return _ALL_PLAIN if len(ids) else ()
    places = np.flatnonzero(ids)
    found = ids[places].tolist()
    cuts = [0, *(n for n in range(1, len(found)) if found[n] != found[n - 1]), len(found)]
    groups = [Group(found[start], places[start:end]) for start, end in pairwise(cuts)]
    if len(places) < len(ids):
        groups.append(Group(Subprotocol.EVENTS, np.flatnonzero(ids == Subprotocol.EVENTS)))
    return groups
