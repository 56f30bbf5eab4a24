"""Where a decrypted packet goes, by its subprotocol id: one rule for single packets and for batches.

    0                              plain events
    an id with a service here      the service; a profile id only when it was negotiated with the peer
    anything else is opaque        delivered under its own id, never among plain events, or dropped and counted

Strict mode, the default, drops opaque packets below the vendor range; compatible mode delivers them all, as a 0.23 node
does. What a 0.23 sender counts as events costs it credit, whatever the id, so it is owed grants for them even when we
drop them. Packets for other nodes never come here: they are forwarded as they are, whatever their id.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import IntEnum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from meshbus.engine.settings import OpaqueMode
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.subprotocol import FIRST_VENDOR_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_CREDIT = frozenset(
    {
        Subprotocol.MIGRATION,
        Subprotocol.MEMBERSHIP,
        Subprotocol.STREAM_WINDOW,
        Subprotocol.CAPABILITY,
        Subprotocol.REFLEX,
        Subprotocol.RENDEZVOUS,
        Subprotocol.REDEX,
        0x0F00,  # the reference's database queries
        0x1000,  # the reference's fold announcements
    }
)
"""Ids that a 0.23 node takes off the event path: no credit is used, no grant is owed."""


class Way(IntEnum):
    """Where packets go."""

    EVENTS = auto()
    SERVICE = auto()
    OPAQUE = auto()
    DROP = auto()


class Disposition(NamedTuple):
    """What is done with the packets of one subprotocol."""

    way: Way
    owes_grant: bool
    """Whether the sender is owed credit for them."""
    reason: Reason | None = None
    """Why they are opaque or dropped."""


class Group(NamedTuple):
    """Packets of one batch with one id."""

    subprotocol_id: int
    rows: Rows
    """Index the columns of the batch with it."""


Rows: TypeAlias = "slice | NDArray[np.intp]"

_PLAIN = Disposition(Way.EVENTS, owes_grant=True)
_ALL_PLAIN = (Group(Subprotocol.EVENTS, slice(None)),)
_SERVED = Disposition(Way.SERVICE, owes_grant=False)


class Dispatch:
    """The table of services of one node."""

    def __init__(
        self, services: Iterable[int], profile: Iterable[int] = (), *, mode: OpaqueMode = OpaqueMode.STRICT
    ) -> None:
        self._services = frozenset(services)
        self._profile = frozenset(profile)
        """Those that need to be negotiated with the peer."""
        self._mode = mode

    def disposition(self, subprotocol_id: int, negotiated: Container[int]) -> Disposition:
        """Return what to do with a packet from a peer with which this set was negotiated."""
        if subprotocol_id == Subprotocol.EVENTS:
            return _PLAIN
        if subprotocol_id in self._services or (subprotocol_id in self._profile and subprotocol_id in negotiated):
            return _SERVED
        reason = Reason.NOT_NEGOTIATED if subprotocol_id in self._profile else Reason.UNKNOWN_SUBPROTOCOL
        dropped = self._mode is OpaqueMode.STRICT and subprotocol_id < FIRST_VENDOR_ID
        return Disposition(Way.DROP if dropped else Way.OPAQUE, subprotocol_id not in NO_CREDIT, reason)


def split(ids: NDArray[np.uint16]) -> Sequence[Group]:  # hot: bench_stream
    """Part a batch of one peer's packets, in the order in which they are to be handled.

    Messages come first, as they arrived, a run of one id at a time: one may change the disposition of the next, so ask
    for it when its turn comes. Plain events come last and together, for speed; no message needs them to come first.
    """
    if not ids.any():
        return _ALL_PLAIN if len(ids) else ()
    places = np.flatnonzero(ids)
    found = ids[places].tolist()
    cuts = [0, *(n for n in range(1, len(found)) if found[n] != found[n - 1]), len(found)]
    groups = [Group(found[start], places[start:end]) for start, end in pairwise(cuts)]
    if len(places) < len(ids):
        groups.append(Group(Subprotocol.EVENTS, np.flatnonzero(ids == Subprotocol.EVENTS)))
    return groups
